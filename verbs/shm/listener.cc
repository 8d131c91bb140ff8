#include "verbs/shm/listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string_view>

#include "nzcl/error.h"
#include "verbs/descriptors.h"
#include "verbs/random.h"

namespace nzcl::verbs::shm {
namespace {

constexpr const char* kFolder = "/dev/shm";
constexpr std::string_view kPrefix = "nzcl-shm-";
/// A name that is younger is left alone, because between making a name and listening there it looks like one
/// that was left behind.
constexpr std::time_t kYoung = 60;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(static_cast<char*>(address.sun_path), path.data(),
              std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

Fd make_socket() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

Fd call_path(const std::string& path, int& error) noexcept {
  const sockaddr_un address = address_of(path);
  Fd socket = make_socket();
  error = 0;
  if (socket.get() < 0 ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    error = errno;
    return {};
  }
  return socket;
}

/// Whether a process of this user is at the other end, as the kernel says.
bool is_own_user(const Fd& socket) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

bool is_left_over(const std::string& path) {
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0 || !S_ISSOCK(about.st_mode) || about.st_uid != ::geteuid() ||
      ::time(nullptr) - about.st_mtime < kYoung)
    return false;
  int error = 0;
  static_cast<void>(call_path(path, error));
  return error == ECONNREFUSED;
}

}  // namespace

Name Name::random() { return {random_number(), random_number()}; }

std::string Name::path() const { return fmt::format("{}/{}{:016x}{:016x}", kFolder, kPrefix, high, low); }

Listener::Listener(std::size_t callers) : name_(Name::random()), socket_(make_socket()) {
  const std::string path = name_.path();
  const sockaddr_un address = address_of(path);
  const int backlog = static_cast<int>(std::min<std::size_t>(callers, 4096));
  // Nobody can connect before listen(), so that the mode is never too open.
  const bool made = socket_.get() >= 0 &&
                    ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (made && ::chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0 && ::listen(socket_.get(), backlog) == 0) return;
  const int error = errno;
  if (made) ::unlink(path.c_str());
  throw Error(ErrorCode::unavailable,
              fmt::format("shm: no socket can be made in {}, where processes of this host meet: {}{}; use "
                          "NZCL_TRANSPORT=tcp",
                          kFolder, error_text(error),
                          error == ENOSPC   ? " (it is full, or has no inodes left)"
                          : error == ENOENT ? " (there is no such folder)"
                                            : ""));
}

Listener::~Listener() { ::unlink(name_.path().c_str()); }

Fd Listener::accept() noexcept {
  while (true) {
    Fd caller(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (caller.get() < 0 || is_own_user(caller)) return caller;
  }
}

Fd call(const Name& name, int& error) noexcept {
  Fd socket = call_path(name.path(), error);
  if (error != 0 || is_own_user(socket)) return socket;
  error = EACCES;
  return {};
}

void remove_leftovers() noexcept {
  try {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(kFolder, ignored)) {
      const std::string path = entry.path();
      if (entry.path().filename().string().starts_with(kPrefix) && is_left_over(path)) ::unlink(path.c_str());
    }
  } catch (const std::exception&) {  // out of memory, or the folder changed; the next process tries again
  }
}

}  // namespace nzcl::verbs::shm

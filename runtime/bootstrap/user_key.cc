// The socket's name is abstract (unix(7)): it exists in the network namespace, as the port does, needs no
// folder that both sides see, and vanishes with the process. What is handed out is 'K' and the key, or 'R'
// and the reason of a refusal.
#include "runtime/bootstrap/user_key.h"

#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/refusals.h"

namespace nzcl::bootstrap {
namespace {

using Protocol = asio::local::stream_protocol;

// How long a member waits for member 0 in each of two steps. Member 0 answers as soon as it is connected.
constexpr timeval kPatience{.tv_sec = 1, .tv_usec = 0};
// The pause before accept() is tried again after an error that no free descriptor remedies.
constexpr std::chrono::milliseconds kErrorPause{20};
constexpr std::size_t kLongestAnswer = 512;

constexpr const char* kRemedy =
    "Ranks that do not all belong to one user of one host, or that are in several containers, need the job's "
    "secret: set NZCL_SECRET on every rank to the line that nzcl_info --new-secret prints once";

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

std::string text_of(int port) { return fmt::format("@nzcl-meeting-{}", port); }

Address address_of(int port) {
  Address a;
  const std::string text = text_of(port);
  a.name.sun_family = AF_UNIX;
  std::memcpy(a.name.sun_path + 1, text.data() + 1, text.size() - 1);  // after the zero of an abstract name
  a.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  return a;
}

asio::system_error last_error(const std::string& what) {
  return {asio::error_code(errno, asio::error::get_system_category()), what};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Descriptor new_socket(int flags) {
  Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (fd.get() < 0) throw last_error("a Unix socket");
  return fd;
}

ucred peer_of(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) throw last_error("SO_PEERCRED");
  return peer;
}

int listen_for(int port) {
  const Address address = address_of(port);
  Descriptor fd = new_socket(SOCK_NONBLOCK);
  if (::bind(fd.get(), address.get(), address.bytes) != 0 || ::listen(fd.get(), SOMAXCONN) != 0)
    throw last_error(fmt::format("the Unix socket {}, which ranks without NZCL_SECRET need", text_of(port)));
  return fd.release();
}

/// Whether the kernel shows this user's number for other users too, because they have none in this user
/// namespace. In the first user namespace every user has one.
bool is_ambiguous(uid_t user) {
  unsigned overflow = 65534, first = 0, count = 0;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  if (user != overflow) return false;
  unsigned same = 1;
  std::ifstream("/proc/self/uid_map") >> first >> same >> count;
  constexpr unsigned kAll = 4294967295;
  return first != 0 || same != 0 || count != kAll;
}

}  // namespace

std::optional<std::string> why_not_trusted(const ucred& peer) {
  const uid_t self = ::geteuid();
  if (peer.uid != self) return fmt::format("it belongs to user {}, not to user {}", peer.uid, self);
  if (is_ambiguous(self))
    return fmt::format("user {} may be anybody who has no number in this user namespace", self);
  if (peer.pid == 0) return "it is in another PID namespace, as processes of another container are";
  return std::nullopt;
}

struct KeyDesk::State {
  State(asio::io_context& io, Settings s)
      : settings(std::move(s)),
        refusals(settings.name),
        acceptor(io, Protocol(), listen_for(settings.port)) {}

  void answer(int fd) {
    const ucred peer = peer_of(fd);
    const auto wrong = why_not_trusted(peer);
    if (wrong) {
      refusals.note(fmt::format("process {} of user {}", peer.pid, peer.uid),
                    fmt::format("{}. {}", *wrong, kRemedy));
    }
    const std::string text = wrong ? "R" + *wrong : "K" + settings.key;
    // A fresh socket has room for this. If it has been closed meanwhile, the member asks again.
    [[maybe_unused]] const auto sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  /// Returns false if there was nobody, or no descriptor to answer with.
  bool answer_next() {
    const Descriptor fd(::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() < 0) return false;
    try {
      answer(fd.get());
    } catch (const std::exception& e) {
      refusals.note("an unknown process", e.what());
    }
    return true;
  }

  static asio::awaitable<void> serve(std::shared_ptr<State> self);

  const Settings settings;
  Refusals refusals;
  Protocol::acceptor acceptor;
};

asio::awaitable<void> KeyDesk::State::serve(std::shared_ptr<State> self) {
  asio::steady_timer pause(self->acceptor.get_executor());
  while (true) {
    asio::error_code error;
    co_await self->acceptor.async_wait(Protocol::acceptor::wait_read,
                                       asio::redirect_error(asio::use_awaitable, error));
    if (error || !self->acceptor.is_open()) co_return;
    if (self->answer_next()) continue;
    if ((errno == EMFILE || errno == ENFILE) && self->settings.make_room()) continue;
    pause.expires_after(kErrorPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

KeyDesk::KeyDesk(asio::io_context& io, Settings settings)
    : state_(std::make_shared<State>(io, std::move(settings))) {
  asio::co_spawn(io, State::serve(state_), asio::detached);
}

KeyDesk::~KeyDesk() {
  asio::error_code ignored;
  state_->acceptor.close(ignored);
}

const std::string& KeyDesk::last_refusal() const { return state_->refusals.last(); }

namespace {

[[noreturn]] void reject(int port, const std::string& why) {
  throw Error(
      ErrorCode::denied,
      fmt::format("the process that meets at port {} of this host cannot be trusted without a secret: "
                  "{}. {}",
                  port, why, kRemedy));
}

/// Reads until the other side closes. Returns what has come if it takes too long.
std::string read_answer(int fd) {
  std::string text;
  std::array<char, kLongestAnswer> part{};
  while (text.size() < kLongestAnswer) {
    const auto n = ::recv(fd, part.data(), part.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(n));
  }
  return text;
}

}  // namespace

std::variant<std::string, NotYet> ask_for_key(int port) {
  const Address address = address_of(port);
  const Descriptor fd = new_socket(0);
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO})
    ::setsockopt(fd.get(), SOL_SOCKET, option, &kPatience, sizeof kPatience);
  if (::connect(fd.get(), address.get(), address.bytes) != 0) {
    if (errno == ECONNREFUSED) return NotYet{.why = "nobody listens there yet"};
    return NotYet{.why = fmt::format("the Unix socket {}: {}", text_of(port), std::strerror(errno))};
  }
  const ucred peer = peer_of(fd.get());
  if (const auto wrong = why_not_trusted(peer)) reject(port, *wrong);
  const std::string answer = read_answer(fd.get());
  if (answer.starts_with('R')) {
    reject(port, fmt::format("it has refused process {} of user {}, because {}", ::getpid(), ::geteuid(),
                             answer.substr(1)));
  }
  if (!answer.starts_with('K')) return NotYet{.why = "member 0 did not hand out the meeting's key"};
  return answer.substr(1);
}

}  // namespace nzcl::bootstrap

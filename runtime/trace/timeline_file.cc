#include "runtime/trace/timeline_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"

namespace nzcl::trace {
namespace {

constexpr std::string_view kEnd = "\n]\n";

[[noreturn]] void reject(const std::string& path) {
  throw Error(ErrorCode::system, fmt::format("trace: cannot write {}: {}", path, std::strerror(errno)));
}

/// Holds the lock of a file, by which processes that append to it take turns.
struct Locked {
  explicit Locked(int file) : fd(file) { ::flock(fd, LOCK_EX); }
  ~Locked() { ::flock(fd, LOCK_UN); }
  const int fd;
};

}  // namespace

TimelineFile::TimelineFile(std::string path, bool empty)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (empty ? O_TRUNC : 0), 0644)) {
  if (fd_ < 0) reject(path_);
}

TimelineFile::~TimelineFile() { ::close(fd_); }

void TimelineFile::append(std::string events) {
  if (events.empty()) return;
  events.resize(events.size() - 2);  // without the last comma and newline
  const Locked locked(fd_);
  struct stat about {};
  if (::fstat(fd_, &about) != 0) reject(path_);
  const bool first = about.st_size == 0;
  std::string text = (first ? "[\n" : ",\n") + events;
  text += kEnd;
  off_t at = first ? 0 : about.st_size - static_cast<off_t>(kEnd.size());
  for (std::string_view left = text; !left.empty();) {
    const ssize_t n = ::pwrite(fd_, left.data(), left.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) reject(path_);
    left.remove_prefix(static_cast<std::size_t>(n));
    at += n;
  }
}

}  // namespace nzcl::trace

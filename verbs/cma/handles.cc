#include "verbs/cma/handles.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>

#include <cerrno>

#include "nzcl/error.h"
#include "verbs/descriptors.h"

namespace nzcl::verbs::cma {

namespace {

[[noreturn]] void reject_process(int pid) {
  const int error = errno;
  const std::string why = error_text(error);
  if (error == EMFILE || error == ENFILE)
    throw Error(ErrorCode::system, fmt::format("cma: no descriptor for process {}: {}", pid, why));
  throw Error(
      ErrorCode::unavailable,
      fmt::format("cma: no access to process {}: {}{}; use NZCL_TRANSPORT=shm", pid, why,
                  error == EPERM   ? " (it belongs to another user or is not dumpable, or Yama or the "
                                     "container's seccomp profile forbids it)"
                  : error == ESRCH ? " (it has ended, or is in another pid namespace)"
                  : error == EBADF ? " (it has closed the descriptor, as a rank that fails does, or it "
                                     "is another process)"
                                   : ""));
}

}  // namespace

Process::Process(int pid) : pid_(pid), fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  if (fd_.get() < 0) reject_process(pid);
}

Fd Process::take_fd(int fd) const {
  const int taken = static_cast<int>(::syscall(SYS_pidfd_getfd, fd_.get(), fd, 0));
  if (taken < 0) reject_process(pid_);
  return Fd(taken);
}

bool Process::has_ended() const noexcept {
  pollfd ended{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) > 0;
}

}  // namespace nzcl::verbs::cma

#include "verbs/cma/handles.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
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

Mapping map_shared(int fd, std::size_t bytes) {
  struct stat file {};
  if (::fstat(fd, &file) != 0 || static_cast<std::uint64_t>(file.st_size) < bytes)
    throw Error(
        ErrorCode::system,
        fmt::format("cma: a peer's descriptor does not refer to a file of at least {} MiB", bytes >> 20));
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    throw Error(ErrorCode::system, fmt::format("cma: mapping {} MiB: {}", bytes >> 20, error_text(errno)));
  return Mapping({static_cast<std::byte*>(p), bytes});
}

Fd make_memory_fd(std::size_t bytes) {
  Fd fd(::memfd_create("nzcl", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // The file has no name, and only its owner may open it through /proc. The seals keep peers from changing
  // its size, since an access beyond its end would kill this process.
  if (fd.get() < 0 || ::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Error(ErrorCode::system,
                fmt::format("cma: {} MiB of shared memory: {}", bytes >> 20, error_text(errno)));
  return fd;
}

}  // namespace nzcl::verbs::cma

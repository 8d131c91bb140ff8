#include "verbs/cma/handles.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"

namespace nzcl::verbs::cma {

Mapping map_shared(int fd, std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    throw Error(ErrorCode::system, fmt::format("cma: mapping {} MiB: {}", bytes >> 20, std::strerror(errno)));
  return Mapping({static_cast<std::byte*>(p), bytes});
}

Fd take_fd(int pid, int fd) {
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int taken =
      process.get() < 0 ? -1 : static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0));
  if (taken < 0) {
    throw Error(
        ErrorCode::unavailable,
        fmt::format("cma: reaching into process {}: {}{}", pid, std::strerror(errno),
                    errno == EPERM   ? " (another user's, or the container's seccomp profile forbids it)"
                    : errno == ESRCH ? " (it has ended, or is in another pid namespace)"
                                     : "; use NZCL_TRANSPORT=shm"));
  }
  return Fd(taken);
}

Fd make_memory_fd(std::size_t bytes) {
  Fd fd(::memfd_create("nzcl", MFD_CLOEXEC));
  if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw Error(ErrorCode::system,
                fmt::format("cma: {} MiB of shared memory: {}", bytes >> 20, std::strerror(errno)));
  return fd;
}

}  // namespace nzcl::verbs::cma

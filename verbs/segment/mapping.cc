#include "verbs/segment/mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>

#include "nzcl/error.h"
#include "verbs/descriptors.h"

namespace nzcl::verbs::segment {

Mapping map_shared(int fd, std::size_t bytes) {
  struct stat file {};
  if (::fstat(fd, &file) != 0 || static_cast<std::uint64_t>(file.st_size) < bytes)
    throw Error(ErrorCode::system,
                fmt::format("shared memory: a peer's descriptor does not refer to a file of at least {} MiB",
                            bytes >> 20));
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    throw Error(ErrorCode::system,
                fmt::format("shared memory: mapping {} MiB: {}", bytes >> 20, error_text(errno)));
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
                fmt::format("shared memory: {} MiB of it: {}", bytes >> 20, error_text(errno)));
  return fd;
}

}  // namespace nzcl::verbs::segment

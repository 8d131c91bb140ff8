#include "verbs/ofi/shm_room.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "nzcl/error.h"
#include "verbs/descriptors.h"
#include "verbs/ofi/shm_name.h"
#include "verbs/random.h"

namespace nzcl::verbs::ofi {
namespace {

/// Allocates all pages of a file of this size. Returns an errno. A call that a signal has interrupted is
/// repeated.
int fill(const Fd& file, std::size_t bytes) {
  int error = 0;
  do error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

}  // namespace

std::string shm_free_text() {
  struct statvfs space {};
  if (::statvfs("/dev/shm", &space) != 0) return "/dev/shm: " + error_text(errno);
  const auto mib = [&](fsblkcnt_t blocks) { return blocks * space.f_frsize >> 20; };
  return fmt::format("/dev/shm has {} MiB, of which {} MiB are free", mib(space.f_blocks),
                     mib(space.f_bavail));
}

ShmRoom::ShmRoom(std::size_t endpoints)
    : name_(shm_name()),
      nonce_(random_number()),
      endpoints_(endpoints),
      file_(::open(("/dev/shm/" + name_).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                   S_IRUSR | S_IWUSR)) {
  int error = file_.get() < 0 ? errno : fill(file_, endpoints * kShmEndpointBytes);
  if (error == 0 && ::pwrite(file_.get(), &nonce_, sizeof nonce_, 0) != sizeof nonce_) error = errno;
  if (error == 0) return;
  if (file_.get() >= 0) ::unlink(("/dev/shm/" + name_).c_str());
  throw Error(
      ErrorCode::unavailable,
      fmt::format("libfabric-shm: {} endpoint(s) of this process need {} MiB in /dev/shm: {} ({}; make it "
                  "larger, for example by docker run --shm-size or --ipc=host, or use NZCL_TRANSPORT=shm)",
                  endpoints, endpoints * kShmEndpointBytes >> 20, error_text(error), shm_free_text()));
}

ShmRoom::~ShmRoom() { ::unlink(("/dev/shm/" + name_).c_str()); }

void ShmRoom::hand_over() noexcept {
  [[maybe_unused]] const int ignored =
      ::ftruncate(file_.get(), static_cast<off_t>(--endpoints_ * kShmEndpointBytes));
}

void fill_endpoint_file(const std::string& name) {
  const std::string path = "/dev/shm/" + name;
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0)
    throw Error(ErrorCode::system, fmt::format("libfabric-shm: {}: {}", path, error_text(errno)));
  if (!S_ISREG(about.st_mode) || about.st_uid != ::geteuid() || (about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw Error(
        ErrorCode::system,
        fmt::format(
            "libfabric-shm: {} belongs to user {} and has the mode {:o}, so that others could write into "
            "this endpoint; it should belong to user {} alone",
            path, about.st_uid, about.st_mode & 07777u, ::geteuid()));
  }
  if (const int error = fill(file, static_cast<std::size_t>(about.st_size)); error != 0) {
    throw Error(ErrorCode::system, fmt::format("libfabric-shm: {} needs {} MiB: {} ({})", path,
                                               about.st_size >> 20, error_text(error), shm_free_text()));
  }
}

}  // namespace nzcl::verbs::ofi

#include "runtime/gpu/emulated/two_mappings.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "nzcl/error.h"

namespace nzcl::gpu {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::system, "memory of an emulated GPU: " + std::string(what) + ": " +
                                     std::system_category().message(errno));
}

std::byte* map(int fd, std::size_t bytes, int protection) {
  void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) refuse("mmap");
  return static_cast<std::byte*>(at);
}

}  // namespace

TwoMappings::TwoMappings(std::size_t bytes, bool host_may_touch) : bytes_(bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  mapped_ = (bytes + page - 1) / page * page;
  fd_ = verbs::Fd(::memfd_create("nzcl-emulated-gpu", MFD_CLOEXEC));
  if (fd_.get() < 0) refuse("memfd_create");
  if (::ftruncate(fd_.get(), static_cast<off_t>(mapped_)) != 0) refuse("ftruncate");
  try {
    host_ = map(fd_.get(), mapped_, host_may_touch ? PROT_READ | PROT_WRITE : PROT_NONE);
    device_ = map(fd_.get(), mapped_, PROT_READ | PROT_WRITE);
    if (host_may_touch) fd_ = verbs::Fd();  // nobody else maps those
  } catch (...) {
    unmap();
    throw;
  }
}

TwoMappings::~TwoMappings() { unmap(); }

void TwoMappings::unmap() noexcept {
  if (host_ != nullptr) ::munmap(host_, mapped_);
  if (device_ != nullptr) ::munmap(device_, mapped_);
}

}  // namespace nzcl::gpu

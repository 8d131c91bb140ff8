// Memory where the first byte read or written beyond its end is a fault, in builds without sanitizers too.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>
#include <span>

namespace nzcl::test {

/// `bytes` zeroed bytes that end where a page ends, and behind it a page that must not be touched. They
/// therefore begin at an odd address if their number is odd, which tests unaligned access.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = (bytes + page - 1) / page * page;
    mapped_ = inner + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    if (mprotect(static_cast<std::byte*>(base_) + inner, page, PROT_NONE) != 0) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(base_) + inner - bytes;
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  std::size_t mapped_ = 0;
  void* base_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace nzcl::test

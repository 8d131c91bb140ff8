// Owning handles of shared memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <utility>

#include "verbs/fd.h"

namespace nzcl::verbs::segment {

class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// Maps a file for reading and writing. Throws Error{system}, also if the file is shorter than `bytes`,
/// because an access beyond its end would kill this process.
Mapping map_shared(int fd, std::size_t bytes);

/// Anonymous memory that other processes can map through its descriptor. Its size is fixed.
Fd make_memory_fd(std::size_t bytes);

}  // namespace nzcl::verbs::segment

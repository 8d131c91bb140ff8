// Owning handles of mappings and processes.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <utility>

#include "verbs/fd.h"

namespace nzcl::verbs::cma {

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

/// A process of this user: another one, or this one. It is held by a pidfd, which never comes to stand for a
/// later process that gets the same id.
class Process {
 public:
  Process() = default;
  /// Throws Error{unavailable}.
  explicit Process(int pid);
  int pid() const { return pid_; }
  /// Duplicates the descriptor `fd` of that process into this one. Throws Error{unavailable} saying what
  /// forbids it.
  Fd take_fd(int fd) const;
  bool has_ended() const noexcept;

 private:
  int pid_ = -1;
  Fd fd_;
};

/// Anonymous memory that other processes can map through its descriptor. Its size is fixed.
Fd make_memory_fd(std::size_t bytes);

}  // namespace nzcl::verbs::cma

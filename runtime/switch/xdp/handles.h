// Owners of what libbpf and the kernel hand out.
#pragma once

#include <switch.skel.h>  // generated
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace nzcl::tools::xdp {

struct DestroySkeleton {
  void operator()(switch_bpf* skeleton) const { switch_bpf__destroy(skeleton); }
};
using Skeleton = std::unique_ptr<switch_bpf, DestroySkeleton>;

/// Owns a file descriptor. One of them stands for a program that is attached to an interface; the kernel
/// detaches the program when it is closed.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// The memory of a map, which this process reads without system calls.
class MappedMemory {
 public:
  MappedMemory(int fd, std::size_t bytes)
      : bytes_(bytes), at_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {}
  ~MappedMemory() {
    if (at_ != MAP_FAILED) ::munmap(at_, bytes_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  bool valid() const { return at_ != MAP_FAILED; }
  void* at() const { return at_; }

 private:
  const std::size_t bytes_;
  void* const at_;
};

}  // namespace nzcl::tools::xdp

// Memory of an emulated GPU, as a transport in software and a device of the kernel's reach it.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"
#include "verbs/transport.h"

namespace nzcl::verbs {

/// Pages that a memfd has in place of a dmabuf, mapped where this process reads and writes them.
class LentPages {
 public:
  /// Whether the memory is in such pages, and not in a GPU's.
  static bool are_in(const GpuMemory& memory) { return ::fcntl(memory.dmabuf, F_GET_SEALS) >= 0; }
  /// Throws Error{system}.
  explicit LentPages(const GpuMemory& memory)
      : bytes_(static_cast<std::byte*>(::mmap(nullptr, memory.bytes.size(), PROT_READ | PROT_WRITE,
                                              MAP_SHARED, memory.dmabuf, static_cast<off_t>(memory.offset))),
               memory.bytes.size()) {
    if (bytes_.data() == MAP_FAILED)
      throw Error(ErrorCode::system,
                  fmt::format("{} bytes of an emulated GPU: mmap: {}", bytes_.size(), std::strerror(errno)));
  }
  ~LentPages() { ::munmap(bytes_.data(), bytes_.size()); }
  LentPages(const LentPages&) = delete;
  LentPages& operator=(const LentPages&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::span<std::byte> bytes_;
};

}  // namespace nzcl::verbs

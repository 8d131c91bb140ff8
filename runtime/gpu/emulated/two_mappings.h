// Pages that are mapped twice: where the host sees them, and where an emulated GPU does.
#pragma once

#include <cstddef>

#include "verbs/fd.h"

namespace nzcl::gpu {

/// Owns zeroed pages and both mappings. `host_may_touch`: without it, whoever reads or writes at the host's
/// address is ended by a signal, as with memory of a GPU. Throws Error{system}.
class TwoMappings {
 public:
  TwoMappings(std::size_t bytes, bool host_may_touch);
  ~TwoMappings();
  TwoMappings(const TwoMappings&) = delete;
  TwoMappings& operator=(const TwoMappings&) = delete;

  std::byte* host() const { return host_; }
  std::byte* device() const { return device_; }
  std::size_t bytes() const { return bytes_; }  // as asked for
  /// By which other processes may map the pages too.
  int descriptor() const { return fd_.get(); }

 private:
  void unmap() noexcept;
  std::size_t bytes_, mapped_;
  verbs::Fd fd_;
  std::byte *host_ = nullptr, *device_ = nullptr;
};

}  // namespace nzcl::gpu

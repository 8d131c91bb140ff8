// Memory of a GPU on the way between its kernels and a NIC.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/comm/session/registrations.h"
#include "runtime/gpu/gpu.h"

namespace nzcl::comm {

/// One piece of it, nzcl's own, lent to the transport's device and registered there. It begins at a page.
class FarSlot {
 public:
  /// Throws Error{unsupported} if the GPU lends nothing or the transport takes nothing, Error{system} if
  /// there is no memory.
  FarSlot(std::shared_ptr<gpu::Gpu> gpu, Registrations& registrations, std::size_t bytes);
  /// Nothing may use it any more. May wait for what the GPU has to do.
  ~FarSlot();
  FarSlot(const FarSlot&) = delete;
  FarSlot& operator=(const FarSlot&) = delete;

  /// Where kernels and the device have it. The host cannot touch it.
  std::byte* data() const { return data_; }
  const verbs::MemoryRegion* region() const { return region_.get(); }

 private:
  const std::shared_ptr<gpu::Gpu> gpu_;
  std::byte* const allocated_;
  std::byte* data_ = nullptr;
  SharedRegion region_;
};

}  // namespace nzcl::comm

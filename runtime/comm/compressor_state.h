// The inside of a CompressorState: the state of the tensor, and the last operation that uses it.
#pragma once

#include <memory>
#include <span>

#include "nzcl/communicator.h"
#include "nzcl/compress.h"
#include "runtime/compress/tensor_state.h"
#include "runtime/compress/whole_tensor.h"

namespace nzcl {

class CompressorState::Impl {
 public:
  Impl(const Compressor& compressor, std::span<const Layer> layers) : tensor(compressor, layers) {}
  /// Waits for the operation that uses the buffers.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Throws Error{invalid_usage} if an operation still uses the buffers. `call` is what the caller wants.
  void require_idle(const char* call);

  compress::TensorState tensor;
  compress::WholeTensor whole;
  std::unique_ptr<float[]> dense;  // the input of a dense operation, where everything is sent

  RegisteredBuffer registered;  // what the last operation read, and maybe more
  Work work;                    // the last operation
};

/// Lets the part of the library that starts operations use the inside of a state.
class CompressorStateAccess {
 public:
  using Impl = CompressorState::Impl;
  static CompressorState::Impl& of(CompressorState& state) { return state.impl(); }
};

}  // namespace nzcl

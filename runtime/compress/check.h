// Whether a compressor is within its ranges.
#pragma once

#include <span>

#include "nzcl/compress.h"

namespace nzcl::compress {

/// Throws Error{invalid_argument} that names the field and its range.
void check_compressor(const Compressor& compressor);
/// Throws Error{unsupported} that names the option which a state on a GPU does not take.
void check_for_gpu(const Compressor& compressor);
/// The same as check_compressor() for the layers of a tensor, which together must be a tensor that can be
/// allreduced.
void check_layers(const Compressor& compressor, std::span<const Layer> layers);

/// The same for a learning rate, which may also be 0.
void check_rate(float rate);
/// Whether it is one in whose units a residual can be.
inline bool is_rate(float rate) { return rate >= 1e-15f && rate <= 1e15f; }

/// Whether the owners of the compressor's results code them.
inline bool codes_results(const Compressor& compressor) {
  return !std::holds_alternative<AsIs>(compressor.results);
}

}  // namespace nzcl::compress

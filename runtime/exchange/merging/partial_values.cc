#include "runtime/exchange/merging/partial_values.h"

#include <cassert>
#include <cstdint>
#include <cstring>

#include "runtime/kernels/narrow.h"
#include "runtime/kernels/reduce.h"
#include "runtime/plan/partial_type.h"

namespace nzcl::engine {

void widen_values(DataType type, DataType partial, const std::byte* values, std::size_t count,
                  std::byte* to) noexcept {
  if (partial == DataType::float32) {
    widen(type, reinterpret_cast<const std::uint16_t*>(values), count, reinterpret_cast<float*>(to));
    return;
  }
  assert(type == DataType::uint8 && partial == DataType::int32);
  for (std::size_t i = 0; i < count; ++i) {
    const auto wide = static_cast<std::int32_t>(values[i]);
    std::memcpy(to + i * sizeof wide, &wide, sizeof wide);
  }
}

void finish_values(DataType type, ReduceOp op, int ranks, std::byte* sums, std::size_t count,
                   std::byte* to) noexcept {
  if (count == 0) return;
  const DataType partial = partial_type(type, op);
  if (op == ReduceOp::avg) {
    const std::byte* const sum = sums;
    reduce_kernel(partial, op)(sums, &sum, 1, count, {.ranks = ranks, .with_zero = false});
  }
  if (partial == type) {
    if (to != sums) std::memcpy(to, sums, count * element_bytes(type));
  } else if (partial == DataType::float32) {
    narrow(type, reinterpret_cast<const float*>(sums), count, reinterpret_cast<std::uint16_t*>(to));
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      std::int32_t wide = 0;
      std::memcpy(&wide, sums + i * sizeof wide, sizeof wide);
      to[i] = static_cast<std::byte>(wide);
    }
  }
}

}  // namespace nzcl::engine

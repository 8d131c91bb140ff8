// The basic types of the public API: element types, reductions and kinds of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nzcl/export.h"

namespace nzcl {

/// Element type of a buffer. float16 is IEEE binary16, bfloat16 the upper half of binary32.
enum class DataType : std::uint8_t { float32, float64, float16, bfloat16, int32, int64, uint8 };
inline constexpr int kDataTypes = 7;

/// Reduction over ranks, element by element, always in rank order. avg is the sum divided by the number of
/// ranks (integers round towards zero). float16 and bfloat16 are summed in float32 and rounded once; integers
/// wrap. min and max are the minimum and maximum of IEEE 754-2019: any NaN gives NaN, and -0.0 is less than
/// +0.0. Among several ranks a NaN has one form, positive and without payload.
///
/// A block that a rank skips counts as zeros, which are +0.0, for min and max too. So a sparse and a dense
/// allreduce of the same elements give the same bits: a sum is -0.0 only where every rank has -0.0. nzcl
/// skips a block only if all its bytes are zero, so that -0.0 is never lost; a caller's own bitmap must do
/// the same.
enum class ReduceOp : std::uint8_t { sum, avg, min, max };
inline constexpr int kReduceOps = 4;

/// Where a buffer lives: in memory of the host, or of a GPU of NVIDIA. What takes the latter: nzcl/GPU.md
enum class MemoryKind : std::uint8_t { host, device };

/// Type of the indices of a sparse stream.
enum class IndexType : std::uint8_t { int32, uint32, int64 };
inline constexpr int kIndexTypes = 3;

/// The type in which float32 values travel. by_option: as Options::wire_type says.
enum class WireType : std::uint8_t { by_option, as_is, float16, bfloat16 };
inline constexpr int kWireTypes = 4;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::uint8:
      return 1;
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::float32:
    case DataType::int32:
      return 4;
    case DataType::float64:
    case DataType::int64:
      return 8;
  }
  return 0;
}

/// "float32", "sum", "host" and so on; "?" for a value outside the enum.
[[nodiscard]] NZCL_API std::string_view name_of(DataType type);
[[nodiscard]] NZCL_API std::string_view name_of(ReduceOp op);
[[nodiscard]] NZCL_API std::string_view name_of(MemoryKind kind);

}  // namespace nzcl

// The small vocabulary of the public API: element types, reductions, kinds of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nzcl/export.h"

namespace nzcl {

/// Element type of a buffer. float16 is IEEE binary16, bfloat16 the upper half of binary32.
enum class DataType : std::uint8_t { float32, float64, float16, bfloat16, int32, int64, uint8 };
inline constexpr int kDataTypes = 7;

/// Reduction over ranks, element by element, always in rank order. A block that a rank skips counts as zeros,
/// for min and max too. avg is the sum divided by the number of ranks (integers round towards zero).
/// float16 and bfloat16 are summed in float32 and rounded once; integers wrap.
enum class ReduceOp : std::uint8_t { sum, avg, min, max };
inline constexpr int kReduceOps = 4;

/// Where a buffer lives. Only host memory is implemented; device memory is refused with
/// ErrorCode::unsupported.
enum class MemoryKind : std::uint8_t { host, device };

/// Bytes of one element.
constexpr std::size_t element_bytes(DataType type) {
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
NZCL_API std::string_view name_of(DataType type);
NZCL_API std::string_view name_of(ReduceOp op);
NZCL_API std::string_view name_of(MemoryKind kind);

}  // namespace nzcl

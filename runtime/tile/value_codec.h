// Translates between a tile's float32 values and their codes on the wire (runtime/wire/README.md). Pure
// functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "runtime/tile/tile_part.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// The type of values of code float16 or bfloat16.
constexpr DataType narrow_type(wire::ValueCode code) {
  return code == wire::ValueCode::float16 ? DataType::float16 : DataType::bfloat16;
}

/// Values that have been coded.
struct CodedValues {
  wire::ValueCode code = wire::ValueCode::as_is;
  std::uint32_t parameter = 0;  // see wire::TileDescriptor
  std::size_t bytes = 0;
};

/// Writes the values in the code that `coding` names. Returns nothing if they would not come back bit by bit,
/// or if they take less than `room` only as they are: those of code signs must be finite and of few
/// magnitudes, for example. `room` is arbitrary then.
std::optional<CodedValues> encode_values(std::span<const float> values, const ValueCoding& coding,
                                         std::span<std::byte> room);

/// Reads the values of a tile that are not as they are: as many as it counts. Returns false if the bytes are
/// not what encode_values() writes.
[[nodiscard]] bool decode_values(const wire::Tile& tile, std::span<float> values);

}  // namespace nzcl::engine

// A tile: the contribution to some tens of thousands of single elements, or their sum, as an index set and
// values. Bytes on the wire: runtime/wire/README.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "nzcl/types.h"

namespace nzcl::wire {

/// No tile has more elements, so that an element's offset in its tile fits 16 bits.
inline constexpr std::uint64_t kMostTileElements = std::uint64_t{1} << 16;

/// How a tile says which of its elements are there.
enum class IndexCode : std::uint8_t {
  none = 0,     // no element
  all = 1,      // all elements
  bitmap = 2,   // one bit for each element
  offsets = 3,  // 16 bits for each element that is there
  gaps = 4,     // 8 bits or more for each element that is there
  runs = 5,     // 32 bits for each run of elements that are there
};
inline constexpr unsigned kIndexCodes = 6;

/// How a tile's values are coded.
enum class ValueCode : std::uint8_t {
  as_is = 0,     // in the tensor's type
  float16 = 1,   // of a float32 tensor
  bfloat16 = 2,  // the same
};
inline constexpr unsigned kValueCodes = 3;

/// The first four bytes of a tile.
struct TileDescriptor {
  std::uint32_t count = 0;  // elements that are there
  IndexCode index = IndexCode::none;
  ValueCode value = ValueCode::as_is;

  /// 31        23 22      20 19     17 16       0
  /// [0          ][ValueCode][IndexCode][count    ]
  constexpr std::uint32_t encode() const {
    return count | static_cast<std::uint32_t>(index) << 17 | static_cast<std::uint32_t>(value) << 20;
  }
  /// Returns nothing if the codes do not exist.
  static constexpr std::optional<TileDescriptor> decode(std::uint32_t bits) {
    const std::uint32_t index = bits >> 17 & 7, value = bits >> 20;
    if (index >= kIndexCodes || value >= kValueCodes) return std::nullopt;
    return TileDescriptor{bits & 0x1ffff, static_cast<IndexCode>(index), static_cast<ValueCode>(value)};
  }
};

/// Tiles begin at multiples of this within a payload.
inline constexpr std::uint64_t kTileAlignment = 4;
/// The most bytes of a tile beside its values and its index set: the descriptor, the length of the index set,
/// and what aligns values and the next tile.
inline constexpr std::uint64_t kTileOverhead = 16;

constexpr std::uint64_t aligned(std::uint64_t at, std::uint64_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}
/// Bytes of a coded value of a tensor of this type.
constexpr std::uint64_t value_bytes(DataType type, ValueCode code) {
  return code == ValueCode::as_is ? element_bytes(type) : 2;
}
/// Where the values of a tile begin that begins `at` bytes into the payload.
constexpr std::uint64_t values_at(std::uint64_t at, std::uint64_t bytes_of_value) {
  return aligned(at + sizeof(std::uint32_t), bytes_of_value);
}
/// Whether 16 bits with the length of the index set stand before it, because it does not follow from the
/// number of elements.
constexpr bool has_length(IndexCode code) { return code == IndexCode::gaps || code == IndexCode::runs; }

/// A tile within a payload. The spans lead into the payload, and their lengths have been checked. What the
/// index set says has not.
struct Tile {
  std::uint32_t count = 0;
  IndexCode index_code = IndexCode::none;
  ValueCode value_code = ValueCode::as_is;
  std::span<const std::byte> values, index;
  std::uint64_t end = 0;  // where the next tile begins in the payload
};

/// Reads the tile of `elements` elements that begins `at` bytes into the payload. Returns nothing if the
/// bytes cannot be such a tile; `wrong` then says why, as a part of a sentence.
inline std::optional<Tile> read_tile(std::span<const std::byte> payload, std::uint64_t at, DataType type,
                                     std::uint64_t elements, const char*& wrong) {
  const auto refuse = [&](const char* why) {
    wrong = why;
    return std::nullopt;
  };
  std::uint32_t bits = 0;
  if (at > payload.size() || payload.size() - at < sizeof bits) return refuse("a tile is missing");
  std::memcpy(&bits, payload.data() + at, sizeof bits);
  const auto descriptor = TileDescriptor::decode(bits);
  if (!descriptor) return refuse("a tile has a code that does not exist");
  const auto [count, index_code, value_code] = *descriptor;
  const bool plausible = index_code == IndexCode::none  ? count == 0
                         : index_code == IndexCode::all ? count == elements
                                                        : count > 0 && count <= elements;
  if (!plausible) return refuse("a tile counts elements that its code cannot have");
  if (value_code != ValueCode::as_is && type != DataType::float32)
    return refuse("a tile has narrower floats than its tensor");
  Tile tile{.count = count, .index_code = index_code, .value_code = value_code, .values = {}, .index = {}};
  const std::uint64_t each = value_bytes(type, value_code);
  std::uint64_t next = values_at(at, each);
  const auto take = [&](std::uint64_t bytes) -> std::optional<std::span<const std::byte>> {
    if (next > payload.size() || payload.size() - next < bytes) return std::nullopt;
    const auto taken = payload.subspan(next, bytes);
    next += bytes;
    return taken;
  };
  std::uint64_t index_bytes = index_code == IndexCode::bitmap    ? (elements + 63) / 64 * 8
                              : index_code == IndexCode::offsets ? 2 * std::uint64_t{count}
                                                                 : 0;
  if (count > 0) {
    const auto values = take(count * each);
    if (!values) return refuse("a tile is longer than its message");
    tile.values = *values;
  }
  if (has_length(index_code)) {
    std::uint16_t length = 0;
    const auto field = take(sizeof length);
    if (!field) return refuse("a tile is longer than its message");
    std::memcpy(&length, field->data(), sizeof length);
    index_bytes = length;
  }
  if (index_bytes > 0) {
    const auto index = take(index_bytes);
    if (!index) return refuse("a tile is longer than its message");
    tile.index = *index;
  }
  // The last tile of a payload need not be filled up.
  tile.end = std::min(aligned(count > 0 ? next : at + sizeof bits, kTileAlignment), payload.size());
  return tile;
}

}  // namespace nzcl::wire

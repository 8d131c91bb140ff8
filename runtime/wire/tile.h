// A tile: the contribution to some tens of thousands of elements, or their sum, as an index set and values.
// Bytes on the wire: runtime/wire/README.md.
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

/// The size of a tile, and of the units that its index set counts: single elements, or whole blocks.
struct TileShape {
  constexpr TileShape() = default;
  /// `unit_elements` is the number of elements of each unit but the last one, which may have fewer. It is at
  /// least 1.
  constexpr TileShape(std::uint64_t tile_elements, std::uint64_t unit_elements = 1)  // NOLINT: an integer is
      : elements(tile_elements), unit(unit_elements) {}  // a tile of single elements

  /// The number of units that `count` elements make up, if these are whole units.
  constexpr std::uint64_t units_of(std::uint64_t count) const {
    return unit == 1 ? count : (count + unit - 1) / unit;
  }
  constexpr std::uint64_t units() const { return units_of(elements); }
  /// How many elements fewer the last unit has than the others.
  constexpr std::uint64_t missing() const { return units() * unit - elements; }
  /// Whether some set of this tile's units has exactly `count` elements.
  constexpr bool can_hold(std::uint64_t count) const {
    return count <= elements && (unit == 1 || count % unit == 0 || count % unit == elements % unit);
  }
  /// The number of elements of a set of `set_units` units. `last`: whether the last unit of the tile is one
  /// of them.
  constexpr std::uint64_t elements_in(std::uint64_t set_units, bool last) const {
    return set_units * unit - (last ? missing() : 0);
  }

  std::uint64_t elements = 0;
  std::uint64_t unit = 1;
};

/// How a tile says which of its units are there.
enum class IndexCode : std::uint8_t {
  none = 0,     // no unit, of this tile and of as many as follow; or a list of several tiles (kListed)
  all = 1,      // all units
  bitmap = 2,   // one bit for each unit
  offsets = 3,  // 16 bits for each unit that is there
  gaps = 4,     // 8 bits or more for each unit that is there
  runs = 5,     // 32 bits for each run of units that are there
  rice = 6,     // Rice's code of what is left out before each unit that is there
  drawn = 7,    // nothing: all ranks draw the same set at random (RandomK)
};
inline constexpr unsigned kIndexCodes = 8;

/// How a tile's values are coded. All but the first are for tensors of float32.
enum class ValueCode : std::uint8_t {
  as_is = 0,     // in the tensor's type
  float16 = 1,   // rounded to float16
  bfloat16 = 2,  // rounded to bfloat16
  signs = 3,     // runs of values of one magnitude, and one bit for each sign
  levels = 4,    // buckets of values, each with a scale that its values are multiples of (compress/qsgd.h)
};
inline constexpr unsigned kValueCodes = 5;

/// Which codes of values an operation's tiles have.
enum class ValueRule : std::uint8_t {
  as_is = 0,
  float16 = 1,   // contributions and results
  bfloat16 = 2,  // the same
  // Contributions in any code that their values allow without loss, and results ...
  coded = 3,           // ... as they are
  coded_float16 = 4,   // ... as float16
  coded_bfloat16 = 5,  // ... as bfloat16
  coded_levels = 6,    // ... in levels
};
inline constexpr unsigned kValueRules = 7;

/// Whether an operation's contributions are coded as their values allow it.
constexpr bool is_coded(ValueRule rule) { return rule >= ValueRule::coded; }
/// Whether owners code the results of such contributions again.
constexpr bool has_coded_results(ValueRule rule) { return rule > ValueRule::coded; }
/// Whether a contribution of an operation may have the code.
constexpr bool may_contribute(ValueRule rule, ValueCode code) {
  return is_coded(rule) || static_cast<unsigned>(rule) == static_cast<unsigned>(code);
}
/// The code of an operation's results.
constexpr ValueCode result_code(ValueRule rule) {
  switch (rule) {
    case ValueRule::as_is:
    case ValueRule::coded:
      break;
    case ValueRule::float16:
    case ValueRule::coded_float16:
      return ValueCode::float16;
    case ValueRule::bfloat16:
    case ValueRule::coded_bfloat16:
      return ValueCode::bfloat16;
    case ValueRule::coded_levels:
      return ValueCode::levels;
  }
  return ValueCode::as_is;
}

/// The first four bytes of a tile.
struct TileDescriptor {
  std::uint32_t count = 0;  // elements that are there; of code none: tiles that follow this one in the run
  IndexCode index = IndexCode::none;
  ValueCode value = ValueCode::as_is;
  /// Signs: runs less 1; levels: bits of a value, 2, 4 or 8; of index code none: kListed if the tiles have
  /// units; otherwise 0.
  std::uint32_t parameter = 0;

  /// 31      23 22      20 19     17 16       0
  /// [parameter][ValueCode][IndexCode][count    ]
  constexpr std::uint32_t encode() const {
    return count | static_cast<std::uint32_t>(index) << 17 | static_cast<std::uint32_t>(value) << 20 |
           parameter << 23;
  }
  /// Returns nothing if the codes do not exist.
  static constexpr std::optional<TileDescriptor> decode(std::uint32_t bits) {
    const std::uint32_t index = bits >> 17 & 7, value = bits >> 20 & 7, parameter = bits >> 23;
    if (index >= kIndexCodes || value >= kValueCodes) return std::nullopt;
    const auto code = static_cast<ValueCode>(value);
    const bool listed =
        static_cast<IndexCode>(index) == IndexCode::none && code == ValueCode::as_is && parameter == kListed;
    const bool possible = code == ValueCode::signs || (code == ValueCode::levels && is_bits(parameter)) ||
                          parameter == 0 || listed;
    if (!possible || (code == ValueCode::levels && parameter == 0)) return std::nullopt;
    return TileDescriptor{bits & 0x1ffff, static_cast<IndexCode>(index), code, parameter};
  }
  static constexpr bool is_bits(std::uint32_t bits) { return bits == 2 || bits == 4 || bits == 8; }
  /// The parameter of a run of tiles whose units are in one list.
  static constexpr std::uint32_t kListed = 1;
};

/// The most empty tiles that one descriptor stands for.
inline constexpr std::uint64_t kMostEmptyTiles = std::uint64_t{1} << 17;
/// The descriptor of so many empty tiles, which is all that there is of them. Precondition: 1 ..
/// kMostEmptyTiles.
constexpr TileDescriptor empty_tiles(std::uint64_t tiles) {
  return {.count = static_cast<std::uint32_t>(tiles - 1), .index = IndexCode::none};
}

/// The most tiles of one list, and the most units that these may have together, there or not, so that their
/// offsets from the first one fit 32 bits.
inline constexpr std::uint64_t kMostListTiles = std::uint64_t{1} << 17;
inline constexpr std::uint64_t kMostListUnits = std::uint64_t{1} << 31;
/// Why a list is refused that has the tile of a tensor's short last block, whose values do not fit there.
inline constexpr const char* kShortInList = "a list has a tile whose last block is shorter than the others";
/// Where the values of a list of tiles begin that begins `at` bytes into the payload, and where its offsets
/// begin behind so many bytes of values. Each offset has 32 bits.
constexpr std::uint64_t list_values_at(std::uint64_t at, std::uint64_t alignment) {
  return (at + 2 * sizeof(std::uint32_t) + alignment - 1) / alignment * alignment;
}
constexpr std::uint64_t list_offsets_at(std::uint64_t values_end) {
  return (values_end + sizeof(std::uint32_t) - 1) / sizeof(std::uint32_t) * sizeof(std::uint32_t);
}

/// The most runs of a tile of code signs.
inline constexpr std::size_t kMostSignRuns = 512;
constexpr std::uint64_t sign_bytes(std::uint64_t runs, std::uint64_t count) {
  return sizeof(float) * runs + sizeof(std::uint16_t) * (runs - 1) + (count + 7) / 8;
}

/// What the values of a tile of code levels begin with. Scales and values follow as in compress/qsgd.h.
struct LevelsHead {
  std::uint16_t bucket_less_1 = 0;
  std::uint16_t first_less_1 = 0;  // values of the tile's first bucket, which may have begun in another tile
};
static_assert(sizeof(LevelsHead) == 4);
/// Buckets of `count` values, or 0 if there cannot be such. Precondition: count > 0.
constexpr std::uint64_t level_buckets(const LevelsHead& head, std::uint64_t count) {
  const std::uint64_t bucket = head.bucket_less_1 + 1u, first = head.first_less_1 + 1u;
  return first > bucket || first > count ? 0 : 1 + (count - first + bucket - 1) / bucket;
}
constexpr std::uint64_t level_bytes(std::uint64_t buckets, std::uint64_t count, std::uint64_t bits) {
  return sizeof(LevelsHead) + sizeof(float) * buckets + (count * bits + 7) / 8;
}

/// Tiles begin at multiples of this within a payload.
inline constexpr std::uint64_t kTileAlignment = 4;
/// The most bytes of a tile beside its values and its index set: the descriptor, the length of the index set,
/// and what aligns values and the next tile.
inline constexpr std::uint64_t kTileOverhead = 16;

constexpr std::uint64_t aligned(std::uint64_t at, std::uint64_t alignment) {
  return (at + alignment - 1) / alignment * alignment;
}
/// Bytes of a coded value of a tensor of this type, in the codes where all values take the same.
constexpr std::uint64_t value_bytes(DataType type, ValueCode code) {
  return code == ValueCode::as_is ? element_bytes(type) : 2;
}
/// The values of a tile begin at a multiple of this within the payload.
constexpr std::uint64_t value_alignment(DataType type, ValueCode code) {
  return code == ValueCode::signs || code == ValueCode::levels ? sizeof(float) : value_bytes(type, code);
}
/// Where the values of a tile begin that begins `at` bytes into the payload.
constexpr std::uint64_t values_at(std::uint64_t at, std::uint64_t alignment) {
  return aligned(at + sizeof(std::uint32_t), alignment);
}
/// Whether 16 bits with the length of the index set stand before it, because it does not follow from the
/// number of elements.
constexpr bool has_length(IndexCode code) {
  return code == IndexCode::gaps || code == IndexCode::runs || code == IndexCode::rice;
}

/// A tile within a payload, or several in a row: empty ones, or a list. The spans lead into the payload, and
/// their lengths have been checked. What they say has not.
struct Tile {
  std::uint32_t count = 0;  // elements; of a list: units of all its tiles
  IndexCode index_code = IndexCode::none;
  ValueCode value_code = ValueCode::as_is;
  std::uint32_t parameter = 0;  // see TileDescriptor
  std::span<const std::byte> values, index;
  std::uint64_t tiles = 1;  // how many these are; more than one only if they are empty, or a list
  std::uint64_t end = 0;    // where the next tile begins in the payload
  /// Whether it is a list. Its index set has 32 bits for each unit: the number, counted from the first tile's
  /// first unit on.
  bool listed = false;

  /// The number of empty tiles from this one on.
  std::uint64_t empty_tiles() const { return count == 0 ? tiles : 0; }
};

/// Takes parts from a payload, one behind the other.
class TileParts {
 public:
  TileParts(std::span<const std::byte> payload, std::uint64_t at) : payload_(payload), at_(at) {}
  std::uint64_t at() const { return at_; }
  /// Returns nothing if fewer than `bytes` bytes of the payload are left.
  std::optional<std::span<const std::byte>> take(std::uint64_t bytes) {
    const auto part = peek(bytes);
    if (part) at_ += bytes;
    return part;
  }
  std::optional<std::span<const std::byte>> peek(std::uint64_t bytes) const {
    if (at_ > payload_.size() || payload_.size() - at_ < bytes) return std::nullopt;
    return payload_.subspan(at_, bytes);
  }

 private:
  std::span<const std::byte> payload_;
  std::uint64_t at_;
};

/// Returns how many bytes the coded values take that come next, or why there cannot be such. Precondition:
/// the tile has any.
inline std::uint64_t coded_bytes(const TileDescriptor& tile, DataType type, const TileParts& parts,
                                 const char*& wrong) {
  switch (tile.value) {
    case ValueCode::as_is:
    case ValueCode::float16:
    case ValueCode::bfloat16:
      return tile.count * value_bytes(type, tile.value);
    case ValueCode::signs:
      if (tile.parameter >= tile.count) wrong = "a tile has more runs than values";
      return sign_bytes(tile.parameter + 1, tile.count);
    case ValueCode::levels:
      break;
  }
  LevelsHead head;
  const auto bytes = parts.peek(sizeof head);
  if (!bytes) {
    wrong = "a tile is longer than its message";
    return 0;
  }
  std::memcpy(&head, bytes->data(), sizeof head);
  const std::uint64_t buckets = level_buckets(head, tile.count);
  if (buckets == 0) wrong = "a tile has a bucket that cannot be";
  return level_bytes(buckets, tile.count, tile.parameter);
}

/// Reads the rest of a list of so many tiles.
inline std::optional<Tile> read_list(std::span<const std::byte> payload, std::uint64_t at, DataType type,
                                     const TileShape& shape, std::uint64_t tiles, const char*& wrong) {
  const auto refuse = [&](const char* why) {
    wrong = why;
    return std::nullopt;
  };
  const std::uint64_t each = element_bytes(type);
  if (tiles * shape.units() > kMostListUnits)
    return refuse("a list has more tiles than its offsets can tell apart");
  Tile list;
  list.tiles = tiles;
  list.listed = true;
  TileParts head(payload, at + sizeof(std::uint32_t));
  const auto count = head.take(sizeof list.count);
  if (!count) return refuse("a tile is longer than its message");
  std::memcpy(&list.count, count->data(), sizeof list.count);
  if (list.count == 0 || list.count > tiles * kMostTileElements)
    return refuse("a tile counts elements that its code cannot have");
  TileParts parts(payload, list_values_at(at, each));
  const auto values = parts.take(list.count * shape.unit * each);
  if (!values) return refuse("a tile is longer than its message");
  TileParts behind(payload, list_offsets_at(parts.at()));
  const auto index = behind.take(list.count * sizeof(std::uint32_t));
  if (!index) return refuse("a tile is longer than its message");
  list.values = *values;
  list.index = *index;
  list.end = behind.at();
  return list;
}

/// Reads the tile of this shape, or the run of tiles, that begins `at` bytes into the payload. Returns
/// nothing if the bytes cannot be such a tile; `wrong` then says why, as a part of a sentence.
inline std::optional<Tile> read_tile(std::span<const std::byte> payload, std::uint64_t at, DataType type,
                                     const TileShape& shape, const char*& wrong) {
  const auto refuse = [&](const char* why) {
    wrong = why;
    return std::nullopt;
  };
  std::uint32_t bits = 0;
  if (at > payload.size() || payload.size() - at < sizeof bits) return refuse("a tile is missing");
  std::memcpy(&bits, payload.data() + at, sizeof bits);
  const auto descriptor = TileDescriptor::decode(bits);
  if (!descriptor) return refuse("a tile has a code that does not exist");
  const auto [number, index_code, value_code, parameter] = *descriptor;
  if (index_code == IndexCode::none && parameter == TileDescriptor::kListed)
    return read_list(payload, at, type, shape, std::uint64_t{number} + 1, wrong);
  const std::uint32_t count = index_code == IndexCode::none ? 0 : number;
  const bool plausible = index_code == IndexCode::none  ? true
                         : index_code == IndexCode::all ? count == shape.elements
                                                        : count > 0 && count <= shape.elements;
  if (!plausible) return refuse("a tile counts elements that its code cannot have");
  if (!shape.can_hold(count)) return refuse("a tile has parts of blocks");
  if (value_code != ValueCode::as_is && type != DataType::float32)
    return refuse("a tile has narrower floats than its tensor");
  Tile tile{.count = count,
            .index_code = index_code,
            .value_code = value_code,
            .parameter = parameter,
            .values = {},
            .index = {}};
  if (count == 0) {
    if (parameter != 0) return refuse("a tile has a code that does not exist");
    tile.tiles = std::uint64_t{number} + 1;
    tile.end = std::min(aligned(at + sizeof bits, kTileAlignment), payload.size());
    return tile;
  }
  TileParts parts(payload, values_at(at, value_alignment(type, value_code)));
  const char* wrong_values = nullptr;
  const std::uint64_t bytes = coded_bytes(*descriptor, type, parts, wrong_values);
  if (wrong_values != nullptr) return refuse(wrong_values);
  const auto values = parts.take(bytes);
  if (!values) return refuse("a tile is longer than its message");
  tile.values = *values;
  std::uint64_t index_bytes = index_code == IndexCode::bitmap    ? (shape.units() + 63) / 64 * 8
                              : index_code == IndexCode::offsets ? 2 * shape.units_of(count)
                                                                 : 0;
  if (has_length(index_code)) {
    std::uint16_t length = 0;
    const auto field = parts.take(sizeof length);
    if (!field) return refuse("a tile is longer than its message");
    std::memcpy(&length, field->data(), sizeof length);
    index_bytes = length;
  }
  const auto index = parts.take(index_bytes);
  if (!index) return refuse("a tile is longer than its message");
  tile.index = *index;
  // The last tile of a payload need not be filled up.
  tile.end = std::min(aligned(parts.at(), kTileAlignment), payload.size());
  return tile;
}

}  // namespace nzcl::wire

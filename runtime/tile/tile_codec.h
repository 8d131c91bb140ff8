// Chooses how a tile is coded, and translates between its bytes on the wire and the forms that kernels read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "nzcl/types.h"
#include "runtime/tile/tile_part.h"
#include "runtime/tile/value_codec.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// What decides which code an index set gets. Codes shape what is sent, and never the results.
struct CodeRules {
  /// If it is set, every tile that has some of its units but not all gets this code, unless a bitmap is
  /// shorter.
  std::optional<wire::IndexCode> forced;
  /// true: the shortest code is looked for, however long that takes, because bytes cost more, as over links.
  /// false: only codes that are found and read fast are considered.
  bool shortest = false;
  /// Whether values are coded in so few bits that the index set is most of a tile. Then the shortest code is
  /// looked for too, and among more.
  bool coded = false;
};

/// A code for a tile's index set, and how many bytes the set takes in it.
struct CodeChoice {
  wire::IndexCode code = wire::IndexCode::none;
  std::uint64_t index_bytes = 0;  // of the index set, without its length field
};

/// Chooses the code of a tile's index set. The set never takes more bytes than as a bitmap. IndexCode::all is
/// chosen only for tiles that have all units, because a result must say exactly which units any rank
/// contributes. It may write to `scratch`. The part may lie in there too, and stays as it is. Here and below,
/// `units` are those of the whole tile.
CodeChoice choose_code(const TilePart& part, std::size_t units, const CodeRules& rules, TileScratch& scratch);

/// A tile as it travels.
struct CodedTile {
  TilePart part;          // its index set; the values may lie anywhere
  std::size_t units = 0;  // of the whole tile
  CodeChoice index;
  CodedValues values;
  std::uint64_t alignment = 1;  // of the values in the payload

  /// Where the values begin within a tile that begins `at` bytes into the payload.
  std::uint64_t values_at(std::uint64_t at) const { return wire::values_at(at, alignment) - at; }
  /// The size of such a tile, with the bytes up to where the next one may begin.
  std::uint64_t bytes(std::uint64_t at) const;
  /// The most that this can be, wherever it begins.
  std::uint64_t most_bytes() const { return wire::kTileOverhead + values.bytes + index.index_bytes; }
};

/// How the values of a tensor of this type travel in a code in which all take as many bytes.
constexpr CodedValues values_in(wire::ValueCode code, DataType type, std::size_t count) {
  return {.code = code, .parameter = 0, .bytes = count * wire::value_bytes(type, code)};
}
/// Chooses how a tile travels whose values, of a tensor of this type, are coded like this.
CodedTile code_tile(const TilePart& part, std::size_t units, DataType type, const CodedValues& values,
                    const CodeRules& rules, TileScratch& scratch);

/// Writes a tile that begins `at` bytes into the payload to `to`: all of it but its values. What stands
/// behind these goes to `behind`, if they are not to stand in the same memory. `scratch` is the one that was
/// given to code_tile().
void write_tile(const CodedTile& tile, std::uint64_t at, TileScratch& scratch, std::byte* to,
                std::byte* behind = nullptr);

/// Writes so many empty tiles, 1 .. wire::kMostEmptyTiles, which take as many bytes as their descriptor.
void write_empty_tiles(std::byte* to, std::uint64_t tiles);
inline constexpr std::uint64_t kEmptyTilesBytes = sizeof(std::uint32_t);

/// Decodes a tile's index set into `scratch`. Coded values are decoded into `scratch` too; values that are as
/// they are stay in the payload. If `bitmap` is not empty, it has words_for(units) words and takes an
/// index set that is decoded to a bitmap, instead of the scratch. `drawn` is what this rank has drawn of the
/// tile, if the tile says that this is its index set; it may lie in the scratch. Returns nothing if the bytes
/// are not the code of an index set with as many elements as the tile counts, or not that of its values.
std::optional<TilePart> read_part(const wire::Tile& tile, const wire::TileShape& shape, TileScratch& scratch,
                                  std::span<std::uint64_t> bitmap = {},
                                  std::span<const std::uint16_t> drawn = {});

/// Returns the part's index set as a bitmap. It is written to `to`, unless the part has it as a bitmap
/// already. The part must not have Form::none.
std::span<const std::uint64_t> as_bitmap(const TilePart& part, std::size_t units,
                                         std::span<std::uint64_t> to);
/// The same as a bitmap of single elements, whatever the units are. It may use the scratch's memory for
/// bitmaps of either kind.
std::span<const std::uint64_t> element_bitmap(const TilePart& part, const wire::TileShape& shape,
                                              TileScratch& scratch);
/// Returns the part's index set as offsets. They are written to `to`, unless the part has them already.
std::span<const std::uint16_t> as_offsets(const TilePart& part, std::span<std::uint16_t> to);

}  // namespace nzcl::engine

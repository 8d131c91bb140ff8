// What this rank contributes to a tiled operation, tile by tile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/kernels/list_sum.h"
#include "runtime/operation/stream_units.h"
#include "runtime/operation/tile_source.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/tile/tile_part.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// A caller's list of values and indices. The indices ascend, without duplicates.
struct ElementStream {
  const std::byte* values = nullptr;
  /// The registered memory that the values lie in. nullptr if they lie in `own_values`, because the caller's
  /// are in another order or have duplicates.
  const verbs::MemoryRegion* region = nullptr;
  std::vector<std::byte> own_values;
  StreamUnits units;
};

/// Where the input of a tiled operation comes from. One thread at a time asks for a tile, but different
/// threads may ask for different tiles at the same time.
class TileInput {
 public:
  /// A dense tensor, of which the units that are not zero are sent.
  TileInput(const std::byte* dense, const verbs::MemoryRegion* region)
      : kind_(Kind::scan), dense_(dense), region_(region) {}

  /// Each of these replaces the scan by what the caller says this rank holds: all elements, none, those of
  /// the blocks that are set in `bits` (one bit for each block of the tensor), a stream, or what a
  /// source makes.
  void set_all() { kind_ = Kind::all; }
  void set_none() { kind_ = Kind::none; }
  void set_bitmap(std::span<const std::uint64_t> bits) {
    kind_ = Kind::bitmap;
    bits_.assign(bits.begin(), bits.end());
  }
  void set_stream(ElementStream stream) {
    kind_ = Kind::stream;
    stream_ = std::move(stream);
  }
  void set_source(std::shared_ptr<TileSource> source) {
    kind_ = Kind::source;
    source_ = std::move(source);
  }

  /// Whether the tiles of a slice can be asked for now. They always can, unless the input comes from a source
  /// that has not made the slice yet.
  bool ready(const SliceLayout& layout, std::uint64_t slice) const;
  /// Has the source make a slice, if there is a source.
  void make(const SliceLayout& layout, std::uint64_t slice) const;
  /// Returns what this rank holds of the tile. Index sets are written to `scratch`, and values to `values`,
  /// unless they lie packed in the caller's memory. Returns nothing if `values` has not enough room for them.
  std::optional<TilePart> part(const SliceLayout& layout, std::uint64_t tile, TileScratch& scratch,
                               std::span<std::byte> values) const;
  /// Returns how many tiles from this one on, up to `most`, are known to be empty without looking at each.
  std::uint64_t empty_tiles(std::uint64_t tile, std::uint64_t most) const;
  /// Returns how many tiles from this one on, up to `most`, are parts of a list in memory. The units of so
  /// many are counted and listed without looking at each tile.
  std::uint64_t listed_tiles(std::uint64_t most) const {
    return kind_ == Kind::stream || kind_ == Kind::none ? most : 0;
  }
  std::size_t units_before(std::uint64_t tile) const {
    return kind_ == Kind::none ? 0 : stream_.units.before(tile);
  }
  std::size_t units_in(std::uint64_t tile, std::uint64_t tiles) const {
    return units_before(tile + tiles) - units_before(tile);
  }
  /// The units of these tiles, counted from the first one on. Their offsets are written to `to`.
  ElementList list(const SliceLayout& layout, std::uint64_t tile, std::uint64_t tiles,
                   std::uint32_t* to) const {
    const std::size_t place = units_before(tile);
    return list(layout, tile, tiles, {place, units_before(tile + tiles) - place}, to);
  }
  /// The same for a caller that knows which units these are.
  ElementList list(const SliceLayout& layout, std::uint64_t tile, std::uint64_t tiles,
                   StreamUnits::Range units, std::uint32_t* to) const;
  /// The same where the units are kept, if they are kept so that no list has to be made. Its offsets are
  /// counted from list_base() on.
  ElementList kept_list(const SliceLayout& layout, std::uint64_t tile, std::uint64_t tiles,
                        std::uint32_t* to) const;
  std::uint32_t list_base(const SliceLayout& layout, std::uint64_t tile) const {
    return is_kept_whole() ? static_cast<std::uint32_t>(tile * layout.tile_units()) : 0;
  }
  /// Returns the index set of a tile that was sent with code drawn; empty for all others.
  std::span<const std::uint16_t> drawn(const SliceLayout& layout, std::uint64_t number,
                                       const wire::Tile& tile, TileScratch& scratch) const;
  /// The registered memory that a part's values lie in, if they lie packed in the caller's memory.
  const verbs::MemoryRegion* region() const;
  /// Returns true if a part is found without reading all of the tile's elements.
  bool needs_no_scan() const { return kind_ == Kind::stream || kind_ == Kind::none || kind_ == Kind::source; }

 private:
  enum class Kind : std::uint8_t { scan, all, none, bitmap, stream, source };
  bool is_kept_whole() const { return kind_ == Kind::stream && stream_.units.whole() != nullptr; }
  const std::byte* values_from(const SliceLayout& layout, std::size_t place) const {
    return stream_.values + place * layout.unit_elements() * layout.element_bytes();
  }
  static TilePart whole(const wire::TileShape& shape, const std::byte* values);
  TilePart of_stream(const SliceLayout& layout, std::uint64_t tile, TileScratch& scratch) const;
  std::optional<TilePart> packed(const SliceLayout& layout, std::uint64_t tile, TileScratch& scratch,
                                 std::span<std::byte> values) const;

  Kind kind_;
  const std::byte* dense_ = nullptr;
  const verbs::MemoryRegion* region_ = nullptr;
  std::vector<std::uint64_t> bits_;
  ElementStream stream_;
  std::shared_ptr<TileSource> source_;
};

}  // namespace nzcl::engine

// What this rank contributes to a tiled operation, tile by tile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/plan/slice_layout.h"
#include "runtime/tile/tile_part.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// A caller's list of values and indices, cut into tiles. Ascending, without duplicates.
struct ElementStream {
  const std::byte* values = nullptr;
  /// The registered memory that the values lie in. None: they are in `own_values`, because the caller's are
  /// in another order or have duplicates.
  const verbs::MemoryRegion* region = nullptr;
  std::vector<std::byte> own_values;
  std::unique_ptr<std::uint16_t[]> offsets;  // of each element in its tile
  /// By tile of the tensor, and one more: which of the elements is its first.
  std::vector<std::uint64_t> first;
};

/// Where a tiled operation's input comes from. Exactly one thread at a time asks for a tile; different
/// threads may ask for different ones.
class TileInput {
 public:
  /// A dense tensor, of which the elements that are not zero are sent.
  TileInput(const std::byte* dense, const verbs::MemoryRegion* region)
      : kind_(Kind::scan), dense_(dense), region_(region) {}

  /// Replace the scan by what the caller says: all elements, none, those of the blocks that are set in `bits`
  /// (one bit for each block of the tensor), or a stream.
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

  /// Returns what this rank holds of the tile. Index sets are written to `scratch`, and values to `values`,
  /// unless they lie packed in the caller's memory. Returns nothing if `values` has not enough room for them.
  std::optional<TilePart> part(const SliceLayout& layout, std::uint64_t tile, TileScratch& scratch,
                               std::span<std::byte> values) const;
  /// The registered memory that a part's values lie in, if they lie packed in the caller's memory.
  const verbs::MemoryRegion* region() const;
  /// Returns true if a part is found without reading all of the tile's elements.
  bool needs_no_scan() const { return kind_ == Kind::stream || kind_ == Kind::none; }

 private:
  enum class Kind : std::uint8_t { scan, all, none, bitmap, stream };
  Kind kind_;
  const std::byte* dense_ = nullptr;
  const verbs::MemoryRegion* region_ = nullptr;
  std::vector<std::uint64_t> bits_;
  ElementStream stream_;
};

}  // namespace nzcl::engine

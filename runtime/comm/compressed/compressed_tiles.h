// Gives a compressed allreduce its tiles, slice by slice as they are compressed.
#pragma once

#include <memory>

#include "nzcl/compress.h"
#include "runtime/compress/slice_source.h"
#include "runtime/operation/tile_source.h"

namespace nzcl::comm {

/// Cuts a step's slices into tiles. Slices are larger than tiles, and both have powers of two elements, so
/// that every tile lies in one slice.
class CompressedTiles : public engine::TileSource {
 public:
  /// `owners_draw`: whether all owners of slices are ranks, which draw what others do.
  CompressedTiles(std::shared_ptr<compress::SliceSource> step, const Compressor& compressor, bool owners_draw)
      : step_(std::move(step)),
        values_(compressor.values),
        draws_(owners_draw && std::holds_alternative<RandomK>(compressor.selection)) {}

  void make(std::uint64_t begin, std::uint64_t end) override;
  bool ready(std::uint64_t begin, std::uint64_t end) const override;
  engine::TilePart part(std::uint64_t begin, std::uint64_t end, engine::TileScratch& scratch) const override;
  std::span<const std::uint16_t> drawn(std::uint64_t begin, std::uint64_t end,
                                       engine::TileScratch& scratch) const override;

 private:
  /// Which values of a slice, and of which offsets, belong to the elements [begin, end).
  struct Range {
    std::size_t first = 0, last = 0;
  };
  static Range range_of(std::span<const std::uint16_t> offsets, std::uint64_t begin, std::uint64_t end);
  engine::ValueCoding coding_of(std::span<const float> scales, std::size_t first, std::size_t last) const;

  const std::shared_ptr<compress::SliceSource> step_;
  const ValueCodec values_;
  const bool draws_;
};

}  // namespace nzcl::comm

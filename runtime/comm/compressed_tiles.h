// Gives a compressed allreduce its tiles, slice by slice as they are compressed.
#pragma once

#include <memory>

#include "nzcl/compress.h"
#include "runtime/compress/compression_step.h"
#include "runtime/operation/tile_source.h"

namespace nzcl::comm {

/// Cuts a step's slices into tiles. Slices are larger than tiles, and both have powers of two elements, so
/// that every tile lies in one slice.
class CompressedTiles : public engine::TileSource {
 public:
  CompressedTiles(std::shared_ptr<compress::CompressionStep> step, const ValueCodec& values)
      : step_(std::move(step)), values_(values) {}

  void make(std::uint64_t begin, std::uint64_t end) override;
  bool ready(std::uint64_t begin, std::uint64_t end) const override;
  engine::TilePart part(std::uint64_t begin, std::uint64_t end, engine::TileScratch& scratch) const override;

 private:
  engine::ValueCoding coding_of(std::span<const float> scales, std::size_t first, std::size_t last) const;

  const std::shared_ptr<compress::CompressionStep> step_;
  const ValueCodec values_;
};

}  // namespace nzcl::comm

// What one rank holds of a tile, or what its sum is, in the form in which kernels read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/kernels/elements.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

static_assert(wire::kMostTileElements == kMostSliceElements);

/// How float32 values can be coded without loss, as far as whoever made them knows it.
struct ValueCoding {
  wire::ValueCode code = wire::ValueCode::as_is;
  // Of code levels:
  int bits = 0;                        // of a value: 2, 4 or 8
  std::size_t bucket = 0;              // values with a common scale
  std::size_t skipped = 0;             // values of the first bucket that lie before this part
  std::span<const float> scales = {};  // of the buckets, from the first one on that has a value here
};

/// The units of a tile that are there (wire::TileShape), and their values. A view: it owns nothing.
struct TilePart {
  enum class Form : std::uint8_t { none, all, bitmap, offsets };
  Form form = Form::none;
  std::size_t units = 0;                   // that are there
  std::size_t count = 0;                   // elements that are there
  std::span<const std::uint64_t> bitmap;   // Form::bitmap: words_for(units of the tile) words
  std::span<const std::uint16_t> offsets;  // Form::offsets: ascending numbers of units
  const std::byte* values = nullptr;       // packed, in the tensor's type
  ValueCoding coding = {};
  bool drawn = false;  // whether the elements are those that all ranks draw
};

/// Memory for the index set and the values of one tile, large enough for tiles of any tensor. Pages that are
/// never touched cost nothing. One thread at a time may use it.
class TileScratch {
 public:
  /// `most_value_bytes` is the largest size that the values of a tile can have.
  explicit TileScratch(std::size_t most_value_bytes)
      : bitmap_(new std::uint64_t[kMostSliceElements / 64]),
        offsets_(new std::uint16_t[kMostSliceElements]),
        blocks_(new std::uint64_t[kMostSliceElements / 64]),
        elements_(new std::uint64_t[kMostSliceElements / 64]),
        list_(new std::uint32_t[most_value_bytes / sizeof(std::uint32_t)]),
        values_(new std::byte[most_value_bytes]),
        value_bytes_(most_value_bytes) {}

  std::span<std::uint64_t> bitmap(std::size_t words) { return {bitmap_.get(), words}; }
  std::span<std::uint16_t> offsets(std::size_t count = kMostSliceElements) { return {offsets_.get(), count}; }
  /// Memory of TileBlocks, for the blocks of a tile as bits.
  std::span<std::uint64_t> blocks(std::size_t words) { return {blocks_.get(), words}; }
  /// Memory for an index set of whole blocks as one of elements.
  std::span<std::uint64_t> elements(std::size_t words) { return {elements_.get(), words}; }
  /// Memory for the offsets of as many tiles in a row as fit a message (tile_list.h).
  std::span<std::uint32_t> list() { return {list_.get(), value_bytes_ / sizeof(std::uint32_t)}; }
  std::span<std::byte> values() { return {values_.get(), value_bytes_}; }

 private:
  std::unique_ptr<std::uint64_t[]> bitmap_;
  std::unique_ptr<std::uint16_t[]> offsets_;
  std::unique_ptr<std::uint64_t[]> blocks_;
  std::unique_ptr<std::uint64_t[]> elements_;
  std::unique_ptr<std::uint32_t[]> list_;
  std::unique_ptr<std::byte[]> values_;
  std::size_t value_bytes_;
};

}  // namespace nzcl::engine

// What makes a contribution while its operation runs.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/tile/tile_part.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Gives a tiled operation its input piece by piece, ahead of the network: a compressor, for example. Any
/// thread may call any of these at any time, until the last owner of the source is gone.
class TileSource {
 public:
  virtual ~TileSource() = default;
  /// Makes the elements [begin, end), except for those that have been made or are being made by another
  /// thread.
  virtual void make(std::uint64_t begin, std::uint64_t end) = 0;
  /// Whether all elements in [begin, end) have been made. It never waits.
  virtual bool ready(std::uint64_t begin, std::uint64_t end) const = 0;
  /// Returns which of the elements [begin, end) are there, a tile of the tensor, and their values. The part
  /// may lie in the scratch or in the source. Precondition: ready().
  virtual TilePart part(std::uint64_t begin, std::uint64_t end, TileScratch& scratch) const = 0;
  /// Returns those of the elements [begin, end) that all ranks draw at random, in the scratch. Empty if they
  /// draw none, or if these elements are not ready.
  virtual std::span<const std::uint16_t> drawn(std::uint64_t begin, std::uint64_t end,
                                               TileScratch& scratch) const = 0;
  /// The registered memory in which the values of all parts lie; nullptr if there is none. It stays until the
  /// operation is over.
  virtual const verbs::MemoryRegion* region() const { return nullptr; }
};

}  // namespace nzcl::engine

// What codes the results of a compressed operation at their owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::engine {

/// The sums of the elements of a tile that any rank contributes.
struct SummedTile {
  std::uint64_t begin = 0;                 // the tile's first element in the tensor
  std::span<const std::uint16_t> offsets;  // of the elements in the tile, ascending
  std::span<float> sums;                   // theirs; arbitrary after they have been coded
  std::span<float> spare;                  // as many, to work in
};

/// Codes sums coarsely, and keeps what that loses for the next operation on the same tensor. The bytes that
/// it writes go to every rank, its own included, so all have the same bits. Several lanes may code different
/// tiles at the same time.
class ResultCoder {
 public:
  virtual ~ResultCoder() = default;
  /// The parameter in the descriptors of its tiles (wire::TileDescriptor).
  virtual std::uint32_t parameter() const = 0;
  /// How many bytes `count` coded values take. Precondition: count > 0.
  virtual std::uint64_t bytes(std::size_t count) const = 0;
  /// Writes bytes(tile.sums.size()) bytes.
  virtual void code(const SummedTile& tile, std::byte* to) = 0;
};

}  // namespace nzcl::engine

// What the worker's half needs to know of a tensor: its pieces.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/switch/packet.h"

namespace nzcl::engine::slot_pool {

/// A piece that a rank holds, and the exponent of its values.
struct Ahead {
  std::uint32_t piece = kNoPiece;
  std::uint8_t exponent = 0;
};

/// What fill() has written.
struct Filled {
  std::uint32_t values = 0;
  std::uint64_t blocks = 0;  // bit i: block i of the piece is not zero, and its values are there
  bool clamped = false;
};

/// One rank's part of one operation. The worker's half calls it on the thread that drives it. Its functions
/// do not allocate, lock or throw.
class Tensor {
 public:
  virtual ~Tensor() = default;
  virtual std::uint32_t pieces() const = 0;
  /// How many values a packet has that has these blocks of the piece; if pieces are sent whole, the same for
  /// any blocks. 0 if the piece has no such blocks.
  virtual std::uint32_t values(std::uint32_t piece, std::uint64_t blocks) const = 0;
  /// A digest of everything about the operation that must be equal on all ranks.
  virtual std::uint32_t shape() const = 0;
  /// Finds the first piece that this rank holds among `from`, `from + step`, and so on. Returns false if that
  /// is not known now, because another thread is looking through the tensor.
  virtual bool look_ahead(std::uint32_t from, std::uint32_t step, Ahead& ahead) = 0;
  /// Writes this rank's values of the piece: of the blocks that it holds, or, if pieces are sent whole, of
  /// all.
  virtual Filled fill(std::uint32_t piece, std::uint8_t exponent, std::span<std::int32_t> to) = 0;
  /// Takes the sum of a piece: of these blocks, or, if pieces are sent whole, of all. Precondition: values()
  /// of the blocks is not 0, and equals the number of sums.
  virtual void store(std::uint32_t piece, std::uint8_t exponent, std::uint64_t blocks,
                     std::span<const std::int32_t> sums) = 0;
  /// Says that this slot is done with all pieces before `position`, which is pieces() in the end. Called for
  /// each slot at least once.
  virtual void advanced(std::uint32_t slot, std::uint32_t position) = 0;
};

}  // namespace nzcl::engine::slot_pool

// Tensors for simulations of many ranks: made up where they are needed and checked where they arrive, because
// those of a thousand ranks would not fit into memory.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/switch/tensor.h"

namespace nzcl::simulation {

enum class Overlap { random, all };  // each rank draws its blocks by itself, or all have the same

/// What the tensors of all ranks have in common, and their plain sum.
class MadeSum {
 public:
  struct Shape {
    int workers = 1;
    std::uint32_t pieces = 1, blocks_per_piece = 1, block_elements = 256;
    double density = 1;  // share of the blocks that a rank holds
    Overlap overlap = Overlap::all;
    std::uint64_t seed = 1;
  };
  explicit MadeSum(const Shape& shape);

  const Shape& shape() const { return shape_; }
  std::uint32_t piece_elements() const { return shape_.blocks_per_piece * shape_.block_elements; }
  std::uint64_t bytes() const {
    return std::uint64_t{shape_.pieces} * piece_elements() * sizeof(std::int32_t);
  }
  /// Of the piece: which blocks a rank holds, and which any rank does.
  std::uint64_t held(int rank, std::uint32_t piece) const;
  std::uint64_t held_by_any(std::uint32_t piece) const { return held_[piece]; }
  std::uint64_t blocks_held_by_any() const { return blocks_held_; }
  std::uint64_t pieces_held_by_any() const;
  /// Calls take(i, value) for the elements of one block that a rank holds.
  template <typename Take>
  void each_value(int rank, std::uint32_t piece, std::uint32_t block, Take take) const {
    const std::uint64_t drawn = draw(rank, piece * std::uint64_t{shape_.blocks_per_piece} + block, kValues);
    const auto first = static_cast<std::uint32_t>(drawn), step = static_cast<std::uint32_t>(drawn >> 32) | 1;
    for (std::uint32_t i = 0; i < shape_.block_elements; ++i) take(i, first + i * step);
  }
  std::span<const std::int32_t> sums(std::uint32_t piece) const {
    return std::span(sums_).subspan(std::size_t{piece} * piece_elements(), piece_elements());
  }

 private:
  static constexpr std::uint64_t kValues = 1, kHolds = 2;  // what a number is drawn for
  std::uint64_t draw(int rank, std::uint64_t block, std::uint64_t what) const;
  void add(int rank, std::uint32_t piece);

  const Shape shape_;
  const std::uint64_t holds_below_;  // a rank holds a block if the number drawn for it is below this
  std::vector<std::uint64_t> held_;  // of each piece
  std::vector<std::int32_t> sums_;
  std::uint64_t blocks_held_ = 0;
};

/// One rank's tensor. `sum` must outlive it.
class MadeTensor final : public engine::slot_pool::Tensor {
 public:
  MadeTensor(const MadeSum& sum, int rank, std::uint32_t slots) : sum_(sum), rank_(rank), slots_(slots) {}

  std::uint32_t pieces() const override { return sum_.shape().pieces; }
  std::uint32_t values(std::uint32_t piece, std::uint64_t blocks) const override;
  std::uint32_t shape() const override { return pieces(); }
  bool look_ahead(std::uint32_t from, std::uint32_t step, engine::slot_pool::Ahead& ahead) override;
  engine::slot_pool::Filled fill(std::uint32_t piece, std::uint8_t exponent,
                                 std::span<std::int32_t> to) override;
  void store(std::uint32_t piece, std::uint8_t exponent, std::uint64_t blocks,
             std::span<const std::int32_t> sums) override;
  void advanced(std::uint32_t, std::uint32_t position) override {
    slots_done_ += position == pieces() ? 1 : 0;
  }

  /// How many elements of this rank's result so far differ from the plain sum.
  std::uint64_t wrong() const { return wrong_; }
  /// Whether all blocks of the sum have come, each once, and all slots are through.
  bool complete() const { return slots_done_ == slots_ && blocks_stored_ == sum_.blocks_held_by_any(); }

 private:
  const MadeSum& sum_;
  const int rank_;
  const std::uint32_t slots_;
  std::uint32_t slots_done_ = 0;
  std::uint64_t blocks_stored_ = 0, wrong_ = 0;
};

}  // namespace nzcl::simulation

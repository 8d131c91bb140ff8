// A tensor in memory for the tests of the switch exchange.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "runtime/switch/packet.h"
#include "runtime/switch/tensor.h"

namespace nzcl::engine::slot_pool::test {

/// int32 values in pieces of a fixed size, the last of which may be shorter, and each of some blocks. A block
/// is held if one of its values is not zero, and a piece if one of its blocks is.
class MemoryTensor final : public Tensor {
 public:
  struct Cut {
    std::uint32_t piece = 1, block = 1;  // elements
    bool whole = false;                  // Pool::zeros
  };
  MemoryTensor(std::vector<std::int32_t> values, const Cut& cut, std::uint32_t slots,
               std::uint32_t shape = 77)
      : input(std::move(values)), output(input.size()), cut_(cut), shape_(shape), positions_(slots) {}

  std::uint32_t pieces() const override {
    return static_cast<std::uint32_t>((input.size() + cut_.piece - 1) / cut_.piece);
  }
  std::uint32_t values(std::uint32_t piece, std::uint64_t blocks) const override {
    if (static_cast<std::uint32_t>(std::bit_width(blocks)) > blocks_in(piece)) return 0;
    if (cut_.whole) return elements(piece);
    return static_cast<std::uint32_t>(std::popcount(blocks)) * std::min(cut_.block, elements(piece));
  }
  std::uint32_t shape() const override { return shape_; }
  bool look_ahead(std::uint32_t from, std::uint32_t step, Ahead& ahead) override {
    if (blind > 0) return --blind, false;
    ahead = {};
    for (std::uint64_t p = from; p < pieces(); p += step) {
      const auto piece = static_cast<std::uint32_t>(p);
      if (held(piece) == 0) continue;
      ahead = {piece, static_cast<std::uint8_t>(piece % 200 + exponent_shift)};
      break;
    }
    return true;
  }
  Filled fill(std::uint32_t piece, std::uint8_t exponent, std::span<std::int32_t> to) override {
    EXPECT_GE(exponent, piece % 200 + exponent_shift)
        << "the exponent is the largest of all ranks that hold it";
    const Filled filled{values(piece, held(piece)), held(piece), clamps};
    std::ranges::fill(to.first(filled.values), 0);
    each_block(piece, filled.blocks, [&](std::size_t at, std::size_t in_tensor, std::size_t count) {
      std::copy_n(&input[in_tensor], count, &to[at]);
    });
    return filled;
  }
  void store(std::uint32_t piece, std::uint8_t exponent, std::uint64_t blocks,
             std::span<const std::int32_t> sums) override {
    EXPECT_EQ(sums.size(), values(piece, blocks));
    EXPECT_EQ(held(piece) & ~blocks, 0u) << "blocks of this rank are in the sum";
    exponents.push_back(exponent);
    each_block(piece, blocks, [&](std::size_t at, std::size_t in_tensor, std::size_t count) {
      std::copy_n(&sums[at], count, &output[in_tensor]);
    });
    ++stored;
  }
  void advanced(std::uint32_t slot, std::uint32_t position) override {
    EXPECT_GE(position, positions_.at(slot));
    slots_done += position == pieces() ? 1 : 0;
    positions_.at(slot) = position;
  }
  bool done() const { return slots_done == positions_.size(); }

  const std::vector<std::int32_t> input;
  std::vector<std::int32_t> output;
  std::vector<std::uint8_t> exponents;
  std::size_t stored = 0, slots_done = 0;
  int blind = 0;                    // look_ahead() says this many times that it does not know
  std::uint8_t exponent_shift = 0;  // what this rank adds to its exponents
  bool clamps = false;

 private:
  std::uint32_t elements(std::uint32_t piece) const {
    return std::min<std::uint32_t>(cut_.piece, static_cast<std::uint32_t>(input.size()) - piece * cut_.piece);
  }
  std::uint32_t blocks_in(std::uint32_t piece) const {
    return (elements(piece) + cut_.block - 1) / cut_.block;
  }
  std::uint32_t in_block(std::uint32_t piece, std::uint32_t block) const {
    return std::min(cut_.block, elements(piece) - block * cut_.block);
  }
  std::uint64_t held(std::uint32_t piece) const {
    std::uint64_t blocks = 0;
    for (std::uint32_t b = 0; b < blocks_in(piece); ++b) {
      const std::span block(&input[piece * cut_.piece + b * cut_.block], in_block(piece, b));
      if (std::ranges::any_of(block, [](std::int32_t value) { return value != 0; }))
        blocks |= std::uint64_t{1} << b;
    }
    return blocks;
  }
  /// Calls with(place in the packet, place in the tensor, elements) for these blocks of the piece.
  template <typename With>
  void each_block(std::uint32_t piece, std::uint64_t blocks, With with) const {
    std::size_t at = 0;
    for (std::uint32_t b = 0; b < blocks_in(piece); ++b) {
      const bool there = blocks >> b & 1;
      if (there) with(at, piece * cut_.piece + b * cut_.block, in_block(piece, b));
      if (there || cut_.whole) at += std::min(cut_.block, elements(piece));
    }
  }

  const Cut cut_;
  const std::uint32_t shape_;
  std::vector<std::uint32_t> positions_;
};

inline const Job kJob{0x1234, {5, 6}};

/// Values of which a share of the runs of `run` elements, chosen by the seed, is not zero.
inline std::vector<std::int32_t> random_values(std::size_t count, std::uint32_t run, double density,
                                               unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> values(count);
  for (std::size_t begin = 0; begin < count; begin += run) {
    if (std::uniform_real_distribution<>(0, 1)(random) >= density) continue;
    for (std::size_t i = begin; i < std::min<std::size_t>(count, begin + run); ++i)
      values[i] = static_cast<std::int32_t>(random());
  }
  return values;
}

}  // namespace nzcl::engine::slot_pool::test

// A tensor in memory for the tests of the switch exchange.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "runtime/exchange/switch/packet.h"
#include "runtime/exchange/switch/tensor.h"

namespace nzcl::engine::slot_pool::test {

/// int32 values in pieces of a fixed size, the last of which may be shorter. A piece is held if one of its
/// values is not zero.
class MemoryTensor final : public Tensor {
 public:
  MemoryTensor(std::vector<std::int32_t> values, std::uint32_t piece_elements, std::uint32_t slots,
               std::uint32_t shape = 77)
      : input(std::move(values)),
        output(input.size()),
        piece_elements_(piece_elements),
        shape_(shape),
        positions_(slots) {}

  std::uint32_t pieces() const override {
    return static_cast<std::uint32_t>((input.size() + piece_elements_ - 1) / piece_elements_);
  }
  std::uint32_t elements(std::uint32_t piece) const override {
    return std::min<std::uint32_t>(piece_elements_,
                                   static_cast<std::uint32_t>(input.size()) - piece * piece_elements_);
  }
  std::uint32_t shape() const override { return shape_; }
  bool look_ahead(std::uint32_t from, std::uint32_t step, Ahead& ahead) override {
    if (blind > 0) return --blind, false;
    ahead = {};
    for (std::uint64_t p = from; p < pieces(); p += step) {
      const auto piece = static_cast<std::uint32_t>(p);
      for (std::uint32_t i = 0; i < elements(piece); ++i) {
        if (input[piece * piece_elements_ + i] == 0) continue;
        ahead = {piece, static_cast<std::uint8_t>(piece % 200 + exponent_shift)};
        return true;
      }
    }
    return true;
  }
  Filled fill(std::uint32_t piece, std::uint8_t exponent, std::span<std::int32_t> to) override {
    EXPECT_GE(exponent, piece % 200 + exponent_shift)
        << "the exponent is the largest of all ranks that hold it";
    std::copy_n(&input[piece * piece_elements_], elements(piece), to.begin());
    return {elements(piece), 1, clamps};
  }
  void store(std::uint32_t piece, std::uint8_t exponent, std::uint64_t blocks,
             std::span<const std::int32_t> sums) override {
    EXPECT_EQ(sums.size(), elements(piece));
    EXPECT_EQ(blocks, 1u);
    exponents.push_back(exponent);
    std::copy(sums.begin(), sums.end(), &output[piece * piece_elements_]);
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
  const std::uint32_t piece_elements_, shape_;
  std::vector<std::uint32_t> positions_;
};

inline const Job kJob{0x1234, {5, 6}};

/// Values of which a share of the pieces, chosen by the seed, is not zero.
inline std::vector<std::int32_t> random_values(std::size_t count, std::uint32_t piece, double density,
                                               unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> values(count);
  for (std::size_t begin = 0; begin < count; begin += piece) {
    if (std::uniform_real_distribution<>(0, 1)(random) >= density) continue;
    for (std::size_t i = begin; i < std::min<std::size_t>(count, begin + piece); ++i)
      values[i] = static_cast<std::int32_t>(random());
  }
  return values;
}

}  // namespace nzcl::engine::slot_pool::test

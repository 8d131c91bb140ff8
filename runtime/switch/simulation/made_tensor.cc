#include "runtime/switch/simulation/made_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/mix.h"

namespace nzcl::simulation {
namespace {

std::uint64_t threshold(double density) {
  return density >= 1 ? ~std::uint64_t{0}
                      : static_cast<std::uint64_t>(std::ldexp(std::max(0.0, density), 64));
}

}  // namespace

MadeSum::MadeSum(const Shape& shape)
    : shape_(shape),
      holds_below_(threshold(shape.density)),
      held_(shape.pieces),
      sums_(std::size_t{shape.pieces} * piece_elements()) {
  for (int rank = 0; rank < shape.workers; ++rank) {
    for (std::uint32_t piece = 0; piece < shape.pieces; ++piece) add(rank, piece);
  }
  for (const std::uint64_t blocks : held_) blocks_held_ += static_cast<std::uint64_t>(std::popcount(blocks));
}

void MadeSum::add(int rank, std::uint32_t piece) {
  const std::uint64_t blocks = held(rank, piece);
  held_[piece] |= blocks;
  for (std::uint32_t b = 0; b < shape_.blocks_per_piece; ++b) {
    if ((blocks >> b & 1) == 0) continue;
    std::int32_t* const to = &sums_[std::size_t{piece} * piece_elements() + b * shape_.block_elements];
    each_value(rank, piece, b, [to](std::uint32_t i, std::uint32_t value) {
      to[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(to[i]) + value);
    });
  }
}

std::uint64_t MadeSum::held(int rank, std::uint32_t piece) const {
  const int drawn_by = shape_.overlap == Overlap::all ? 0 : rank;
  std::uint64_t blocks = 0;
  for (std::uint32_t b = 0; b < shape_.blocks_per_piece; ++b) {
    const std::uint64_t block = piece * std::uint64_t{shape_.blocks_per_piece} + b;
    if (shape_.density >= 1 || draw(drawn_by, block, kHolds) < holds_below_) blocks |= std::uint64_t{1} << b;
  }
  return blocks;
}

std::uint64_t MadeSum::pieces_held_by_any() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(held_, [](std::uint64_t blocks) { return blocks != 0; }));
}

std::uint64_t MadeSum::draw(int rank, std::uint64_t block, std::uint64_t what) const {
  return mix(mix(shape_.seed * 4 + what) ^ mix(block << 16 | static_cast<std::uint64_t>(rank)));
}

bool MadeTensor::look_ahead(std::uint32_t from, std::uint32_t step, engine::slot_pool::Ahead& ahead) {
  ahead = {};
  for (std::uint64_t p = from; p < pieces(); p += step) {
    if (sum_.held(rank_, static_cast<std::uint32_t>(p)) == 0) continue;
    ahead.piece = static_cast<std::uint32_t>(p);
    break;
  }
  return true;
}

std::uint32_t MadeTensor::values(std::uint32_t, std::uint64_t blocks) const {
  const MadeSum::Shape& shape = sum_.shape();
  if (static_cast<std::uint32_t>(std::bit_width(blocks)) > shape.blocks_per_piece) return 0;
  return static_cast<std::uint32_t>(std::popcount(blocks)) * shape.block_elements;
}

engine::slot_pool::Filled MadeTensor::fill(std::uint32_t piece, std::uint8_t, std::span<std::int32_t> to) {
  const std::uint64_t blocks = sum_.held(rank_, piece);
  std::int32_t* at = to.data();
  for (std::uint32_t b = 0; b < sum_.shape().blocks_per_piece; ++b) {
    if ((blocks >> b & 1) == 0) continue;
    sum_.each_value(rank_, piece, b,
                    [at](std::uint32_t i, std::uint32_t value) { at[i] = static_cast<std::int32_t>(value); });
    at += sum_.shape().block_elements;
  }
  return {values(piece, blocks), blocks, false};
}

void MadeTensor::store(std::uint32_t piece, std::uint8_t, std::uint64_t blocks,
                       std::span<const std::int32_t> sums) {
  const std::uint32_t in_block = sum_.shape().block_elements;
  const auto right = sum_.sums(piece);
  const std::int32_t* at = sums.data();
  for (std::uint32_t b = 0; b < sum_.shape().blocks_per_piece; ++b) {
    if ((blocks >> b & 1) == 0) continue;
    for (std::uint32_t i = 0; i < in_block; ++i) wrong_ += at[i] != right[b * in_block + i] ? 1 : 0;
    at += in_block;
  }
  if (blocks != sum_.held_by_any(piece)) ++wrong_;
  blocks_stored_ += static_cast<std::uint64_t>(std::popcount(blocks));
}

}  // namespace nzcl::simulation

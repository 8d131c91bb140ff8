// Random inputs of every kind of sparsity, and the plain reduction of them, which a result must equal bit by
// bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/base/bitmap.h"
#include "tests/unit/reference.h"

namespace nzcl::test {

enum class Sparsity { empty, single, random, dense, all_overlap, disjoint };
inline constexpr Sparsity kSparsities[] = {Sparsity::empty, Sparsity::single,      Sparsity::random,
                                           Sparsity::dense, Sparsity::all_overlap, Sparsity::disjoint};
inline const char* name_of(Sparsity s) {
  constexpr const char* names[] = {"empty", "single", "random", "dense", "all_overlap", "disjoint"};
  return names[static_cast<int>(s)];
}

struct Problem {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t count = 0;
  std::uint64_t block = 256;
  Sparsity sparsity = Sparsity::random;
  int ranks = 2;
  unsigned seed = 1;

  std::uint64_t blocks() const { return (count + block - 1) / block; }
  std::uint64_t bytes() const { return count * element_bytes(type); }
  std::string text() const {
    return std::string(nzcl::name_of(type)) + " " + std::string(nzcl::name_of(op)) + " count " +
           std::to_string(count) + " block " + std::to_string(block) + " " + name_of(sparsity) + " ranks " +
           std::to_string(ranks);
  }
};

/// Whether this rank contributes the block.
inline bool holds(const Problem& p, int rank, std::uint64_t block) {
  std::uint64_t random = p.seed * 1000003 + block * 31 +
                         (p.sparsity == Sparsity::random ? static_cast<unsigned>(rank) * 7919u : 0u);
  // A hash, so that the answer depends on the arguments alone.
  random = (random ^ random >> 30) * 0xbf58476d1ce4e5b9;
  random = (random ^ random >> 27) * 0x94d049bb133111eb;
  random ^= random >> 31;
  switch (p.sparsity) {
    case Sparsity::empty:
      return false;
    case Sparsity::single:
      return rank == p.ranks - 1 && block == p.blocks() / 2;
    case Sparsity::random:
      return random % 5 == 0;
    case Sparsity::dense:
      return true;
    case Sparsity::all_overlap:
      return random % 4 == 0;
    case Sparsity::disjoint:
      return static_cast<int>(block % static_cast<std::uint64_t>(p.ranks)) == rank;
  }
  return false;
}

/// Writes one element. Elements are small whole numbers and fractions that differ between ranks, and every
/// block has some that are not zero.
inline void put(DataType type, std::byte* at, std::uint64_t i, int rank) {
  const int value = static_cast<int>((i * 37 + static_cast<std::uint64_t>(rank) * 101) % 251) - 97;
  const auto store = [&](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (type) {
    case DataType::float32:
      return store(static_cast<float>(value) * 0.37f + 0.001f);
    case DataType::float64:
      return store(static_cast<double>(value) * 0.37 + 0.001);
    case DataType::float16:
      return store(float_to_half(static_cast<float>(value) * 0.37f + 0.01f));
    case DataType::bfloat16:
      return store(float_to_bfloat16(static_cast<float>(value) * 0.37f + 0.01f));
    case DataType::int32:
      return store(static_cast<std::int32_t>(value * 65537 + 1));
    case DataType::int64:
      return store(static_cast<std::int64_t>(value) * 4294967311 + 1);
    case DataType::uint8:
      return store(static_cast<std::uint8_t>((value & 0xff) | 1));
  }
}

inline std::vector<std::byte> make_input(const Problem& p, int rank) {
  std::vector<std::byte> data(p.bytes());
  const std::size_t e = element_bytes(p.type);
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    if (!holds(p, rank, b)) continue;
    for (std::uint64_t i = b * p.block; i < std::min(p.count, (b + 1) * p.block); ++i)
      put(p.type, data.data() + i * e, i, rank);
  }
  return data;
}

/// What an operation must come to: the union bitmap, and the dense result.
struct Expected {
  std::vector<std::uint64_t> bits;
  std::vector<std::byte> data;
};
inline Expected make_expected(const Problem& p) {
  Expected expected{std::vector<std::uint64_t>(words_for(p.blocks())), std::vector<std::byte>(p.bytes())};
  std::vector<std::vector<std::byte>> inputs;
  for (int r = 0; r < p.ranks; ++r) inputs.push_back(make_input(p, r));
  const std::size_t e = element_bytes(p.type);
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    std::vector<const std::byte*> sources;
    for (int r = 0; r < p.ranks; ++r) {
      if (holds(p, r, b)) sources.push_back(inputs[static_cast<std::size_t>(r)].data() + b * p.block * e);
    }
    if (sources.empty()) continue;
    set_bit(std::span(expected.bits), b);
    const std::uint64_t n = std::min(p.block, p.count - b * p.block);
    const auto sum =
        reference_reduce(p.type, p.op, sources, n,
                         {.ranks = p.ranks, .with_zero = static_cast<int>(sources.size()) < p.ranks});
    std::memcpy(expected.data.data() + b * p.block * e, sum.data(), sum.size());
  }
  return expected;
}

/// Sets all bits behind the last block, as a caller does who fills whole words. They count for nothing.
inline void set_bits_behind(std::vector<std::uint64_t>& bitmap, std::uint64_t blocks) {
  if (blocks % 64 != 0) bitmap.back() |= ~low_bits(blocks % 64);
}

/// The index of the first byte that differs; -1 if none does.
inline long first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) return static_cast<long>(i);
  }
  return a.size() == b.size() ? -1 : static_cast<long>(std::min(a.size(), b.size()));
}

/// Which blocks a rank holds, with the bits set that count for nothing.
inline std::vector<std::uint64_t> bitmap_of(const Problem& p, int rank) {
  std::vector<std::uint64_t> bitmap(words_for(p.blocks()), 0);
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    if (holds(p, rank, b)) set_bit(std::span(bitmap), b);
  }
  set_bits_behind(bitmap, p.blocks());
  return bitmap;
}

}  // namespace nzcl::test

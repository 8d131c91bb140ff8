#include "perf/allreduce/problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace perf::allreduce {
namespace {

using nzcl::DataType;
using nzcl::ReduceOp;

/// A number in [0, 1) from a block and a rank (SplitMix64, Steele, Lea and Flood 2014, section 3).
double draw(std::uint64_t block, std::uint64_t rank) {
  std::uint64_t z = block * 0x9e3779b97f4a7c15 + rank * 0xd1b54a32d192ed03 + 0x632be59bd9b4e019;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}

/// Exact for whole numbers below 2048.
std::uint16_t to_half(int value) {
  if (value == 0) return 0;
  const int exponent = std::ilogb(value);
  return static_cast<std::uint16_t>((exponent + 15) << 10 | ((value << (10 - exponent)) & 0x3ff));
}
double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double magnitude =
      exponent == 0 ? std::ldexp(bits & 0x3ff, -24) : std::ldexp((bits & 0x3ff) + 1024, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

template <typename Visit>
void as_type(DataType type, Visit visit) {
  switch (type) {
    case DataType::float32:
      return visit(
          float{}, [](int v) { return static_cast<float>(v); }, [](float v) { return double{v}; });
    case DataType::float64:
      return visit(
          double{}, [](int v) { return static_cast<double>(v); }, [](double v) { return v; });
    case DataType::float16:
      return visit(std::uint16_t{}, to_half, from_half);
    case DataType::bfloat16:
      return visit(
          std::uint16_t{},
          [](int v) {
            return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(v)) >> 16);
          },
          [](std::uint16_t v) { return double{std::bit_cast<float>(std::uint32_t{v} << 16)}; });
    case DataType::int32:
      return visit(
          std::int32_t{}, [](int v) { return v; }, [](std::int32_t v) { return double(v); });
    case DataType::int64:
      return visit(
          std::int64_t{}, [](int v) { return std::int64_t{v}; },
          [](std::int64_t v) { return static_cast<double>(v); });
    case DataType::uint8:
      return visit(
          std::uint8_t{}, [](int v) { return static_cast<std::uint8_t>(v); },
          [](std::uint8_t v) { return double(v); });
  }
}

/// An average is rounded once, so floating-point types differ by their precision; integers drop the fraction.
double tolerance(DataType type, ReduceOp op) {
  if (op != ReduceOp::avg) return 0;
  switch (type) {
    case DataType::float16:
      return 1e-3;
    case DataType::bfloat16:
      return 8e-3;
    case DataType::float32:
    case DataType::float64:
      return 1e-6;
    case DataType::int32:
    case DataType::int64:
    case DataType::uint8:
      return 1;
  }
  return 0;
}

}  // namespace

bool Problem::holds(int rank, std::uint64_t block_index) const {
  const double d = density;
  switch (overlap) {
    case Overlap::random:
      return draw(block_index, static_cast<std::uint64_t>(rank) + 1) < d;
    case Overlap::all:
      return draw(block_index, 0) < d;
    case Overlap::none: {  // ranks hold arcs of a circle one behind the other, which overlap only if the
                           // circle is too short
      const double position = draw(block_index, 0), begin = rank * d - std::floor(rank * d);
      return position >= begin ? position < begin + d : position + 1 < begin + d;
    }
  }
  return false;
}

void Problem::fill(int rank, std::span<std::byte> data) const {
  std::memset(data.data(), 0, bytes());
  as_type(type, [&](auto element, auto encode, auto) {
    for (std::uint64_t b = 0; b < blocks(); ++b) {
      if (!holds(rank, b)) continue;
      for (std::uint64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
        element = encode(value(rank, i));
        std::memcpy(data.data() + i * sizeof element, &element, sizeof element);
      }
    }
  });
}

std::vector<std::uint64_t> Problem::bitmap(int rank) const {
  std::vector<std::uint64_t> bits((blocks() + 63) / 64);
  for (std::uint64_t b = 0; b < blocks(); ++b) bits[b / 64] |= std::uint64_t{holds(rank, b)} << (b % 64);
  return bits;
}

std::vector<std::int64_t> Problem::indices(int rank) const {
  std::vector<std::int64_t> all;
  for (std::uint64_t b = 0; b < blocks(); ++b) {
    if (holds(rank, b)) all.push_back(static_cast<std::int64_t>(b));
  }
  return all;
}

void Problem::pack(std::span<const std::byte> tensor, std::span<const std::int64_t> indices,
                   std::span<std::byte> values) const {
  std::byte* to = values.data();
  for (const std::int64_t index : indices) {
    const std::uint64_t at = static_cast<std::uint64_t>(index) * block_bytes();
    std::memcpy(to, tensor.data() + at, std::min(block_bytes(), bytes() - at));
    to += block_bytes();
  }
}

std::uint64_t Problem::unpack(std::span<const std::byte> values, std::span<const std::int64_t> indices,
                              std::span<std::byte> tensor) const {
  std::memset(tensor.data(), 0, bytes());
  std::uint64_t bad = 0;
  std::int64_t least = 0;
  const std::byte* from = values.data();
  for (const std::int64_t index : indices) {
    if (index < least || static_cast<std::uint64_t>(index) >= blocks()) {
      ++bad;
    } else {
      const std::uint64_t at = static_cast<std::uint64_t>(index) * block_bytes();
      std::memcpy(tensor.data() + at, from, std::min(block_bytes(), bytes() - at));
      least = index + 1;
    }
    from += block_bytes();
  }
  return bad;
}

double Problem::union_density() const {
  std::uint64_t n = 0;
  for (std::uint64_t b = 0; b < blocks(); ++b) {
    for (int r = 0; r < ranks; ++r) {
      if (!holds(r, b)) continue;
      ++n;
      break;
    }
  }
  return blocks() ? static_cast<double>(n) / static_cast<double>(blocks()) : 0;
}

double Problem::own_density(int rank) const {
  std::uint64_t n = 0;
  for (std::uint64_t b = 0; b < blocks(); ++b) n += holds(rank, b) ? 1 : 0;
  return blocks() ? static_cast<double>(n) / static_cast<double>(blocks()) : 0;
}

std::uint64_t Problem::wrong(std::span<const std::byte> data, std::uint64_t first, std::uint64_t end,
                             int from) const {
  std::uint64_t bad = 0;
  const ReduceOp reduced_by = from < 0 ? op : ReduceOp::sum;
  const double allowed = tolerance(type, reduced_by);
  const bool relative = type != DataType::int32 && type != DataType::int64 && type != DataType::uint8;
  std::vector<int> holders;
  as_type(type, [&](auto element, auto, auto decode) {
    for (std::uint64_t b = first / block; b * block < end; ++b) {
      holders.clear();
      for (int r = 0; r < ranks; ++r) {
        if ((from < 0 || r == from) && holds(r, b)) holders.push_back(r);
      }
      const bool some_zero = holders.size() < static_cast<std::size_t>(ranks);
      for (std::uint64_t i = std::max(first, b * block); i < std::min(end, (b + 1) * block); ++i) {
        int sum = 0, least = some_zero || holders.empty() ? 0 : value(holders[0], i), most = 0;
        for (const int r : holders) {
          const int v = value(r, i);
          sum += v, least = std::min(least, v), most = std::max(most, v);
        }
        const double expected = reduced_by == ReduceOp::sum   ? sum
                                : reduced_by == ReduceOp::avg ? static_cast<double>(sum) / ranks
                                : reduced_by == ReduceOp::min ? least
                                                              : most;
        std::memcpy(&element, data.data() + (i - first) * sizeof element, sizeof element);
        const double off = std::fabs(decode(element) - expected);
        bad += relative ? off > allowed * expected : allowed == 0 ? off != 0 : off >= allowed;
      }
    }
  });
  return bad;
}

}  // namespace perf::allreduce

// A sparse allreduce gives the same bits as the dense one also for zeros of both signs and for NaNs,
// whichever blocks a rank leaves out. This is checked on every path through the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/unit/reference.h"

namespace nzcl::test {
namespace {

/// A hash: inputs are made from it, so that every rank can compute the input of every other rank.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

void put_value(DataType type, std::byte* at, float value) {
  const auto store = [&](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (type) {
    case DataType::float32:
      return store(value);
    case DataType::float64:
      return store(static_cast<double>(value));
    case DataType::float16:
      return store(float_to_half(value));
    case DataType::bfloat16:
      return store(float_to_bfloat16(value));
    case DataType::int32:
    case DataType::int64:
    case DataType::uint8:
      FAIL() << "integers have one zero";
  }
}

/// A third of the blocks has +0.0 only and a third -0.0 only. The others have zeros of both signs and other
/// values.
std::vector<std::byte> zeros_of(DataType type, std::uint64_t count, std::uint64_t block, int rank) {
  constexpr std::array kValues = {
      0.0f, -0.0f, 0.0f, -0.0f, 1.5f, -1.5f, std::numeric_limits<float>::quiet_NaN()};
  const std::size_t e = element_bytes(type);
  std::vector<std::byte> data(count * e);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto of_rank = static_cast<std::uint64_t>(rank + 1) << 40;
    const std::uint64_t kind = mixed(i / block + of_rank) % 3;
    if (kind == 0) continue;
    put_value(type, data.data() + i * e, kind == 1 ? -0.0f : kValues[mixed(i ^ of_rank) % kValues.size()]);
  }
  return data;
}

struct Case {
  DataType type;
  ReduceOp op;
  std::uint64_t count;
  std::uint64_t block;
};

/// The reduction of all ranks' elements in the order of the ranks, with no block left out.
std::vector<std::byte> dense_result(const Case& c, int ranks) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> sources;
  for (int r = 0; r < ranks; ++r) inputs.push_back(zeros_of(c.type, c.count, c.block, r));
  for (const auto& input : inputs) sources.push_back(input.data());
  return reference_reduce(c.type, c.op, sources, c.count, {.ranks = ranks, .with_zero = false});
}

enum class Way { dense, in_place, out_of_place, by_index };

std::vector<std::byte> result_of(Communicator& comm, const Case& c, Way way) {
  std::vector<std::byte> input = zeros_of(c.type, c.count, c.block, comm.rank());
  std::vector<std::byte> output(input.size(), std::byte{0x5a});
  const auto in = comm.register_buffer(input.data(), input.size());
  const auto out = comm.register_buffer(output.data(), output.size());
  if (way == Way::by_index) {
    std::vector<std::int64_t> indices;
    std::vector<std::byte> values;
    const std::size_t bytes = c.block * element_bytes(c.type);
    for (std::size_t b = 0; b < c.count / c.block; ++b) {
      const auto* block = input.data() + b * bytes;
      if (std::all_of(block, block + bytes, [](std::byte x) { return x == std::byte{0}; })) continue;
      indices.push_back(static_cast<std::int64_t>(b));
      values.insert(values.end(), block, block + bytes);
    }
    values.resize(std::max(values.size(), bytes));
    const auto registered = comm.register_buffer(values.data(), values.size());
    comm.allreduce_sparse({.values = values.data(),
                           .indices = indices,
                           .count = c.count,
                           .type = c.type,
                           .op = c.op,
                           .block_elems = c.block,
                           .output = output.data()})
        .wait();
    return output;
  }
  std::byte* const to = way == Way::out_of_place ? output.data() : input.data();
  comm.allreduce({.input = input.data(),
                  .output = to,
                  .count = c.count,
                  .type = c.type,
                  .op = c.op,
                  .block_elems = c.block,
                  .dense = way == Way::dense})
      .wait();
  return way == Way::out_of_place ? output : input;
}

struct Place {
  std::string transport;
  int ranks;
  int dedicated;
  std::uint64_t direct_bytes;  // 1: every result is written in place
  friend void PrintTo(const Place& p, std::ostream* out) { *out << p.transport << p.ranks; }
};

/// A place, and the elements of a block: single elements are exchanged in tiles.
class SignedZeroTest : public ::testing::TestWithParam<std::tuple<Place, std::uint64_t>> {};

TEST_P(SignedZeroTest, SparseGivesTheBitsOfDense) {
  const auto& [place, block] = GetParam();
  Setting s{.transport = place.transport, .ranks = place.ranks, .dedicated = place.dedicated, .options = {}};
  s.options.tune.slot_bytes = 16 << 10;
  s.options.tune.direct_bytes = place.direct_bytes;
  s.options.pin = Pinning::off;
  s.options.log_level = LogLevel::off;
  std::vector<std::pair<Case, std::vector<std::byte>>> cases;
  for (const DataType type : {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max}) {
      for (const std::uint64_t count : {320, 48000}) {
        const Case c{type, op, count, block};
        cases.emplace_back(c, dense_result(c, s.ranks));
      }
    }
  }
  const auto errors = run_ranks(s, [&](Communicator& comm) {
    for (const auto& [c, expected] : cases) {
      for (const Way way : {Way::dense, Way::in_place, Way::out_of_place, Way::by_index}) {
        EXPECT_EQ(first_difference(result_of(comm, c, way), expected), -1)
            << nzcl::name_of(c.type) << " " << nzcl::name_of(c.op) << " count " << c.count << " way "
            << static_cast<int>(way) << " rank " << comm.rank();
      }
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(
    Places, SignedZeroTest,
    ::testing::Combine(::testing::Values(Place{"loopback", 1, 0, 0}, Place{"loopback", 2, 0, 0},
                                         Place{"loopback", 3, 0, 0}, Place{"loopback", 3, 0, 1},
                                         Place{"loopback", 3, 2, 1}, Place{"cma", 3, 0, 1}),
                       ::testing::Values(1, 16)),
    [](const auto& where) {
      const Place& p = std::get<0>(where.param);
      return p.transport + "_" + std::to_string(p.ranks) + (p.dedicated ? "_dedicated" : "") +
             (p.direct_bytes ? "_in_place" : "") + "_blocks_of_" + std::to_string(std::get<1>(where.param));
    });

}  // namespace
}  // namespace nzcl::test

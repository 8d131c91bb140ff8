// Allreduces of single elements and small blocks, whose dense input a GPU packs tile by tile: each result is
// compared with the plain sum, bit by bit, and so is that of the same tensors in memory of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/bitmap.h"
#include "tests/system/gpu_floats.h"
#include "tests/system/gpu_tensor.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

/// A tensor of which each rank has its own share of blocks.
struct Tiles {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t count = 0, block = 1;
  std::vector<double> densities;  // by rank
  unsigned seed = 1;

  int ranks() const { return static_cast<int>(densities.size()); }
  std::uint64_t blocks() const { return (count + block - 1) / block; }
  std::uint64_t bytes() const { return count * element_bytes(type); }
  std::string text() const {
    std::string text = std::string(nzcl::name_of(type)) + " " + std::string(nzcl::name_of(op)) + " count " +
                       std::to_string(count) + " block " + std::to_string(block);
    for (const double density : densities) text += " " + std::to_string(density);
    return text;
  }
};

/// The bits of -0.0, of a NaN and of infinity; of integers, the lowest and the highest number.
std::vector<std::uint64_t> special_bits(DataType type) {
  switch (type) {
    case DataType::float32:
      return {0x80000000, 0x7fc01234, 0x7f800000};
    case DataType::float64:
      return {0x8000000000000000, 0x7ff8000000001234, 0x7ff0000000000000};
    case DataType::float16:
      return {0x8000, 0x7e34, 0x7c00};
    case DataType::bfloat16:
      return {0x8000, 0x7fe1, 0x7f80};
    case DataType::int32:
      return {0x80000000, 0x7fffffff};
    case DataType::int64:
      return {0x8000000000000000, 0x7fffffffffffffff};
    case DataType::uint8:
      return {0x80, 0xff};
  }
  return {};
}

/// Some of the elements of a block that is there are zero, and some are special. A block may have nothing but
/// -0.0, which is there, or nothing but zeros, which is not.
std::vector<std::byte> contents_of(const Tiles& p, int rank) {
  std::mt19937 random(p.seed * 31 + static_cast<unsigned>(rank));
  std::uniform_real_distribution<> share;
  std::vector<std::byte> data(p.bytes());
  const std::size_t each = element_bytes(p.type);
  const auto special = special_bits(p.type);
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    if (share(random) >= p.densities[static_cast<std::size_t>(rank)]) continue;
    for (std::uint64_t i = b * p.block; i < std::min(p.count, (b + 1) * p.block); ++i) {
      std::byte* const at = data.data() + i * each;
      const auto kind = random() % 16;
      if (kind == 0) {
        std::memcpy(at, &special[random() % special.size()], each);
      } else if (kind > 2 || p.block == 1) {
        put(p.type, at, i, rank);
      }
    }
  }
  return data;
}

/// A block is there if a bit of it is set.
Expected plain_sum(const Tiles& p, const std::vector<std::vector<std::byte>>& inputs) {
  Expected expected{std::vector<std::uint64_t>(words_for(p.blocks())), std::vector<std::byte>(p.bytes())};
  const std::size_t each = element_bytes(p.type);
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    const std::uint64_t begin = b * p.block, n = std::min(p.block, p.count - begin);
    std::vector<const std::byte*> sources;
    for (const auto& input : inputs) {
      const std::byte* const at = input.data() + begin * each;
      if (std::any_of(at, at + n * each, [](std::byte x) { return x != std::byte{0}; }))
        sources.push_back(at);
    }
    if (sources.empty()) continue;
    set_bit(std::span(expected.bits), b);
    const bool with_zero = static_cast<int>(sources.size()) < p.ranks();
    const auto sum = reference_reduce(p.type, p.op, sources, n, {.ranks = p.ranks(), .with_zero = with_zero});
    std::memcpy(expected.data.data() + begin * each, sum.data(), sum.size());
  }
  return expected;
}

struct Case {
  explicit Case(Tiles tiles) : p(std::move(tiles)) {
    for (int rank = 0; rank < p.ranks(); ++rank) inputs.push_back(contents_of(p, rank));
    expected = plain_sum(p, inputs);
  }
  Tiles p;
  std::vector<std::vector<std::byte>> inputs;
  Expected expected;
};

/// Runs it on this rank, and compares result and union.
void run(Communicator& c, OnGpu& on, const Case& tested, bool in_place, Sides sides,
         Algorithm algorithm = Algorithm::automatic) {
  const Tiles& p = tested.p;
  const auto& contents = tested.inputs[static_cast<std::size_t>(c.rank())];
  in_place &= sides.input == sides.output;
  AnyTensor input(c, on, contents, sides.input);
  AnyTensor other(c, on, std::vector<std::byte>(p.bytes(), std::byte{0x5a}), sides.output);
  AnyTensor& result = in_place ? input : other;
  Work work = c.allreduce({.input = input.data(),
                           .output = result.data(),
                           .count = p.count,
                           .type = p.type,
                           .op = p.op,
                           .block_elems = p.block,
                           .algorithm = algorithm,
                           .stream = sides.input || sides.output ? on.stream() : nullptr});
  if (sides.output) {
    work.enqueue_wait(on.stream());
  } else {
    work.wait();
  }
  const std::string where = p.text() + (in_place ? ", in place" : "") + ", input on " +
                            (sides.input ? "GPU" : "host") + ", rank " + std::to_string(c.rank());
  EXPECT_EQ(first_difference(result.read(), tested.expected.data), -1) << where;
  work.wait();
  if (!in_place) {
    EXPECT_EQ(first_difference(input.read(), contents), -1) << where;
  }
  const auto bits = work.union_bitmap();
  EXPECT_TRUE(std::equal(bits.begin(), bits.end(), tested.expected.bits.begin(), tested.expected.bits.end()))
      << where;
  EXPECT_EQ(work.statistics().union_blocks, count_bits(tested.expected.bits)) << where;
}

/// How dense what the ranks have is: the same on all, or very different, or nothing on one of them.
std::vector<std::vector<double>> densities_of(int ranks) {
  std::vector<std::vector<double>> all;
  for (const double density : {0.0, 0.001, 0.1, 0.5, 1.0})
    all.emplace_back(static_cast<std::size_t>(ranks), density);
  for (const auto& [first, others] : {std::pair(1.0, 0.01), std::pair(0.0, 1.0), std::pair(0.05, 0.07)}) {
    all.emplace_back(static_cast<std::size_t>(ranks), others);
    all.back().front() = first;
  }
  return all;
}

using Ran = std::tuple<Where, DataType>;
class GpuTiles : public testing::TestWithParam<Ran> {};

/// The host's result first, then that of the GPUs, and then that of ranks whose memory is here and there.
TEST_P(GpuTiles, SumsHaveTheBitsOfThePlainSum) {
  const auto& [where, type] = GetParam();
  std::vector<Case> cases;
  unsigned seed = 1;
  for (const std::uint64_t block : {1, 2, 7, 16, 64}) {
    if (block * element_bytes(type) >= 512) continue;
    for (const auto& densities : densities_of(where.ranks)) {
      for (int op = 0; op < kReduceOps; ++op) {
        // Of one operation a tensor of many tiles, whose last block is shorter.
        const std::uint64_t count = op == static_cast<int>(seed % kReduceOps) ? 150001 : 30011;
        cases.emplace_back(Tiles{type, static_cast<ReduceOp>(op), count, block, densities, seed});
      }
      ++seed;
    }
  }
  Setting setting = where.setting();
  setting.options.tune.slot_bytes = 32 << 10;  // a tile of 64 of the largest blocks fits
  const auto errors = run_ranks(setting, [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    std::size_t packed = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const bool in_place = i % 2 == 0;
      const Sides mixed = kMixes[(i + static_cast<std::size_t>(c.rank())) % 4];
      run(c, on, cases[i], in_place, {.input = false, .output = false});
      run(c, on, cases[i], in_place, {});
      run(c, on, cases[i], in_place, mixed);
      packed += mixed.input ? 2 : 1;
    }
    EXPECT_EQ(on.gpu().packed_in_tiles(), packed);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(Types, GpuTiles,
                         testing::Combine(testing::Values(Where{"loopback", 3}),
                                          testing::Values(DataType::float32, DataType::float64,
                                                          DataType::float16, DataType::bfloat16,
                                                          DataType::int32, DataType::int64, DataType::uint8)),
                         [](const auto& ran) {
                           return std::get<0>(ran.param).text() + "_" +
                                  std::string(nzcl::name_of(std::get<1>(ran.param)));
                         });
INSTANTIATE_TEST_SUITE_P(Places, GpuTiles,
                         testing::Combine(testing::Values(Where{"loopback", 2, 1}, Where{"loopback", 4, 0, 2},
                                                          Where{"shm", 2}, Where{"tcp", 2}, Where{"cma", 2}),
                                          testing::Values(DataType::float32)),
                         [](const auto& ran) {
                           return std::get<0>(ran.param).text() + "_" +
                                  std::string(nzcl::name_of(std::get<1>(ran.param)));
                         });

/// Tiles of full size and messages of any, by each exchange that has tiles. Merging reads all of them.
TEST(GpuTilesLarge, EveryAlgorithmTakesEveryMix) {
  for (const Algorithm algorithm : {Algorithm::push, Algorithm::merging}) {
    for (const std::uint64_t block : {1, 7}) {
      const Case tested(Tiles{DataType::float32, ReduceOp::sum, 1000003, block, {0.3, 0.01, 1.0}, 5});
      const auto errors = run_ranks({.ranks = 3, .options = {}}, [&](Communicator& c) {
        OnGpu on(static_cast<unsigned>(c.rank()) + 1);
        for (std::size_t i = 0; i < 8; ++i)
          run(c, on, tested, i % 2 == 0, kMixes[(i + static_cast<std::size_t>(c.rank())) % 4], algorithm);
        EXPECT_EQ(on.gpu().packed_in_tiles(), 4u);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

/// Values that travel in a narrower type are in tiles of single elements, however large blocks are.
TEST(GpuTilesLarge, NarrowerWireTypesHaveTheBitsOfTheHost) {
  const Case tested(Tiles{DataType::float32, ReduceOp::avg, 200001, 64, {0.3, 0.02}, 8});
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& c) {
    OnGpu on;
    const auto& contents = tested.inputs[static_cast<std::size_t>(c.rank())];
    std::vector<std::byte> results[2];
    for (const bool gpu : {false, true}) {
      AnyTensor tensor(c, on, contents, gpu);
      c.allreduce({.input = tensor.data(),
                   .output = tensor.data(),
                   .count = tested.p.count,
                   .op = tested.p.op,
                   .block_elems = tested.p.block,
                   .wire_type = WireType::float16,
                   .stream = gpu ? on.stream() : nullptr})
          .wait();
      results[gpu ? 1 : 0] = tensor.read();
    }
    EXPECT_EQ(first_difference(results[0], results[1]), -1);
    EXPECT_EQ(on.gpu().packed_in_tiles(), 1u);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Where the blocks are known, the tensor is copied whole.
TEST(GpuTilesLarge, WhatIsKnownIsCopiedWhole) {
  const Case tested(Tiles{DataType::float32, ReduceOp::sum, 50001, 2, {0.3, 0.02}, 8});
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& c) {
    OnGpu on;
    AnyTensor input(c, on, tested.inputs[static_cast<std::size_t>(c.rank())], true);
    AnyTensor output(c, on, std::vector<std::byte>(tested.p.bytes()), true);
    AllreduceRequest request{.input = input.data(),
                             .output = output.data(),
                             .count = tested.p.count,
                             .block_elems = tested.p.block,
                             .stream = on.stream()};
    std::vector<std::uint64_t> all(words_for(tested.p.blocks()), ~std::uint64_t{0});
    request.bitmap = all;
    c.allreduce(request).wait();
    EXPECT_EQ(first_difference(output.read(), tested.expected.data), -1);
    request.bitmap = {};
    request.dense = true;
    c.allreduce(request).wait();
    EXPECT_EQ(first_difference(output.read(), tested.expected.data), -1);
    EXPECT_EQ(on.gpu().packed_in_tiles(), 0u);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Operations in place, one behind the other in the order of the stream, use the same pinned memory: from the
/// third one on there is as much as there was.
TEST(GpuTilesLarge, MemoryIsUsedAgain) {
  constexpr std::uint64_t kElements = 100003;
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& c) {
    OnGpu on;
    std::vector<float> mine(kElements);
    for (std::size_t i = static_cast<std::size_t>(c.rank()); i < mine.size(); i += 5) mine[i] = 1;
    auto* const data = reinterpret_cast<float*>(on.allocate(kElements * sizeof(float)));
    on.gpu().copy(on.stream(), data, mine.data(), kElements * sizeof(float));
    on.gpu().synchronize(on.stream());
    const auto buffer = c.register_buffer(data, kElements * sizeof(float), MemoryKind::device);
    std::size_t pieces = 0;
    float both = 1;
    for (int i = 0; i < 12; ++i) {
      Work work = c.allreduce(
          {.input = data, .output = data, .count = kElements, .block_elems = 1, .stream = on.stream()});
      work.enqueue_wait(on.stream());
      const auto now = on.read(reinterpret_cast<const std::byte*>(data), kElements * sizeof(float));
      const auto* const values = reinterpret_cast<const float*>(now.data());
      for (std::size_t e = 0; e < kElements; ++e) ASSERT_EQ(values[e], e % 5 < 2 ? both : 0.0F) << e;
      both *= 2;  // from now on both ranks have it
      work.wait();
      if (i == 2) pieces = on.gpu().pieces();
    }
    EXPECT_EQ(on.gpu().pieces(), pieces);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// --- Failures

AllreduceRequest elements_of(const GpuFloats& floats, void* stream) {
  AllreduceRequest request = floats.request(stream);
  request.block_elems = 1;
  return request;
}

TEST(GpuTilesErrors, AbortReleasesStreams) {
  std::barrier<> called(3);
  const auto errors = run_ranks(setting(3), [&](Communicator& c) {
    const Leaving leaves(called);
    OnGpu on;
    const GpuFloats floats(c, on);
    if (c.rank() == 2) {
      called.arrive_and_wait();
      return c.abort("enough");
    }
    Work work = c.allreduce(elements_of(floats, on.stream()));
    called.arrive_and_wait();
    work.enqueue_wait(on.stream());
    EXPECT_TRUE(ends(on, on.stream()));
    EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("enough"));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The communicator is aborted before the stream has come to the kernel, which then writes to memory that is
/// still there, and to nobody else's.
TEST(GpuTilesErrors, AbortBeforeTheStreamHasCome) {
  std::barrier<> called(2);
  const auto errors = run_ranks(setting(2), [&](Communicator& c) {
    const Leaving leaves(called);
    OnGpu on;
    const GpuFloats floats(c, on);
    void* const late = on.gpu().make_stream();
    const gpu::Flag flag = on.gpu().take_flag();
    on.gpu().await(late, flag.device, flag.value);
    Work work = c.allreduce(elements_of(floats, late));
    called.arrive_and_wait();
    work.enqueue_wait(on.stream());
    if (c.rank() == 1) c.abort("enough");
    EXPECT_TRUE(ends(on, on.stream()));
    EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("enough"));
    c.close();
    flag.raise_here();
    EXPECT_TRUE(ends(on, late));
    EXPECT_EQ(floats.read(on), floats.ones);  // no result has been written over the input
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuTilesErrors, AStreamThatDoesNotComeInTime) {
  Setting s = setting();
  s.options.timeout_s = 0.3;
  const auto errors = run_ranks(s, [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    const gpu::Flag flag = on.gpu().take_flag();
    if (c.rank() == 0) on.gpu().await(on.stream(), flag.device, flag.value);
    Work work = c.allreduce(elements_of(floats, on.stream()));
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(),
                AnyOf(HasSubstr("its stream did not come to it"), HasSubstr("rank(s) 0 did not")));
    c.close();
    flag.raise_here();
    EXPECT_TRUE(ends(on, on.stream()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Its call says so, the others' streams go on, and so does the communicator when there is memory again.
TEST(GpuTilesErrors, MemoryThatIsUsedUpFailsTheOperationOnly) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    on.gpu().run_out_of_memory(c.rank() == 0);
    if (c.rank() == 0) {
      EXPECT_THAT(thrown_by([&] { static_cast<void>(c.allreduce(elements_of(floats, on.stream()))); }).what(),
                  HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
    } else {
      Work work = c.allreduce(elements_of(floats, on.stream()));
      work.enqueue_wait(on.stream());
      EXPECT_TRUE(ends(on, on.stream()));
      EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("rank 0 refused its request"));
    }
    on.gpu().run_out_of_memory(false);
    std::vector<float> twice(kCount, 2.0F);
    GpuFloats again(c, on);
    c.allreduce(elements_of(again, on.stream())).wait();
    EXPECT_EQ(again.read(on), twice);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test

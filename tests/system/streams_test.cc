// Sparse streams of single elements and small blocks: every index type, sorted or not, with duplicates, with
// empty ranks, dense and packed results, results that outgrow their memory, and values that travel as
// narrower floats.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>

#include "runtime/base/bitmap.h"
#include "runtime/plan/tuning.h"
#include "tests/system/misuse.h"
#include "tests/system/oracle.h"
#include "tests/system/run_one.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;

class Streams : public ::testing::TestWithParam<Where> {
 protected:
  void run(const std::function<void(Communicator&)>& body, const std::function<void(Options&)>& change = {}) {
    Setting s = GetParam().setting();
    if (change) change(s.options);
    const auto errors = run_ranks(s, body);
    for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
  }
};

/// What one rank gives: blocks of float values and their indices, in any order, some of them several times.
template <typename T>
struct Stream {
  std::vector<T> indices;
  std::vector<float> values;
};

enum class Order { ascending, any, with_duplicates };

template <typename T>
Stream<T> make_stream(int rank, std::uint64_t blocks, std::uint64_t block, double density, Order order) {
  std::mt19937 random(static_cast<unsigned>(rank) * 77 + 5);
  Stream<T> s;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    if (std::uniform_real_distribution<>()(random) < density) s.indices.push_back(static_cast<T>(b));
  }
  if (order == Order::with_duplicates) {
    const std::size_t n = s.indices.size();
    for (std::size_t i = 0; i < n; i += 3) s.indices.insert(s.indices.end(), 1 + i % 2, s.indices[i]);
  }
  if (order != Order::ascending) std::shuffle(s.indices.begin(), s.indices.end(), random);
  // Whole numbers, so that sums are exact in every order.
  for (std::size_t i = 0; i < s.indices.size() * block; ++i)
    s.values.push_back(
        static_cast<float>(static_cast<int>(i * 7 + static_cast<std::size_t>(rank)) % 201 - 100));
  s.values.resize(std::max<std::size_t>(s.values.size(), 1));
  return s;
}

/// The plain sum over all ranks, block by block.
template <typename T>
std::map<std::uint64_t, std::vector<float>> sum_of(int ranks, std::uint64_t blocks, std::uint64_t block,
                                                   double density, Order order, int empty_rank) {
  std::map<std::uint64_t, std::vector<float>> sums;
  for (int r = 0; r < ranks; ++r) {
    const auto s = make_stream<T>(r, blocks, block, r == empty_rank ? 0 : density, order);
    for (std::size_t i = 0; i < s.indices.size(); ++i) {
      auto& sum = sums[static_cast<std::uint64_t>(s.indices[i])];
      sum.resize(block);
      for (std::size_t e = 0; e < block; ++e) sum[e] += s.values[i * block + e];
    }
  }
  return sums;
}

template <typename T>
void check_streams(Communicator& c, std::uint64_t count, std::uint64_t block, double density, Order order,
                   int empty_rank) {
  const std::uint64_t blocks = (count + block - 1) / block;
  auto s = make_stream<T>(c.rank(), blocks, block, c.rank() == empty_rank ? 0 : density, order);
  const auto expected = sum_of<T>(c.size(), blocks, block, density, order, empty_rank);
  std::vector<float> output(count, 5.5f);
  const auto v = c.register_buffer(s.values.data(), s.values.size() * sizeof(float));
  const auto o = c.register_buffer(output.data(), output.size() * sizeof(float));
  SparseAllreduceRequest r{.values = s.values.data(),
                           .indices = s.indices,
                           .count = count,
                           .block_elems = block,
                           .output = output.data(),
                           .sum_duplicates = order == Order::with_duplicates};
  c.allreduce_sparse(r).wait();
  std::vector<float> dense(count);
  for (const auto& [b, sum] : expected) {
    for (std::uint64_t e = 0; e < block && b * block + e < count; ++e) dense[b * block + e] = sum[e];
  }
  EXPECT_EQ(output, dense) << "count " << count << " block " << block;

  // Packed, once with enough room, and twice with hardly any: it grows elsewhere, or as most callers would
  // write it, in the memory that holds the first part of the result.
  enum class Room { enough, grows_elsewhere, grows_there };
  for (const Room room : {Room::enough, Room::grows_elsewhere, Room::grows_there}) {
    const bool grows = room != Room::enough;
    const std::uint64_t capacity = grows ? expected.size() / 3 : expected.size() + 2;
    std::vector<float> packed(capacity * block + 1, 6.5f), grown;
    std::vector<T> indices(capacity + 1, T{77}), grown_indices;
    r.output = nullptr;
    r.packed_values = packed.data();
    r.packed_capacity = capacity;
    r.packed_indices = indices.data();
    int asked = 0;
    if (grows) {
      r.packed_grow = [&](std::uint64_t n) -> PackedMemory {
        ++asked;
        EXPECT_EQ(n, expected.size());
        if (room == Room::grows_elsewhere) {
          grown.resize(n * block), grown_indices.resize(n);
          return {grown.data(), grown_indices.data()};
        }
        std::ranges::fill(packed, 6.5f), std::ranges::fill(indices, T{77});
        packed.resize(n * block + 1, 6.5f), indices.resize(n + 1, T{77});
        return {packed.data(), indices.data()};
      };
    }
    Work work = c.allreduce_sparse(r);
    work.wait();
    const bool large = grows && expected.size() > capacity, elsewhere = room == Room::grows_elsewhere;
    EXPECT_EQ(asked, large ? 1 : 0);
    const auto& values = large && elsewhere ? grown : packed;
    const auto& numbers = large && elsewhere ? grown_indices : indices;
    const auto found = work.packed_indices();
    ASSERT_EQ(found.size(), expected.size());
    std::size_t at = 0;
    for (const auto& [b, sum] : expected) {
      ASSERT_EQ(found[at], static_cast<std::int64_t>(b));
      ASSERT_EQ(static_cast<std::uint64_t>(numbers[at]), b);
      for (std::uint64_t e = 0; e < block && b * block + e < count; ++e)
        ASSERT_EQ(values[at * block + e], sum[e]) << "block " << b << " of " << block;
      ++at;
    }
    // The indices are the caller's again, and what the Work says does not depend on them.
    std::fill(indices.begin(), indices.end() - 1, T{3});
    const auto bits = work.union_bitmap();
    EXPECT_EQ(count_bits(bits), expected.size());
    for (const auto& [b, sum] : expected) ASSERT_TRUE(test_bit(bits, b)) << "block " << b;
    EXPECT_EQ(packed.back(), 6.5f) << "written behind the end";
    EXPECT_EQ(indices.back(), T{77}) << "written behind the end";
  }
}

TEST_P(Streams, OfEveryIndexTypeOrderAndSize) {
  run([](Communicator& c) {
    for (const std::uint64_t count : {1, 900, 70001}) {
      for (const std::uint64_t block : {1, 3, 64}) {
        for (const Order order : {Order::ascending, Order::any, Order::with_duplicates}) {
          check_streams<std::int32_t>(c, count, block, 0.02, order, -1);
          check_streams<std::uint32_t>(c, count, block, 0.3, order, 0);
          check_streams<std::int64_t>(c, count, block, 0.3, order, c.size() - 1);
        }
      }
    }
  });
}

TEST_P(Streams, WithEveryFormatForced) {
  for (const IndexFormat format :
       {IndexFormat::bitmap, IndexFormat::offsets, IndexFormat::gaps, IndexFormat::runs, IndexFormat::rice}) {
    SCOPED_TRACE(static_cast<int>(format));
    run(
        [](Communicator& c) {
          for (const std::uint64_t block : {1, 20}) {
            check_streams<std::uint32_t>(c, 70001, block, 0.004, Order::ascending, 0);
            check_streams<std::int64_t>(c, 70001, block, 0.4, Order::with_duplicates, -1);
          }
        },
        [&](Options& o) { o.tune.format = format; });
  }
}

TEST_P(Streams, DenseTensorsOfSmallBlocks) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      for (const std::uint64_t block : {1, 6}) {
        Problem p{.type = static_cast<DataType>(type),
                  .op = static_cast<ReduceOp>(op),
                  .count = 30011,
                  .block = block,
                  .sparsity = kSparsities[(type + op) % 6],
                  .ranks = GetParam().ranks};
        problems.emplace_back(p, make_expected(p));
      }
    }
  }
  run([&](Communicator& c) {
    for (const auto& [p, expected] : problems) {
      for (const Form form : {Form::in_place, Form::out_of_place, Form::with_bitmap})
        run_one(c, p, expected, form);
    }
  });
}

/// A result so large that it is stored past the caches.
TEST(LargeDenseResults, OfSingleElementsAreRight) {
  const Problem p{.count = engine::kLeastStreamedOutput / sizeof(float) + 777,
                  .block = 1,
                  .sparsity = Sparsity::random,
                  .ranks = 2};
  const Expected expected = make_expected(p);
  const auto errors = run_ranks({.transport = "loopback", .ranks = 2, .options = {}},
                                [&](Communicator& c) { run_one(c, p, expected, Form::out_of_place); });
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

float rounded(float value, WireType type) {
  if (type == WireType::float16) return half_to_float(float_to_half(value));
  return bfloat16_to_float(float_to_bfloat16(value));
}

/// Rank 0 has nothing, and passes neither values nor indices. With one rank, nobody has anything.
TEST_P(Streams, ARankWithoutAnythingPassesNothing) {
  run([](Communicator& c) {
    for (const std::uint64_t block : {1, 256}) {
      const std::uint64_t count = 5000 * block;
      std::vector<float> values(2 * block, 3.0f), dense(count, -1.0f), packed(4 * block, -1.0f);
      const auto in = c.register_buffer(values.data(), values.size() * 4);
      const auto out = c.register_buffer(dense.data(), dense.size() * 4);
      const auto few = c.register_buffer(packed.data(), packed.size() * 4);
      const std::array<std::int64_t, 2> indices{7, 4999};
      SparseAllreduceRequest r{.count = count, .block_elems = block, .output = dense.data()};
      if (c.rank() != 0) r.values = values.data(), r.indices = indices;
      c.allreduce_sparse(r).wait();
      const float sum = 3.0f * static_cast<float>(c.size() - 1);
      EXPECT_EQ(dense[7 * block], sum) << c.rank();
      EXPECT_EQ(dense.back(), sum) << c.rank();
      EXPECT_EQ(static_cast<std::size_t>(std::count(dense.begin(), dense.end(), 0.0f)),
                sum == 0 ? count : count - 2 * block);
      r.output = nullptr, r.packed_values = packed.data(), r.packed_capacity = 4;
      Work work = c.allreduce_sparse(r);
      work.wait();
      EXPECT_EQ(work.packed_indices().size(), c.size() == 1 ? 0u : 2u);
      EXPECT_EQ(packed[0], c.size() == 1 ? -1.0f : sum);
    }
  });
}

TEST_P(Streams, NarrowerFloatsAreRoundedOnceEachWay) {
  for (const WireType type : {WireType::float16, WireType::bfloat16}) {
    for (const bool by_option : {false, true}) {
      std::mutex mutex;
      std::vector<std::vector<float>> results;
      run(
          [&](Communicator& c) {
            constexpr std::uint64_t kCount = 50021;
            const auto value = [&](int rank, std::uint64_t i) {
              return (i * 31 + static_cast<unsigned>(rank) * 7) % 5 == 0
                         ? 0.1f * static_cast<float>((i * 13 + static_cast<unsigned>(rank)) % 1000)
                         : 0.0f;
            };
            for (const std::uint64_t block : {1, 16}) {
              std::vector<float> data(kCount);
              for (std::uint64_t i = 0; i < kCount; ++i) data[i] = value(c.rank(), i);
              const auto registered = c.register_buffer(data.data(), kCount * sizeof(float));
              c.allreduce({.input = data.data(),
                           .output = data.data(),
                           .count = kCount,
                           .block_elems = block,
                           .wire_type = by_option ? WireType::by_option : type})
                  .wait();
              for (std::uint64_t i = 0; i < kCount; ++i) {
                float sum = 0;
                for (int r = 0; r < c.size(); ++r) sum += rounded(value(r, i), type);
                if (c.size() > 1) {
                  ASSERT_EQ(data[i], rounded(sum, type)) << "element " << i << " block " << block;
                } else {
                  ASSERT_EQ(data[i], value(0, i));
                }
              }
              const std::scoped_lock lock(mutex);
              results.push_back(data);
            }
          },
          [&](Options& o) {
            if (by_option) o.wire_type = type;
          });
    }
  }
}

TEST(StreamErrors, NameWhatIsWrong) {
  Setting s;
  s.options.log_level = LogLevel::off;
  const auto errors = run_ranks(s, [](Communicator& c) {
    std::vector<float> values(64), output(10000);
    const auto v = c.register_buffer(values.data(), 256);
    const auto o = c.register_buffer(output.data(), 40000);
    const auto refused = [&](const SparseAllreduceRequest& r) -> std::string {
      try {
        c.allreduce_sparse(r).wait();
      } catch (const Error& e) {
        return e.what();
      }
      return "";
    };
    SparseAllreduceRequest r{
        .values = values.data(), .count = 10000, .block_elems = 1, .output = output.data()};
    const std::vector<std::uint32_t> far{3, 10000};
    r.indices = far;
    EXPECT_EQ(refused(r), "allreduce: block index 10000 is not below the block count 10000");
    const std::vector<std::int32_t> negative{-2};
    r.indices = negative;
    EXPECT_EQ(refused(r), "allreduce: block index -2 is not below the block count 10000");
    const std::vector<std::int64_t> twice{9, 4, 9};
    r.indices = twice;
    EXPECT_EQ(
        refused(r),
        "allreduce: block index 9 is there twice; every index may occur once, unless sum_duplicates is set");
    r.indices = {nullptr, 2, IndexType::int32};
    EXPECT_EQ(refused(r), "allreduce: indices is null");
    r.indices = {far.data(), 1, static_cast<IndexType>(7)};
    EXPECT_EQ(refused(r), "allreduce: index type 7 does not exist");
    // So many bytes of values that their number would begin again at 0.
    const std::vector<std::int64_t> zeros(4);
    r.count = 1, r.block_elems = std::uint64_t{1} << 60, r.indices = zeros, r.sum_duplicates = true;
    EXPECT_EQ(refused(r), "allreduce: 4 indices are given, and their values are larger than memory can be");
    r.count = 10000, r.block_elems = 1, r.sum_duplicates = false;
    r.indices = {};
    r.wire_type = static_cast<WireType>(9);
    EXPECT_EQ(refused(r), "allreduce: wire_type 9 does not exist");
    r.wire_type = WireType::float16;
    r.type = DataType::int32;
    EXPECT_EQ(refused(r), "allreduce: wire_type is for float32, and the type is int32");
    r.type = DataType::float32;
    r.block_elems = 5000;
    EXPECT_EQ(refused(r),
              "allreduce: block_elems is 5000; with a wire_type, and slots of 278528 bytes, blocks may have "
              "at most 1024 elements");
    r.wire_type = WireType::by_option;
    r.block_elems = 1;
    r.output = nullptr;
    r.packed_capacity = 5;
    r.packed_grow = [](std::uint64_t) -> PackedMemory { return {}; };
    EXPECT_EQ(refused(r), "allreduce: packed_values is null, and packed_capacity is not 0");
    r.packed_capacity = 0;
    const std::vector<std::uint32_t> few{3, 5000};
    r.indices = few;
    const auto no_memory = refused(r);
    EXPECT_NE(no_memory.find("packed_grow gave no memory for 2 blocks"), std::string::npos) << no_memory;
    r.packed_grow = [](std::uint64_t) -> PackedMemory { throw std::bad_alloc(); };
    EXPECT_THROW(c.allreduce_sparse(r).wait(), std::bad_alloc);
    std::vector<float> packed(1);
    r.packed_values = packed.data();
    r.packed_capacity = 1;
    // It is asked again after it has thrown, and may have given up its memory by then.
    values[0] = 3, values[1] = 5;
    int calls = 0;
    r.packed_grow = [&](std::uint64_t n) -> PackedMemory {
      std::ranges::fill(packed, 6.5f);
      packed = {};
      if (++calls == 1) throw std::bad_alloc();
      packed.resize(n);
      return {packed.data(), {}};
    };
    Work grown = c.allreduce_sparse(r);
    EXPECT_THROW(grown.wait(), std::bad_alloc);
    grown.wait();
    EXPECT_EQ(packed, (std::vector<float>{6, 10}));
    r.packed_grow = {};
    packed.resize(1);
    r.packed_values = packed.data();
    const auto too_small = refused(r);
    EXPECT_NE(too_small.find("the packed result has 2 blocks, packed_capacity is 1"), std::string::npos)
        << too_small;
    c.barrier();  // the communicator goes on
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

/// The union is read in the caller's memory for indices, once. So it is known afterwards whatever the caller
/// writes there; and where that was too early, the caller is told.
TEST_P(Streams, AreReadInTheCallersMemoryOnce) {
  run([](Communicator& c) {
    std::vector<float> values(4, 1.0f), packed(8);
    const auto v = c.register_buffer(values.data(), values.size() * 4);
    const std::vector<std::int64_t> given{5, 700, 50000, 99999};
    std::vector<std::int64_t> indices(8);
    const auto sum = [&] {
      Work work = c.allreduce_sparse({.values = values.data(),
                                      .indices = given,
                                      .count = 100000,
                                      .block_elems = 1,
                                      .packed_values = packed.data(),
                                      .packed_capacity = 8,
                                      .packed_indices = indices.data()});
      work.wait();
      return work;
    };
    const Work known = sum();
    EXPECT_TRUE(std::ranges::equal(known.packed_indices(), given));
    std::ranges::fill(indices, std::int64_t{1} << 40);
    EXPECT_TRUE(std::ranges::equal(known.packed_indices(), given));
    const auto bits = known.union_bitmap();
    EXPECT_EQ(count_bits(bits), given.size());
    for (const std::int64_t b : given) EXPECT_TRUE(test_bit(bits, static_cast<std::uint64_t>(b)));

    const auto changed = Pair(static_cast<int>(ErrorCode::invalid_usage),
                              HasSubstr("the memory for indices has been changed"));
    for (const std::vector<std::int64_t>& other :
         {std::vector<std::int64_t>{1, 2, 2, 3}, {-1, 2, 3, 4}, {1, 2, 3, 100000}}) {
      const Work overwritten = sum();
      std::ranges::copy(other, indices.begin());
      EXPECT_THAT(error_of([&] { (void)overwritten.packed_indices(); }), changed);
      EXPECT_THAT(error_of([&] { (void)overwritten.union_bitmap(); }), changed);
    }
  });
}

/// A sum that wraps before it is divided would be a wrong average. One that fits is divided once, with those
/// of the other ranks.
TEST(StreamErrors, AveragesOfBytesDoNotWrap) {
  Setting s;
  s.options.log_level = LogLevel::off;
  const auto errors = run_ranks(s, [](Communicator& c) {
    std::vector<std::uint8_t> values(6, 100), output(101, 9);
    const auto v = c.register_buffer(values.data(), values.size());
    const auto o = c.register_buffer(output.data(), output.size());
    const std::vector<std::int32_t> twice{50, 3, 3}, thrice{3, 3, 3};
    SparseAllreduceRequest r{.values = values.data(),
                             .indices = twice,
                             .count = output.size(),
                             .type = DataType::uint8,
                             .op = ReduceOp::avg,
                             .block_elems = 2,
                             .output = output.data(),
                             .sum_duplicates = true};
    c.allreduce_sparse(r).wait();
    EXPECT_EQ(output[6], 200);
    EXPECT_EQ(output[7], 200);
    EXPECT_EQ(output[100], 100) << "a partial block";
    r.indices = thrice;
    const auto refused = error_of([&] { c.allreduce_sparse(r).wait(); }).second;
    EXPECT_EQ(
        refused,
        "allreduce: the blocks of index 3 add up to 300 in element 6, and uint8 holds 255; average them "
        "in a wider type");
    r.op = ReduceOp::sum;  // which wraps, as sums of integers do
    c.allreduce_sparse(r).wait();
    EXPECT_EQ(output[6], static_cast<std::uint8_t>(600));
    const std::vector<std::int32_t> behind{50, 50, 3};
    r.op = ReduceOp::avg, r.indices = behind;
    values = {100, 200, 100, 200, 0, 0};  // what lies behind the tensor's end counts for nothing
    c.allreduce_sparse(r).wait();
    EXPECT_EQ(output[100], 200);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

/// Indices that would be cut off are refused before anything is written, whatever the result has.
TEST(StreamErrors, NarrowIndicesOfLargeTensorsAreRefused) {
  Setting s;
  s.options.log_level = LogLevel::off;
  const auto errors = run_ranks(s, [](Communicator& c) {
    std::vector<float> values(2, 1.0f), packed(2);
    const auto v = c.register_buffer(values.data(), 8);
    std::vector<std::int32_t> int32(2, -77);
    std::vector<std::uint32_t> uint32(2, 77);
    SparseAllreduceRequest r{
        .values = values.data(), .block_elems = 1, .packed_values = packed.data(), .packed_capacity = 2};
    const auto refused = [&] { return error_of([&] { c.allreduce_sparse(r).wait(); }).second; };
    r.count = (std::uint64_t{1} << 31) + 1;
    r.packed_indices = int32.data();
    EXPECT_EQ(refused(),
              "allreduce: packed_indices: int32 holds indices up to 2147483647, and the tensor has "
              "2147483649 blocks; give memory for int64");
    r.count = (std::uint64_t{1} << 32) + 1;
    r.packed_indices = uint32.data();
    EXPECT_EQ(refused(),
              "allreduce: packed_indices: uint32 holds indices up to 4294967295, and the tensor has "
              "4294967297 blocks; give memory for int64");
    r.packed_indices = {uint32.data(), static_cast<IndexType>(9)};
    EXPECT_EQ(refused(), "allreduce: packed_indices: index type 9 does not exist");

    // The type of memory that grows is known only when there is a result.
    const std::vector<std::int64_t> far{0, (std::int64_t{1} << 31) + 5};
    r.count = (std::uint64_t{1} << 31) + 6;
    r.indices = far;
    r.packed_values = nullptr, r.packed_capacity = 0;
    r.packed_indices = {};
    r.packed_grow = [&](std::uint64_t) -> PackedMemory { return {packed.data(), int32.data()}; };
    EXPECT_NE(refused().find("the indices that packed_grow gave memory for: int32 holds indices up to"),
              std::string::npos);
    EXPECT_EQ(int32, std::vector<std::int32_t>(2, -77));
    c.barrier();  // the communicator goes on
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

std::vector<Where> places() {
  return {{"loopback", 1}, {"loopback", 2}, {"loopback", 4}, {"loopback", 3, 2}, {"loopback", 3, 0, 2},
          {"cma", 4},      {"shm", 2},      {"tcp", 3},      {"tcp", 2, 0, 2}};
}
INSTANTIATE_TEST_SUITE_P(Places, Streams, ::testing::ValuesIn(places()), [](const auto& i) {
  const Where& w = i.param;
  return w.transport + "_" + std::to_string(w.ranks) + "_" + std::to_string(w.dedicated) + "_" +
         std::to_string(w.lanes);
});

/// The caller's blocks lie as far from one another as the request says, also where the tensor is shorter than
/// one.
TEST(ShortTensors, DuplicatesOfTheirOnlyBlockAreSummed) {
  constexpr std::uint64_t kElements = 110, kBlock = 1000;
  for (const Algorithm algorithm : {Algorithm::push, Algorithm::merging, Algorithm::automatic}) {
    for (const int ranks : {1, 2, 3}) {
      const auto errors = run_ranks({.ranks = ranks, .options = {}}, [&](Communicator& c) {
        std::vector<std::int32_t> values(3 * kBlock,
                                         -1000);  // what lies behind the tensor's end counts for nothing
        std::vector<std::int32_t> expected(kElements), output(kElements), packed(kBlock);
        for (std::size_t e = 0; e < kElements; ++e) {
          for (std::size_t i = 0; i < 3; ++i) {
            const auto of_rank = [&](int r) { return static_cast<std::int32_t>(e * 7 + i * 100) + r; };
            values[i * kBlock + e] = of_rank(c.rank());
            for (int r = 0; r < ranks; ++r) expected[e] += of_rank(r);
          }
        }
        const std::vector<std::int64_t> zeros(3);
        const auto v = c.register_buffer(values.data(), values.size() * sizeof(std::int32_t));
        const auto o = c.register_buffer(output.data(), output.size() * sizeof(std::int32_t));
        SparseAllreduceRequest r{.values = values.data(),
                                 .indices = zeros,
                                 .count = kElements,
                                 .type = DataType::int32,
                                 .block_elems = kBlock,
                                 .output = output.data(),
                                 .sum_duplicates = true,
                                 .algorithm = ranks > 1 ? algorithm : Algorithm::automatic};
        c.allreduce_sparse(r).wait();
        EXPECT_EQ(output, expected);
        r.output = nullptr;
        r.packed_values = packed.data();
        r.packed_capacity = 1;
        c.allreduce_sparse(r).wait();
        packed.resize(kElements);
        EXPECT_EQ(packed, expected);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "") << ranks;
    }
  }
}

}  // namespace
}  // namespace nzcl::test

// Allreduces whose messages a device takes from memory of an emulated GPU itself, and whose direct results it
// writes there. The host cannot touch that memory: a lane that reads or writes any of it is ended by a
// signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <tuple>
#include <vector>

#include "tests/system/gpu_floats.h"
#include "tests/system/run_on_gpu.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

Setting direct(Setting setting) {
  setting.options.tune.gpu_direct = true;
  setting.options.algorithm = Algorithm::push;  // GPUs of one host would sum otherwise
  return setting;
}

std::uint64_t direct_bytes(const Communicator& c) { return c.statistics().gpu_direct_bytes; }

/// How results travel: by the length of their runs, or all of them written in place.
enum class Results : std::uint8_t { as_planned, written };
using Ran = std::tuple<Where, DataType, Results>;
class GpuDirect : public testing::TestWithParam<Ran> {};

TEST_P(GpuDirect, SumsHaveTheBitsOfThePlainSum) {
  const auto& [where, type, results] = GetParam();
  std::vector<Problem> problems;
  unsigned seed = 1;
  for (const std::uint64_t block : {256, 1000, 20000}) {
    for (const std::uint64_t count : {std::uint64_t{1}, block * 65 + 1, std::uint64_t{100003}}) {
      if (count > 400000) continue;
      for (const Sparsity sparsity : kSparsities) {
        const auto op = static_cast<ReduceOp>(seed % kReduceOps);
        problems.push_back({type, op, count, block, sparsity, where.ranks, seed++});
      }
    }
  }
  std::vector<Expected> expected;
  for (const Problem& p : problems) expected.push_back(make_expected(p));
  Setting setting = direct(where.setting());
  if (results == Results::written) setting.options.tune.direct_bytes = 1;
  const auto errors = run_ranks(setting, [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    for (std::size_t i = 0; i < problems.size(); ++i)
      run_one_on_gpu(c, on, problems[i], expected[i], static_cast<Form>(i % 4), i % 3 == 0,
                     kMixes[i / 4 % std::size(kMixes)]);
    EXPECT_GT(direct_bytes(c), 0u);
  });
  EXPECT_THAT(errors, Each(""));
}

std::string name_of_run(const testing::TestParamInfo<Ran>& info) {
  return std::get<0>(info.param).text() + "_" + std::string(nzcl::name_of(std::get<1>(info.param))) +
         (std::get<2>(info.param) == Results::written ? "_written" : "");
}
INSTANTIATE_TEST_SUITE_P(
    Ranks, GpuDirect,
    testing::Combine(testing::Values(Where{"loopback", 2}, Where{"loopback", 3}, Where{"loopback", 4, 0, 2},
                                     Where{"loopback", 2, 1}, Where{"loopback", 3, 2}),
                     testing::Values(DataType::float32, DataType::bfloat16, DataType::uint8),
                     testing::Values(Results::as_planned, Results::written)),
    name_of_run);

/// Each byte that a rank sends of its contribution, and each that it gets of a result, and no other.
TEST(GpuDirectBytes, AreAllThatOthersSum) {
  for (const int dedicated : {0, 2}) {
    constexpr std::uint64_t kElements = 1 << 18;
    Setting setting = direct({.ranks = 3, .dedicated = dedicated, .options = {}});
    setting.options.tune.direct_bytes = 1;
    std::mutex mutex;
    std::uint64_t all = 0;
    const auto errors = run_ranks(setting, [&](Communicator& c) {
      OnGpu on;
      GpuFloats floats(c, on, kElements);
      c.allreduce(floats.request(on.stream())).wait();
      EXPECT_THAT(floats.read(on), Each(3.0f));
      const std::scoped_lock lock(mutex);
      all += direct_bytes(c);
    });
    EXPECT_THAT(errors, Each(""));
    // Of colocated owners, each rank sums a part of the tensor, which it neither sends nor gets.
    EXPECT_EQ(all, (dedicated > 0 ? 6 : 4) * kElements * sizeof(float)) << dedicated;
  }
}

/// What the host has to read or write goes through its memory: small operations, tiles, graphs and other
/// collectives are as right as before, and no byte of theirs is counted.
TEST(GpuDirectBytes, AreNoneWhereTheHostHasToReadThem) {
  const auto errors = run_ranks(direct({.ranks = 2, .options = {}}), [&](Communicator& c) {
    OnGpu on;
    for (const auto& [count, block] : {std::pair<std::uint64_t, std::uint64_t>{1000, 256}, {100003, 4}}) {
      const Problem p{.count = count, .block = block, .ranks = 2};
      run_one_on_gpu(c, on, p, make_expected(p), Form::out_of_place, true);
    }
    GpuFloats floats(c, on);
    c.broadcast({.data = floats.data, .count = kCount, .root = 0, .stream = on.stream()}).wait();
    EXPECT_EQ(direct_bytes(c), 0u);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GpuDirect, ABitmapThatHidesABlockIsFound) {
  Setting setting = direct({.ranks = 2, .options = {}});
  setting.options.check = 1;
  const auto errors = run_ranks(setting, [](Communicator& c) {
    OnGpu on;
    GpuFloats floats(c, on, 1 << 18);
    std::vector<std::uint64_t> bitmap((1 << 18) / 256 / 64, ~std::uint64_t{0});
    bitmap[5] &= ~std::uint64_t{2};
    AllreduceRequest request = floats.request(on.stream());
    request.block_elems = 256;
    request.bitmap = bitmap;
    Work work = c.allreduce(request);
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_THAT(error.what(), HasSubstr("321"));
    EXPECT_THAT(floats.read(on), Each(2.0f));
    EXPECT_GT(direct_bytes(c), 0u);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GpuDirect, MemoryIsUsedAgain) {
  const auto errors = run_ranks(direct({.ranks = 2, .options = {}}), [](Communicator& c) {
    OnGpu on;
    GpuFloats floats(c, on, 1 << 18);
    c.allreduce(floats.request(on.stream())).wait();
    const std::size_t pieces = on.gpu().pieces();
    for (int i = 0; i < 10; ++i) c.allreduce(floats.request(on.stream())).wait();
    EXPECT_EQ(on.gpu().pieces(), pieces);
  });
  EXPECT_THAT(errors, Each(""));
}

/// Who asks for it where it cannot be is told so.
TEST(GpuDirect, TransportsThatNeedTheHostRefuseIt) {
  for (const char* transport : {"shm", "tcp", "cma"}) {
    const auto run = [](Communicator& c) {
      OnGpu on;
      GpuFloats floats(c, on, 1 << 18);
      const Error error = thrown_by([&] { c.allreduce(floats.request(on.stream())).wait(); });
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("NZCL_TUNE=gpu_direct=on"), HasSubstr("does not reach memory of a GPU")));
      // Nothing else is the matter with the communicator.
      std::vector<float> ones(1000, 1.0f);
      const auto buffer = c.register_buffer(ones.data(), ones.size() * sizeof(float));
      c.allreduce({.input = ones.data(), .output = ones.data(), .count = ones.size()}).wait();
      EXPECT_THAT(ones, Each(2.0f));
    };
    EXPECT_THAT(run_ranks(direct({.transport = transport, .ranks = 2, .options = {}}), run), Each(""))
        << transport;
  }
}

/// A gather list has an entry for the header, one for what lies far, and one for a seal.
TEST(GpuDirect, ShortGatherListsAreRefused) {
  Setting setting = direct({.ranks = 2, .options = {}});
  setting.options.tune.max_segments = 2;
  const auto errors = run_ranks(setting, [](Communicator& c) {
    OnGpu on;
    GpuFloats floats(c, on, 1 << 18);
    const Error error = thrown_by([&] { c.allreduce(floats.request(on.stream())).wait(); });
    EXPECT_THAT(error.what(), HasSubstr("three entries of a gather list"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GpuDirect, AbortReleasesTheStreamsOfAllRanks) {
  const auto errors = run_ranks(direct({.ranks = 3, .options = {}}), [](Communicator& c) {
    OnGpu on;
    GpuFloats floats(c, on, 1 << 18);
    c.allreduce(floats.request(on.stream())).wait();
    abort_while_others_wait(c, on, floats);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test

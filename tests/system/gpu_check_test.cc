// NZCL_CHECK=1 with memory of a GPU: a bitmap that hides a block is found, and the block is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/system/gpu_floats.h"

namespace nzcl::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

/// A call of two ranks, each of which has kCount ones, with a bitmap. Rank 1's hides a block.
struct Checked {
  const char* name;
  std::uint64_t block;
  std::function<Work(Communicator&, const GpuFloats&, std::span<const std::uint64_t> bitmap, void* stream)>
      start;
  Algorithm algorithm = Algorithm::automatic;
};

Work allreduce(Communicator& c, const GpuFloats& f, std::uint64_t block,
               std::span<const std::uint64_t> bitmap, void* stream) {
  AllreduceRequest request = f.request(stream);
  request.block_elems = block;
  request.bitmap = bitmap;
  return c.allreduce(request);
}

const std::vector<Checked>& checked_calls() {
  static const std::vector<Checked> calls{
      {"blocks", 100,
       [](auto& c, auto& f, auto bitmap, void* stream) { return allreduce(c, f, 100, bitmap, stream); }},
      {"tiles", 1,
       [](auto& c, auto& f, auto bitmap, void* stream) { return allreduce(c, f, 1, bitmap, stream); }},
      {"hierarchy", 100,
       [](auto& c, auto& f, auto bitmap, void* stream) { return allreduce(c, f, 100, bitmap, stream); },
       Algorithm::hierarchy},
      {"reduce_scatter", 100, [](auto& c, auto& f, auto bitmap, void* stream) {
         return c.reduce_scatter({.input = f.data,
                                  .output = f.data + static_cast<std::uint64_t>(c.rank()) * (kCount / 2),
                                  .count = kCount / 2,
                                  .block_elems = 100,
                                  .bitmap = bitmap,
                                  .stream = stream});
       }}};
  return calls;
}

TEST(GpuCheck, ABitmapThatHidesABlockFailsItsOwnRankByTheBlocksIndex) {
  for (const Checked& call : checked_calls()) {
    Setting s = setting();
    s.options.check = 1;
    s.options.algorithm = call.algorithm;
    if (call.algorithm == Algorithm::hierarchy) s.options.tune.host_ranks = 1;
    const auto errors = run_ranks(s, [&](Communicator& c) {
      OnGpu on;
      const std::uint64_t blocks = kCount / call.block, hidden = blocks - 30;
      for (const bool hides : {false, true, false}) {
        const GpuFloats floats(c, on);
        std::vector<std::uint64_t> bitmap(blocks / 64 + 1, ~std::uint64_t{0});
        if (hides && c.rank() == 1) bitmap[hidden / 64] &= ~(std::uint64_t{1} << hidden % 64);
        Work work = call.start(c, floats, bitmap, on.stream());
        work.enqueue_wait(on.stream());
        EXPECT_TRUE(ends(on, on.stream())) << call.name;
        const Error error = thrown_by([&] { work.wait(); });
        if (hides && c.rank() == 1) {
          EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << call.name;
          EXPECT_THAT(error.what(),
                      AllOf(HasSubstr("block " + std::to_string(hidden) + " of the input is not"),
                            HasSubstr("operation 1: ")))
              << call.name;
        } else {
          EXPECT_EQ(std::string(error.what()), "") << call.name;
        }
      }
    });
    EXPECT_THAT(errors, Each("")) << call.name;
  }
}

}  // namespace
}  // namespace nzcl::test

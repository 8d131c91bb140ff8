// NZCL_CHECK=1: promises about buffers that nzcl takes on trust are verified, and what breaks them is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <future>
#include <vector>

#include "tests/system/misuse.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kBlocks = 100, kCount = kBlocks * 256;

Setting checking(int ranks) {
  Setting s = quick(ranks);
  s.options.check = 1;
  return s;
}

TEST(CheckTest, ABitmapThatHidesABlockIsRefusedByTheBlocksIndex) {
  const auto errors = run_ranks(checking(1), [](Communicator& c) {
    Buffer b(c, kCount - 3);
    std::fill(b.data.begin(), b.data.end(), 0.0f);
    std::vector<std::uint64_t> bitmap{1, 0};
    AllreduceRequest r = b.request();
    r.bitmap = bitmap;
    b.data[0] = 1.0f;
    c.allreduce(r).wait();
    b.data[77 * 256 + 255] = -0.0f;
    const auto error = error_of([&] { (void)c.allreduce(r); });
    EXPECT_EQ(error.first, static_cast<int>(ErrorCode::invalid_argument));
    EXPECT_THAT(error.second, AllOf(HasSubstr("block 77 "), HasSubstr("bitmap")));
    bitmap[1] = 1ull << (77 - 64);
    c.allreduce(r).wait();  // nothing was started: all is still well
  });
  EXPECT_THAT(errors, Each(""));
}

/// Races with the operation that reads the value, because such a race is to be found.
[[gnu::no_sanitize("thread"), gnu::noinline]] void change_in_flight(float& value, float change) {
  value += change;
}

/// Rank 0 starts what `start` starts, and changes `touched` before rank 1 takes part.
std::pair<int, std::string> error_of_a_touch(
    const Setting& s, const std::function<Work(Communicator&, Buffer& in, Buffer& out)>& start,
    std::size_t touched, float change = 1.0f) {
  std::promise<void> changed;
  auto ready = changed.get_future().share();
  std::pair<int, std::string> error;
  const auto errors = run_ranks(s, [&](Communicator& c) {
    Buffer in(c, kCount), out(c, kCount);
    std::fill(in.data.begin() + kCount / 2, in.data.end(), 0.0f);
    if (c.rank() == 1) ready.wait();
    Work work = start(c, in, out);
    if (c.rank() == 0) {
      change_in_flight(in.data[touched], change);
      changed.set_value();
      error = error_of([&] { work.wait(); });
      EXPECT_EQ(error_of([&] { work.wait(); }), error) << "every wait says the same";
    } else {
      work.wait();
    }
    c.barrier();  // that operation alone has failed
  });
  EXPECT_THAT(errors, Each(""));
  return error;
}

Work out_of_place(Communicator& c, Buffer& in, Buffer& out) {
  return c.allreduce({.input = in.data.data(), .output = out.data.data(), .count = kCount});
}

TEST(CheckTest, AnInputThatChangesIsNamedByTheBlocksIndex) {
  for (const std::size_t touched : {std::size_t{0}, 13 * 256 + 7ul, kCount - 1}) {
    const auto error = error_of_a_touch(checking(2), out_of_place, touched);
    EXPECT_EQ(error.first, static_cast<int>(ErrorCode::invalid_usage));
    EXPECT_THAT(error.second,
                AllOf(HasSubstr("operation 0: block " + std::to_string(touched / 256) + " of the input"),
                      HasSubstr("wait()")));
  }
}

TEST(CheckTest, InPlaceABlockOutsideTheResultMayNotChangeEither) {
  std::vector<std::uint64_t> first_half(2);
  first_half[0] = (1ull << 50) - 1;
  const auto with_bitmap = [&](Communicator& c, Buffer& in, Buffer&) {
    AllreduceRequest r = in.request();
    r.bitmap = first_half;
    return c.allreduce(r);
  };
  EXPECT_THAT(error_of_a_touch(checking(2), with_bitmap, 90 * 256).second,
              HasSubstr("block 90 of the input"));
  EXPECT_EQ(error_of_a_touch(checking(2), with_bitmap, 0, 0.0f).second, "") << "results are no change";
}

TEST(CheckTest, ValuesThatChangeAreNamedByTheirPlaceInTheList) {
  const std::array<std::int64_t, 3> indices{60, 4, 80};
  const auto start = [&](Communicator& c, Buffer& in, Buffer& out) {
    return c.allreduce_sparse(
        {.values = in.data.data(), .indices = indices, .count = kCount, .output = out.data.data()});
  };
  EXPECT_THAT(error_of_a_touch(checking(2), start, 2 * 256 + 1).second, HasSubstr("block 2 of values"));
  EXPECT_EQ(error_of_a_touch(checking(2), start, 3 * 256).second, "") << "behind the list";
}

TEST(CheckTest, SingleElementsOfTilesAreNamed) {
  const auto start = [](Communicator& c, Buffer& in, Buffer& out) {
    return c.allreduce(
        {.input = in.data.data(), .output = out.data.data(), .count = kCount, .block_elems = 1});
  };
  EXPECT_THAT(error_of_a_touch(checking(2), start, 20'001).second, HasSubstr("block 20001 of the input"));
  const auto errors = run_ranks(checking(1), [](Communicator& c) {
    Buffer b(c, kCount);
    std::vector<std::uint64_t> bitmap(kCount / 64, ~0ull);
    bitmap[20'001 / 64] = 0;
    AllreduceRequest r = b.request();
    r.block_elems = 1, r.bitmap = bitmap;
    std::fill_n(b.data.begin() + 20'001 / 64 * 64, 64, 0.0f);
    b.data[20'001] = 1.0f;
    EXPECT_THAT(error_of([&] { (void)c.allreduce(r); }).second, HasSubstr("block 20001 of the input"));
  });
  EXPECT_THAT(errors, Each(""));
}

/// Blocks of chunks are counted chunk by chunk. The first chunk's 300 elements are two blocks, the second of
/// them of 44 elements.
constexpr std::array<std::uint64_t, 2> kChunks{300, 1000};

Work scattered(Communicator& c, Buffer& in, Buffer& out) {
  return c.reduce_scatter({.input = in.data.data(), .output = out.data.data(), .counts = kChunks});
}

TEST(CheckTest, InputsOfChunksAreLookedAtToo) {
  EXPECT_THAT(error_of_a_touch(checking(2), scattered, 299).second, HasSubstr("block 1 of the input"));
  EXPECT_THAT(error_of_a_touch(checking(2), scattered, 300).second, HasSubstr("block 2 of the input"));
  EXPECT_THAT(error_of_a_touch(checking(2), scattered, 1299).second, HasSubstr("block 5 of the input"));
  EXPECT_EQ(error_of_a_touch(checking(2), scattered, 1300).second, "") << "behind the chunks";
  const auto equal_chunks = [](Communicator& c, Buffer& in, Buffer& out) {
    return c.reduce_scatter({.input = in.data.data(), .output = out.data.data(), .count = 500});
  };
  EXPECT_THAT(error_of_a_touch(checking(2), equal_chunks, 500).second, HasSubstr("block 2 of the input"));
  const auto gathered = [](Communicator& c, Buffer& in, Buffer& out) {
    return c.allgather({.input = in.data.data(), .output = out.data.data(), .count = 1000});
  };
  EXPECT_THAT(error_of_a_touch(checking(2), gathered, 999).second, HasSubstr("block 3 of the input"));
}

TEST(CheckTest, OnlyTheChunkThatGetsTheResultMayChange) {
  const auto in_place = [](Communicator& c, Buffer& in, Buffer&) {
    float* const own = in.data.data() + (c.rank() == 0 ? 0 : kChunks[0]);
    return c.reduce_scatter({.input = in.data.data(), .output = own, .counts = kChunks});
  };
  EXPECT_EQ(error_of_a_touch(checking(2), in_place, 10, 0.0f).second, "") << "results are no change";
  EXPECT_THAT(error_of_a_touch(checking(2), in_place, 300).second, HasSubstr("block 2 of the input"));
}

TEST(CheckTest, ABitmapThatHidesABlockOfAChunkIsRefused) {
  const auto errors = run_ranks(checking(2), [](Communicator& c) {
    Buffer in(c, 1300), out(c, 2600);
    const std::vector<std::uint64_t> all_but_4{0b101111};
    EXPECT_THAT(
        error_of([&] {
          (void)c.reduce_scatter(
              {.input = in.data.data(), .output = out.data.data(), .counts = kChunks, .bitmap = all_but_4});
        }).second,
        AllOf(HasSubstr("reduce_scatter: block 4 of the input"), HasSubstr("bitmap")));
    EXPECT_THAT(
        error_of([&] {
          (void)c.allgather(
              {.input = in.data.data(), .output = out.data.data(), .count = 1300, .bitmap = all_but_4});
        }).second,
        HasSubstr("allgather: block 4 of the input"));
    c.barrier();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(CheckTest, WithoutTheOptionNothingIsLookedAt) {
  EXPECT_EQ(error_of_a_touch(quick(2), out_of_place, 0).second, "");
}

TEST(CheckTest, RightUseIsNeverAnError) {
  const auto errors = run_ranks(checking(3), [](Communicator& c) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, 257ul, kCount, kCount * 20 + 5}) {
      Buffer in(c, count + 1), out(c, count + 1);
      AllreduceRequest r{
          .input = in.data.data(), .output = out.data.data(), .count = count, .block_elems = 3};
      c.allreduce(r).wait();
      r.output = in.data.data();
      c.allreduce(r).wait();
      r.dense = true;
      c.allreduce(r).wait();
      in.data[0] = 5;
      c.allreduce(r).wait();
    }
    for (const std::uint64_t count : {0, 1, 257, 5000}) {
      Buffer in(c, 3 * count + 1), out(c, 3 * count + 1);
      float* const own = in.data.data() + count * static_cast<std::uint64_t>(c.rank());
      c.broadcast({.data = in.data.data(), .count = count, .root = 1}).wait();
      c.reduce({.input = in.data.data(), .output = in.data.data(), .count = count}).wait();
      c.reduce_scatter({.input = in.data.data(), .output = out.data.data(), .count = count}).wait();
      c.reduce_scatter({.input = in.data.data(), .output = own, .count = count, .block_elems = 3}).wait();
      c.allgather({.input = own, .output = out.data.data(), .count = count}).wait();
      c.allgather({.input = own, .output = in.data.data(), .count = count, .block_elems = 3}).wait();
    }
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test

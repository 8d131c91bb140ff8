// Calls on empty objects, calls that come too early, and timeouts without end. Each either does what it says
// or throws an error that explains why not; none crashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <future>
#include <limits>
#include <utility>

#include "nzcl/compress.h"
#include "tests/system/misuse.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using std::chrono::nanoseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pair;

const auto kInvalidArgument = static_cast<int>(ErrorCode::invalid_argument);
const auto kInvalidUsage = static_cast<int>(ErrorCode::invalid_usage);

/// Rank 1 joins late, so that rank 0 has to wait.
void wait_for_a_late_rank(const std::function<void(Work&)>& wait) {
  const auto errors = run_ranks(quick(2), [&](Communicator& c) {
    Buffer b(c);
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    Work work = c.allreduce(b.request());
    if (c.rank() == 0) wait(work);
    work.wait();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LongTimes, AWaitOfAnyLengthWaits) {
  wait_for_a_late_rank([](Work& work) { EXPECT_TRUE(work.wait(nanoseconds::max())); });
  wait_for_a_late_rank([](Work& work) { EXPECT_TRUE(work.wait(std::chrono::hours::max())); });
  wait_for_a_late_rank([](Work& work) { EXPECT_TRUE(work.wait(std::chrono::duration<double>(1e300))); });
}

TEST(LongTimes, ATimeThatIsOverReturnsAtOnce) {
  wait_for_a_late_rank([](Work& work) { EXPECT_FALSE(work.wait(nanoseconds::min())); });
  wait_for_a_late_rank([](Work& work) { EXPECT_FALSE(work.wait(std::chrono::seconds::min())); });
}

TEST(LongTimes, OptionsOfADayWork) {
  Setting s = quick(2);
  s.options.timeout_s = s.options.bootstrap_timeout_s = s.options.close_timeout_s = 86400;
  EXPECT_THAT(run_ranks(s, [](Communicator& c) { c.barrier(); }), Each(""));
}

TEST(EmptyHandles, EveryCallOfAnEmptyWorkSaysSo) {
  Work work;
  const auto empty = Pair(kInvalidUsage, HasSubstr("Work is empty"));
  EXPECT_FALSE(work.valid());
  EXPECT_THAT(error_of([&] { (void)work.epoch(); }), empty);
  EXPECT_THAT(error_of([&] { (void)work.test(); }), empty);
  EXPECT_THAT(error_of([&] { work.wait(); }), empty);
  EXPECT_THAT(error_of([&] { (void)work.wait(nanoseconds(1)); }), empty);
  EXPECT_THAT(error_of([&] { (void)work.union_bitmap(); }), empty);
  EXPECT_THAT(error_of([&] { (void)work.packed_indices(); }), empty);
  EXPECT_THAT(error_of([&] { (void)work.result_blocks(); }), empty);
  EXPECT_THAT(error_of([&] { work.on_complete([](const Error*) {}); }), empty);
  EXPECT_THAT(error_of([&] { (void)work.statistics(); }), empty);
}

TEST(EmptyHandles, EveryCallOfAMovedFromCommunicatorSaysSo) {
  const auto errors = run_ranks(quick(1), [](Communicator& c) {
    Buffer b(c, 100);
    Communicator taken = std::move(c);
    const auto gone = Pair(kInvalidUsage, HasSubstr("Communicator is empty"));
    EXPECT_THAT(error_of([&] { (void)c.rank(); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.size(); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.options(); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.describe(); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.register_buffer(b.data.data(), 4); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.allreduce(b.request()); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.allreduce_sparse({}); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.broadcast({}); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.reduce({}); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.reduce_scatter({}); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.allgather({}); }), gone);
    CompressorState compressor(Compressor{}, 100);
    EXPECT_THAT(error_of([&] { (void)c.allreduce_compressed({}); }), gone);
    EXPECT_THAT(error_of([&] {
                  (void)c.allreduce_compressed(
                      {.state = &compressor, .input = b.data.data(), .output = b.data.data()});
                }),
                gone);
    EXPECT_THAT(error_of([&] { c.barrier(); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.statistics(); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.async_error(); }), gone);
    EXPECT_THAT(error_of([&] { c.abort("why"); }), gone);
    EXPECT_THAT(error_of([&] { c.close(); }), gone);
    EXPECT_THAT(error_of([&] { (void)c.split(0); }), gone);
    EXPECT_FALSE(c.valid());
    EXPECT_EQ(taken.rank(), 0);
    c = std::move(taken);
    EXPECT_EQ(c.size(), 1);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(EmptyHandles, EveryCallOfAMovedFromCompressorStateSaysSo) {
  CompressorState state(Compressor{}, 100);
  const CompressorState taken = std::move(state);
  const auto gone = Pair(kInvalidUsage, HasSubstr("CompressorState is empty"));
  EXPECT_THAT(error_of([&] { (void)state.compressor(); }), gone);
  EXPECT_THAT(error_of([&] { (void)state.elements(); }), gone);
  EXPECT_THAT(error_of([&] { (void)state.compress({}); }), gone);
  EXPECT_THAT(error_of([&] { (void)state.save(); }), gone);
  EXPECT_THAT(error_of([&] { state.restore({}); }), gone);
  EXPECT_THAT(error_of([&] { state.reset(); }), gone);
  EXPECT_THAT(error_of([&] { (void)state.report(); }), gone);
  EXPECT_THAT(error_of([&] { (void)state.residual(); }), gone);
  EXPECT_EQ(taken.elements(), 100u);
}

TEST(EmptyHandles, AMovedFromGroupSaysSo) {
  LocalGroup group(1);
  const LocalGroup taken = std::move(group);
  const auto gone = Pair(kInvalidUsage, HasSubstr("LocalGroup is empty"));
  EXPECT_THAT(error_of([&] { (void)group.workers(); }), gone);
  EXPECT_THAT(error_of([&] { (void)group.aggregators(); }), gone);
  EXPECT_THAT(error_of([&] { Communicator c(group, 0); }), gone);
  EXPECT_THAT(error_of([&] { serve_aggregator(group, 0); }), gone);
}

TEST(Group, OfTooManyMembersIsRefused) {
  const auto refused =
      Pair(static_cast<int>(ErrorCode::invalid_argument), HasSubstr("no more than 4096 members"));
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_THAT(error_of([] { LocalGroup(kMost, kMost); }), refused);
  EXPECT_THAT(error_of([] { LocalGroup(1, kMost); }), refused);
  EXPECT_THAT(error_of([] { LocalGroup(4097); }), refused);
  EXPECT_EQ(LocalGroup(1, 4095).aggregators(), 4095);
}

/// Whether all ranks of the group can meet in it and sum something.
void expect_usable(const LocalGroup& group) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < group.workers(); ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_EQ(error_of([&] {
                  Communicator c(group, rank, quick(2).options);
                  Buffer b(c);
                  c.allreduce(b.request()).wait();
                  EXPECT_EQ(b.data.front(), static_cast<float>(group.workers()));
                }).second,
                "")
          << rank;
    });
  }
}

TEST(Group, CanBeMetInAgainAfterAMeetingThatFailed) {
  LocalGroup group(3);
  Options hasty = quick(2).options;
  hasty.bootstrap_timeout_s = 1;
  for (const int alone : {0, 2}) {
    EXPECT_THAT(error_of([&] { Communicator c(group, alone, hasty); }),
                Pair(static_cast<int>(ErrorCode::timeout), HasSubstr("member 1")));
  }
  expect_usable(group);
}

TEST(EmptyHandles, AMovedFromBufferCoversNothing) {
  const auto errors = run_ranks(quick(1), [](Communicator& c) {
    Buffer b(c, 100);
    RegisteredBuffer taken = std::move(b.registered);
    EXPECT_TRUE(b.registered.bytes().empty());
    b.registered = std::move(taken);
    EXPECT_EQ(b.registered.bytes().size(), 400u);
    EXPECT_TRUE(taken.bytes().empty());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(EmptyHandles, ACallbackThatIsNotThereIsNamed) {
  EXPECT_THAT(error_of([] { Communicator c({}, 0, 1, AllgatherCallback()); }),
              Pair(kInvalidArgument, HasSubstr("allgather")));
}

// The Work that the test still holds keeps the old communicator's core alive. So the other rank learns that
// this one has left only if the assignment closes the old communicator.
TEST(MoveAssignment, ClosesTheCommunicatorThatItReplaces) {
  LocalGroup first(2), second(2);
  std::array<std::string, 2> errors;
  std::promise<void> closed;
  auto other_left = closed.get_future();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Options options = quick(2).options;
        options.close_timeout_s = 2;
        Communicator c(first, rank, options);
        Work held = c.allreduce({});
        held.wait();
        Communicator next(second, rank, options);
        if (rank == 0) {
          c = std::move(next);
          other_left.wait();
          c.barrier();
        } else {
          errors[1] = error_of([&] { c.close(); }).second;
          closed.set_value();
          next.barrier();
        }
      });
    }
  }
  EXPECT_THAT(errors, Each(""));
}

TEST(MoveAssignment, ToItselfChangesNothing) {
  const auto errors = run_ranks(quick(1), [](Communicator& c) {
    Communicator& same = c;
    c = std::move(same);
    c.barrier();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(TooEarly, StatisticsAndBitmapOfARunningOperationAreRefused) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer b(c);
    if (c.rank() == 0) {
      Work work = c.allreduce(b.request());  // cannot complete yet, as the other rank has not begun
      EXPECT_THAT(error_of([&] { (void)work.statistics(); }),
                  Pair(kInvalidUsage, HasSubstr("statistics: operation 0 has not completed")));
      EXPECT_THAT(error_of([&] { (void)work.union_bitmap(); }),
                  Pair(kInvalidUsage, HasSubstr("union_bitmap: operation 0 has not completed")));
      EXPECT_THAT(error_of([&] { (void)work.packed_indices(); }),
                  Pair(kInvalidUsage, HasSubstr("packed_indices: operation 0 has not completed")));
      work.wait();
      EXPECT_EQ(work.statistics().union_blocks, 40u);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      c.allreduce(b.request()).wait();
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(BadRequest, SparseWithoutAnyOutputIsRefusedAtTheCall) {
  const auto errors = run_ranks(quick(1), [](Communicator& c) {
    Buffer b(c);
    const std::array<std::int64_t, 1> indices{0};
    SparseAllreduceRequest r{.values = b.data.data(), .indices = indices, .count = 1000};
    EXPECT_THAT(error_of([&] { (void)c.allreduce_sparse(r); }),
                Pair(kInvalidArgument, AllOf(HasSubstr("output"), HasSubstr("packed_values"))));
    r.packed_capacity = 5;
    EXPECT_THAT(error_of([&] { (void)c.allreduce_sparse(r); }),
                Pair(kInvalidArgument, HasSubstr("packed_values")));
    EXPECT_EQ(c.statistics().operations, 0u);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(BadRequest, MemoryThatIsNotMappedIsRefusedAtTheCall) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  // Far from everything else, so that no thread's stack or heap is mapped into the hole meanwhile.
#ifdef __SANITIZE_THREAD__
  constexpr std::uintptr_t kFar = 0x60'0000'0000;  // programs have only a few ranges of addresses then
#else
  constexpr std::uintptr_t kFar = 0x2000'0000'0000;
#endif
  auto* const far = reinterpret_cast<void*>(kFar);
  auto* mapped = static_cast<std::byte*>(::mmap(far, 8 * page, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
  ASSERT_NE(static_cast<void*>(mapped), MAP_FAILED);
  ASSERT_EQ(::munmap(mapped + 4 * page, page), 0);  // the range now has a hole
  const auto errors = run_ranks(quick(1), [&](Communicator& c) {
    const auto refused = [&](std::byte* data, std::size_t bytes) {
      return error_of([&] { (void)c.register_buffer(data, bytes); });
    };
    const auto is_unmapped = Pair(kInvalidArgument, HasSubstr("not mapped"));
    EXPECT_THAT(refused(mapped, 8 * page), is_unmapped);
    EXPECT_THAT(refused(mapped + 4 * page - 1, 2), is_unmapped);
    EXPECT_THAT(refused(mapped + 4 * page, 1), is_unmapped);
    EXPECT_THAT(refused(mapped + page, std::numeric_limits<std::size_t>::max() - page), is_unmapped);
    EXPECT_THAT(refused(mapped + 1, 4 * page - 1), Pair(0, ""));
    EXPECT_THAT(refused(mapped + 5 * page, 3 * page), Pair(0, ""));
    std::array<unsigned char, 4> present{};
    EXPECT_EQ(::mincore(mapped, 4 * page, present.data()), 0);
    EXPECT_THAT(present, Each(0)) << "the question alone must not bring pages in";
  });
  EXPECT_THAT(errors, Each(""));
  ::munmap(mapped, 8 * page);
}

TEST(EmptyTensor, SparseBlocksOfNothing) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    float place = 7;
    const auto registered = c.register_buffer(&place, sizeof place);
    // data() of an empty vector may or may not be null. Ranks where it differs still agree about the
    // operation.
    float* const output = c.rank() == 0 ? nullptr : &place;
    Work dense = c.allreduce_sparse({.count = 0, .output = output});
    dense.wait();
    EXPECT_EQ(dense.statistics().blocks, 0u);
    Work packed = c.allreduce_sparse({.count = 0, .packed_values = output, .packed_capacity = 1});
    packed.wait();
    EXPECT_TRUE(packed.packed_indices().empty());
    EXPECT_TRUE(packed.union_bitmap().empty());
    const std::array<std::int64_t, 1> indices{0};
    EXPECT_THAT(
        error_of([&] {
          (void)c.allreduce_sparse({.values = &place, .indices = indices, .count = 0, .block_elems = 1});
        }),
        Pair(kInvalidArgument, HasSubstr("block index 0 is not below the block count 0")));
    EXPECT_EQ(place, 7);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test

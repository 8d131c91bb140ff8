// A selection of the system tests over native verbs. Ranks are threads, and each has a device of its own as
// far as there are enough.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "tests/rdma/rdma.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/run_one.h"

namespace nzcl::test {
namespace {

using testing::Each;

class RdmaTest : public Rdma, public testing::WithParamInterface<int> {};

TEST_P(RdmaTest, EveryTypeOnce) {
  const int ranks = GetParam();
  std::vector<std::pair<Problem, Expected>> problems;
  for (int type = 0; type < kDataTypes; ++type) {
    Problem p{.type = static_cast<DataType>(type),
              .op = static_cast<ReduceOp>(type % kReduceOps),
              .count = 6007,
              .block = 64,
              .ranks = ranks};
    problems.emplace_back(p, make_expected(p));
  }
  EXPECT_THAT(run_ranks(setting(ranks),
                        [&](Communicator& c) {
                          for (const auto& [p, expected] : problems) run_one(c, p, expected, Form::in_place);
                        }),
              Each(""));
}

TEST_P(RdmaTest, EverySparsityOnce) {
  const int ranks = GetParam();
  std::vector<std::pair<Problem, Expected>> problems;
  for (const Sparsity sparsity : kSparsities) {
    for (const std::uint64_t count : {0, 1, 257, 100003}) {
      Problem p{.count = count, .block = 256, .sparsity = sparsity, .ranks = ranks};
      problems.emplace_back(p, make_expected(p));
    }
  }
  EXPECT_THAT(run_ranks(setting(ranks),
                        [&](Communicator& c) {
                          int turn = 0;
                          for (const auto& [p, expected] : problems)
                            run_one(c, p, expected, static_cast<Form>(turn++ % 4));
                        }),
              Each(""));
}

TEST_P(RdmaTest, ManyInFlight) {
  const int ranks = GetParam();
  Problem p{.count = 30011, .block = 16, .sparsity = Sparsity::random, .ranks = ranks};
  const Expected expected = make_expected(p);
  EXPECT_THAT(
      run_ranks(setting(ranks),
                [&](Communicator& c) {
                  std::vector<std::vector<std::byte>> buffers(10, make_input(p, c.rank()));
                  std::vector<RegisteredBuffer> registered;
                  std::vector<Work> works;
                  for (auto& b : buffers) {
                    registered.push_back(c.register_buffer(b.data(), b.size()));
                    works.push_back(c.allreduce(
                        {.input = b.data(), .output = b.data(), .count = p.count, .block_elems = p.block}));
                  }
                  for (std::size_t i = works.size(); i-- > 0;) {
                    works[i].wait();
                    EXPECT_EQ(first_difference(buffers[i], expected.data), -1) << p.text();
                  }
                }),
      Each(""));
}

/// Maps new pages at the address of registered ones that are gone. The device must not go on to use the old
/// pages.
TEST_F(Rdma, MemoryThatIsUnmappedAndMappedAgainAtItsAddress) {
  constexpr std::size_t kCount = 1 << 18, kBytes = kCount * sizeof(float);
  Setting s = setting(2);
  s.options.tune.gather_bytes = s.options.tune.direct_bytes =
      1;  // the device accesses all of the buffer itself
  EXPECT_THAT(run_ranks(s,
                        [&](Communicator& c) {
                          void* place = nullptr;
                          for (int turn = 1; turn <= 3; ++turn) {
                            // From the second turn on, this call also unmaps what lies there, in one step, so
                            // that no memory of another thread can get the address in between.
                            void* const mapped =
                                ::mmap(place, kBytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0), -1, 0);
                            ASSERT_NE(mapped, MAP_FAILED);
                            place = mapped;
                            const std::span data(static_cast<float*>(place), kCount);
                            std::fill(data.begin(), data.end(), static_cast<float>(turn));
                            const auto handle = c.register_buffer(place, kBytes);
                            c.allreduce({.input = place, .output = place, .count = kCount}).wait();
                            EXPECT_EQ(std::count(data.begin(), data.end(), 2.0f * static_cast<float>(turn)),
                                      static_cast<std::ptrdiff_t>(kCount))
                                << "turn " << turn << ", first " << data[0] << ", last " << data[kCount - 1];
                          }
                          ::munmap(place, kBytes);
                        }),
              Each(""));
}

/// After a fork, the process that first writes a page gets a new copy of it. That must not be the parent,
/// because its device goes on to use the old page.
TEST_F(Rdma, AForkedChildLeavesTheDeviceTheParentsPages) {
  EXPECT_THAT(
      run_ranks(setting(2),
                [&](Communicator& c) {
                  std::vector<float> data(100000, 1.0f);
                  const auto handle = c.register_buffer(data.data(), data.size() * 4);
                  const pid_t child = c.rank() == 0 ? ::fork() : -1;
                  if (child == 0) {
                    ::pause();
                    ::_exit(0);
                  }
                  std::fill(data.begin(), data.end(), 2.0f);
                  c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
                  EXPECT_EQ(std::count(data.begin(), data.end(), 4.0f), 100000);
                  if (child > 0) {
                    ::kill(child, SIGKILL);
                    ::waitpid(child, nullptr, 0);
                  }
                }),
      Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RdmaTest, testing::Values(1, 2, 3, 4, 8));

// --- Limits that are exceeded on purpose

class RdmaLimitsTest : public Rdma {
 protected:
  void run_with(const std::function<void(Options&)>& change) {
    Setting s = setting(3);
    change(s.options);
    Problem p{.count = 50021, .block = 16, .sparsity = Sparsity::random, .ranks = 3};
    const Expected expected = make_expected(p);
    EXPECT_THAT(run_ranks(s,
                          [&](Communicator& c) {
                            run_one(c, p, expected, Form::in_place);
                            run_one(c, p, expected, Form::dense_flag);
                          }),
                Each(""));
  }
};

TEST_F(RdmaLimitsTest, TheFewestAndSmallestSlots) {
  run_with([](Options& o) { o.tune.slot_bytes = 4096, o.tune.channel_slots = 2; });
}
TEST_F(RdmaLimitsTest, OneSlotPerChannel) {
  run_with([](Options& o) { o.tune.slot_bytes = 4096, o.tune.channel_slots = 1; });
}
TEST_F(RdmaLimitsTest, OneGatherEntryPerWrite) {
  run_with([](Options& o) { o.tune.max_segments = 1, o.tune.gather_bytes = 1; });
}
TEST_F(RdmaLimitsTest, ConnectedByRdmaCm) {
  run_with([](Options& o) { o.connect = Connect::rdma_cm; });
}
TEST_F(RdmaLimitsTest, SeveralLanesConnectedByRdmaCm) {
  run_with([](Options& o) { o.connect = Connect::rdma_cm, o.lanes = 2; });
}
TEST_F(RdmaLimitsTest, EverythingPacked) {
  run_with([](Options& o) { o.tune.gather_bytes = 1ull << 30, o.tune.direct_bytes = 1ull << 30; });
}
TEST_F(RdmaLimitsTest, EverythingGatheredAndDirect) {
  run_with([](Options& o) { o.tune.gather_bytes = 1, o.tune.direct_bytes = 1; });
}
TEST_F(RdmaLimitsTest, SeveralLanes) {
  run_with([](Options& o) { o.lanes = 2, o.tune.scan_threads = 1; });
}

TEST_F(RdmaLimitsTest, SettingsBeyondTheDeviceAreNamed) {
  Setting s = setting(2);
  s.options.gid_index = 200;
  EXPECT_THAT(run_ranks(s, [](Communicator&) {}), Each(testing::HasSubstr("has no GID with index 200")));
  s = setting(2);
  s.options.interface = "mlx5_77";
  EXPECT_THAT(run_ranks(s, [](Communicator&) {}), Each(testing::HasSubstr("does not belong to mlx5_77")));
}

}  // namespace
}  // namespace nzcl::test

// Broadcast, reduce, reduce-scatter, allgather and splits over native verbs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/rdma/rdma.h"
#include "tests/system/run_collective.h"

namespace nzcl::test {
namespace {

using testing::Each;

class RdmaCollectivesTest : public Rdma, public testing::WithParamInterface<int> {
 protected:
  /// Makes the calls on all ranks, with settings that `change` changes.
  static void run(
      const std::vector<std::pair<Call, Form>>& calls,
      const std::function<void(Options&)>& change = [](Options&) {}) {
    Setting s = setting(GetParam());
    change(s.options);
    EXPECT_THAT(run_ranks(s,
                          [&](Communicator& c) {
                            for (const auto& [call, form] : calls) run_collective(c, call, form);
                          }),
                Each(""));
  }
  /// Every kind of call, with changing roots, sparsities and forms.
  static std::vector<std::pair<Call, Form>> calls_of(std::uint64_t count, std::uint64_t block) {
    std::vector<std::pair<Call, Form>> calls;
    int turn = 0;
    for (const Kind kind : kKinds) {
      for (const Sparsity sparsity : kSparsities) {
        const Problem p{.count = count, .block = block, .sparsity = sparsity, .ranks = GetParam()};
        const int root = ++turn % GetParam();
        calls.emplace_back(make_call(kind, root, p, turn % 3 == 0), static_cast<Form>(turn % 4));
      }
    }
    return calls;
  }
};

TEST_P(RdmaCollectivesTest, SmallAndLarge) {
  run(calls_of(97, 256));
  run(calls_of(60011, 256));
}

TEST_P(RdmaCollectivesTest, EverythingGatheredAndDirect) {
  run(calls_of(20011, 16), [](Options& o) { o.tune.gather_bytes = 1, o.tune.direct_bytes = 1; });
}

TEST_P(RdmaCollectivesTest, ConnectedByRdmaCm) {
  run(calls_of(20011, 64), [](Options& o) { o.connect = Connect::rdma_cm; });
}

/// The parts share the device, and memory that is registered with the whole.
TEST_P(RdmaCollectivesTest, OnPartsAndTheWholeOfASplit) {
  EXPECT_THAT(
      run_ranks(setting(GetParam()),
                [](Communicator& whole) {
                  Communicator part = whole.split(whole.rank() % 2, -whole.rank());
                  std::vector<float> data(30000, 1.0f);
                  const auto buffer = whole.register_buffer(data.data(), data.size() * 4);
                  const AllreduceRequest request{
                      .input = data.data(), .output = data.data(), .count = data.size()};
                  part.allreduce(request).wait();
                  EXPECT_EQ(data[29999], static_cast<float>(part.size()));
                  std::fill(data.begin(), data.end(), static_cast<float>(part.rank()));
                  part.broadcast({.data = data.data(), .count = data.size(), .root = part.size() - 1}).wait();
                  EXPECT_EQ(data[0], static_cast<float>(part.size() - 1));
                  std::fill(data.begin(), data.end(), 1.0f);
                  whole.allreduce(request).wait();
                  EXPECT_EQ(data[0], static_cast<float>(whole.size()));
                }),
      Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RdmaCollectivesTest, testing::Values(2, 3));

}  // namespace
}  // namespace nzcl::test

// Broadcast, reduce, reduce-scatter and allgather of real ranks, over transports and placements of
// aggregators, compared bit by bit with plain sums and copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/plan/tuning.h"
#include "tests/system/oracle.h"
#include "tests/system/run_collective.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

class CollectivesTest : public ::testing::TestWithParam<Where> {
 protected:
  Setting setting() const {
    Setting s = GetParam().setting();
    s.options.tune.scan_threads = GetParam().lanes > 1 ? 1 : 0;
    return s;
  }
  void run(const std::vector<std::pair<Call, Form>>& calls) {
    const auto errors = run_ranks(setting(), [&](Communicator& c) {
      for (const auto& [call, form] : calls) run_collective(c, call, form);
      c.barrier();
    });
    for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
  }
};

TEST_P(CollectivesTest, EverySizeSparsityAndForm) {
  const int ranks = GetParam().ranks;
  std::vector<std::pair<Call, Form>> calls;
  int turn = 0;
  for (const Kind kind : kKinds) {
    for (const std::uint64_t count : {0, 1, 97, 256, 4999, 60011}) {
      for (const Sparsity sparsity : kSparsities) {
        for (const std::uint64_t block : {1, 256}) {
          if (block == 1 && count > 1000) continue;
          const Problem p{.count = count, .block = block, .sparsity = sparsity, .ranks = ranks};
          ++turn;
          const Call call = make_call(kind, turn % ranks, p, turn % 3 == 0 && count > 0);
          calls.emplace_back(call, Form::in_place);
          calls.emplace_back(call, turn % 2 ? Form::out_of_place : Form::with_bitmap);
          if (sparsity == Sparsity::random) calls.emplace_back(call, Form::dense_flag);
        }
      }
    }
  }
  run(calls);
}

TEST_P(CollectivesTest, EveryTypeAndOperation) {
  std::vector<std::pair<Call, Form>> calls;
  for (const Kind kind : kKinds) {
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        const Problem p{.type = static_cast<DataType>(type),
                        .op = static_cast<ReduceOp>(op),
                        .count = 3001,
                        .block = 64,
                        .ranks = GetParam().ranks};
        if (op > 0 && make_call(kind, 0, p, false).copies()) continue;
        calls.emplace_back(make_call(kind, op % GetParam().ranks, p, false), Form::out_of_place);
      }
    }
  }
  run(calls);
}

TEST_P(CollectivesTest, BlocksLargerThanASlot) {
  std::vector<std::pair<Call, Form>> calls;
  for (const Kind kind : kKinds) {
    const Problem p{.count = 30021, .block = 9001, .sparsity = Sparsity::random, .ranks = GetParam().ranks};
    calls.emplace_back(make_call(kind, GetParam().ranks - 1, p, true), Form::out_of_place);
  }
  run(calls);
}

/// Messages for different audiences follow each other, and stay in their senders' buffers where these are
/// lent.
TEST_P(CollectivesTest, ManyInFlightWithChangingRoots) {
  constexpr int kCalls = 150;  // more than may be in flight
  const int ranks = GetParam().ranks;
  std::vector<Call> calls;
  for (int i = 0; i < kCalls; ++i) {
    const Problem p{.count = static_cast<std::uint64_t>(i % 5 == 0 ? 20011 : 40 + i),
                    .block = 16,
                    .sparsity = kSparsities[i % 6],
                    .ranks = ranks,
                    .seed = static_cast<unsigned>(i)};
    calls.push_back(make_call(kKinds[i % 7 % 4], i % ranks, p, false));
  }
  const auto errors = run_ranks(setting(), [&](Communicator& c) {
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<Joined> outs;
    std::vector<Work> works;
    for (const Call& call : calls) {
      outs.push_back(output_of(call, c.rank()));
      memory.push_back(std::make_unique<Memory>(c, call, input_of(call, c.rank()), outs.back(), false));
      works.push_back(start(c, call, *memory.back(), {}, false, {}));
    }
    for (std::size_t i = works.size(); i-- > 0;) {
      works[i].wait();
      const Memory& m = *memory[i];
      if (m.output == nullptr) continue;
      const std::vector<std::byte> result(m.output, m.output + m.output_bytes);
      ASSERT_EQ(first_difference(result, outs[i].data), -1) << calls[i].text() << " rank " << c.rank();
    }
    c.barrier();
  });
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

TEST_P(CollectivesTest, CopiesKeepEveryBit) {
  const auto errors = run_ranks(setting(), [&](Communicator& c) {
    constexpr std::size_t kCount = 5000;
    std::vector<std::uint32_t> data(kCount * static_cast<std::size_t>(c.size()), 7);
    const auto registered = c.register_buffer(data.data(), data.size() * 4);
    const auto pattern = [](std::size_t i) {
      return i % 2 ? 0x80000000u : 0xffc12345u + static_cast<unsigned>(i);
    };
    if (c.rank() == 0) {
      for (std::size_t i = 0; i < kCount; ++i) data[i] = pattern(i);
    }
    c.broadcast({.data = data.data(), .count = kCount, .block_elems = 32}).wait();
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], pattern(i));
    auto* const own = data.data() + kCount * static_cast<std::size_t>(c.rank());
    for (std::size_t i = 0; i < kCount; ++i) own[i] = pattern(i);
    c.allgather({.input = own, .output = data.data(), .count = kCount, .block_elems = 32}).wait();
    for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], pattern(i % kCount));
  });
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

/// Outputs so large that what is placed there goes past the caches, in long runs and in short ones.
TEST(LargeCollectives, AreRight) {
  const Setting setting{.transport = "loopback", .ranks = 3, .options = {}};
  const auto errors = run_ranks(setting, [](Communicator& c) {
    for (const Kind kind : {Kind::broadcast, Kind::reduce, Kind::allgather}) {
      for (const std::uint64_t block : {std::uint64_t{500}, std::uint64_t{3001}}) {
        const std::uint64_t chunks = kind == Kind::allgather ? 3 : 1;
        const Problem p{.count = engine::kLeastStreamedOutput / sizeof(float) / chunks + 12345,
                        .block = block,
                        .sparsity = Sparsity::random,
                        .ranks = 3};
        run_collective(c, make_call(kind, 1, p, false), Form::out_of_place);
      }
    }
    c.barrier();
  });
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

std::vector<Where> places() {
  std::vector<Where> all;
  for (const char* transport : {"loopback", "cma", "shm", "tcp"}) {
    for (const int ranks : {1, 2, 3, 5}) all.push_back({transport, ranks});
  }
  all.push_back({"loopback", 1, 1});
  all.push_back({"loopback", 3, 1});
  all.push_back({"loopback", 3, 2});
  all.push_back({"loopback", 3, 0, 2});
  all.push_back({"loopback", 2, 2, 2});
  all.push_back({"shm", 3, 0, 2});
  all.push_back({"libfabric-shm", 3, 0, 2});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Places, CollectivesTest, ::testing::ValuesIn(places()),
                         [](const auto& place) { return place.param.text(); });

}  // namespace
}  // namespace nzcl::test

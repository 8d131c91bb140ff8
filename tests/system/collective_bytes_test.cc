// The bytes that collectives send, from their statistics: those of dense tensors beside the formulas of
// runtime/exchange/push/README.md, and those of sparse ones beside the blocks that are not zero.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

/// No scheme sends less than this. Not all owners have the same number of slices, so ranks differ a little.
TEST(CollectiveBytes, AreThoseOfThePage) {
  constexpr std::uint64_t kCount = 1 << 20;
  for (const int ranks : {2, 4}) {
    Setting s{.transport = "shm", .ranks = ranks, .options = {}};
    s.options.pin = Pinning::off;
    const auto errors = run_ranks(s, [&](Communicator& c) {
      const double n = c.size(), bytes = kCount * 4, share = (n - 1) / n;
      std::vector<float> one(kCount, 1.0f), two(kCount);
      const auto a = c.register_buffer(one.data(), kCount * 4), b = c.register_buffer(two.data(), kCount * 4);
      const auto sent = [&](const auto& call) {
        c.barrier();
        const std::uint64_t before = c.statistics().bytes_sent;
        call().wait();
        c.barrier();
        return static_cast<double>(c.statistics().bytes_sent - before);
      };
      const bool root = c.rank() == 0;
      const auto expect = [&](const char* what, double measured, double bound) {
        EXPECT_NEAR(measured, bound, 0.08 * bytes) << what << " rank " << c.rank();
      };
      expect("broadcast", sent([&] { return c.broadcast({.data = one.data(), .count = kCount}); }),
             root ? bytes : bytes * (n - 2) / (n - 1));
      expect("reduce",
             sent([&] { return c.reduce({.input = one.data(), .output = two.data(), .count = kCount}); }),
             root && c.size() == 2 ? 0 : bytes);
      const std::uint64_t chunk = kCount / static_cast<std::uint64_t>(c.size());
      expect("reduce_scatter", sent([&] {
               return c.reduce_scatter({.input = one.data(), .output = two.data(), .count = chunk});
             }),
             bytes * share);
      expect("allgather",
             sent([&] { return c.allgather({.input = one.data(), .output = two.data(), .count = chunk}); }),
             bytes * share);
    });
    for (const auto& e : errors) EXPECT_EQ(e, "");
  }
}

/// Where a tensor of one chunk for each rank has blocks that are not zero.
struct Case {
  std::string transport;
  int ranks;
  double density;
  std::string text() const {
    return transport + ", " + std::to_string(ranks) + " ranks, density " + std::to_string(density);
  }
};

constexpr std::uint64_t kBlock = 256, kChunkBlocks = 4096;
constexpr std::uint64_t kBlockBytes = kBlock * sizeof(float), kSliceBytes = 1 << 20;

/// One rank's blocks, which are as many as the density says on average.
class Tensor {
 public:
  Tensor(const Case& c, int rank)
      : held_(static_cast<std::size_t>(c.ranks) * kChunkBlocks), data_(held_.size() * kBlock) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::bernoulli_distribution holds(c.density);
    for (std::size_t b = 0; b < held_.size(); ++b) {
      held_[b] = holds(random);
      if (held_[b]) data_[b * kBlock + b % kBlock] = 1.0f;
    }
  }
  float* data() { return data_.data(); }
  float* chunk(int c) { return data() + static_cast<std::size_t>(c) * kChunkBlocks * kBlock; }
  std::size_t bytes() const { return data_.size() * sizeof(float); }
  /// Bytes of the chunk's blocks that are not zero.
  double held_in(int c) const {
    const auto begin =
        held_.begin() + static_cast<std::ptrdiff_t>(c) * static_cast<std::ptrdiff_t>(kChunkBlocks);
    return static_cast<double>(kBlockBytes) *
           static_cast<double>(std::count(begin, begin + static_cast<std::ptrdiff_t>(kChunkBlocks), true));
  }

 private:
  std::vector<bool> held_;
  std::vector<float> data_;
};

/// The most that slices cost which carry no data: for each a header, a record and a bitmap to and from each
/// rank, and the headers of the messages that carry the data.
double headers_of(const Case& c) {
  const double slices = kChunkBlocks * kBlockBytes / kSliceBytes * static_cast<double>(c.ranks);
  return (slices + 1) * 512 + 2048;
}

/// What one collective sent and received on one rank.
struct Moved {
  double up = 0;        // to the owners
  double received = 0;  // from them
  double sent = 0;      // by the rank as a worker and as an owner
};

/// `call` starts the collective.
Moved moved_by(Communicator& c, const auto& call) {
  c.barrier();
  const std::uint64_t before = c.statistics().bytes_sent;
  Work work = call();
  work.wait();
  c.barrier();  // until then this rank may go on sending as an owner
  const OperationStatistics s = work.statistics();
  return {static_cast<double>(s.bytes_sent), static_cast<double>(s.bytes_received),
          static_cast<double>(c.statistics().bytes_sent - before)};
}

/// At least the payload, and hardly more.
void expect_bytes(double measured, double payload, const Case& c, const std::string& what) {
  EXPECT_GE(measured, payload) << what << ": " << c.text();
  EXPECT_LE(measured, 1.05 * payload + headers_of(c)) << what << ": " << c.text();
}

void run_case(const Case& c, const std::function<void(Communicator&)>& body) {
  Setting s{.transport = c.transport, .ranks = c.ranks, .options = {}};
  s.options.pin = Pinning::off;
  s.options.log_level = LogLevel::off;
  s.options.tune.slice_bytes = kSliceBytes;
  const auto errors = run_ranks(s, body);
  for (const auto& e : errors) EXPECT_EQ(e, "") << c.text();
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* transport : {"loopback", "cma", "shm", "tcp"}) {
    for (const int ranks : {2, 4}) {
      for (const double density : {0.0, 0.01, 0.1}) all.push_back({transport, ranks, density});
    }
  }
  return all;
}

TEST(SparseCollectiveBytes, ReduceScatterSendsTheBlocksOfOthersChunksUpAndNothingDown) {
  for (const Case& c : cases()) {
    run_case(c, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      Tensor in(c, rank);
      std::vector<float> out(kChunkBlocks * kBlock);
      const auto a = communicator.register_buffer(in.data(), in.bytes());
      const auto b = communicator.register_buffer(out.data(), out.size() * sizeof(float));
      const Moved moved = moved_by(communicator, [&] {
        return communicator.reduce_scatter(
            {.input = in.data(), .output = out.data(), .count = out.size(), .block_elems = kBlock});
      });
      double others = 0;
      for (int r = 0; r < c.ranks; ++r) others += r == rank ? 0 : in.held_in(r);
      expect_bytes(moved.up, others, c, "up");
      expect_bytes(moved.sent - moved.up, 0, c, "down");
      expect_bytes(moved.received, 0, c, "received");
    });
  }
}

TEST(SparseCollectiveBytes, AllgatherSendsTheBlocksOfTheOwnChunkToEachOtherRank) {
  for (const Case& c : cases()) {
    run_case(c, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      Tensor in(c, rank), out(c, rank);
      const auto a = communicator.register_buffer(in.data(), in.bytes());
      const auto b = communicator.register_buffer(out.data(), out.bytes());
      const Moved moved = moved_by(communicator, [&] {
        return communicator.allgather({.input = in.chunk(rank),
                                       .output = out.data(),
                                       .count = kChunkBlocks * kBlock,
                                       .block_elems = kBlock});
      });
      double others = 0;
      for (int r = 0; r < c.ranks; ++r) others += r == rank ? 0 : Tensor(c, r).held_in(r);
      expect_bytes(moved.up, 0, c, "up");
      expect_bytes(moved.sent - moved.up, in.held_in(rank) * (c.ranks - 1), c, "down");
      expect_bytes(moved.received, others, c, "received");
    });
  }
}

}  // namespace
}  // namespace nzcl::test

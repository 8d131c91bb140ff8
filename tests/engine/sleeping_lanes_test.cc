// Lanes with threads of their own, which sleep when they have nothing to do. Nobody waits in a call that
// drives them, so each depends on being woken: by what arrives, by other lanes, and by scan threads. A lane
// that is not woken goes on when its sleep is over, and counts that (Lane::overslept()).
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "runtime/lane/scan_pool.h"
#include "tests/engine/cluster.h"
#include "tests/engine/two_rank_sum.h"

namespace nzcl::test {
namespace {

using engine::Operation;

struct Case {
  const char* name;
  int ranks = 2, lanes = 1, scan_threads = 0;
  bool packed = false, merging = false;
  std::uint64_t block = 1, count = 0;
  std::uint64_t slice_bytes = 64 << 10;
  /// Callers look in now and then, as Work::test() does, and go away again.
  bool callers = false;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

constexpr std::uint64_t kOperations = 60;

/// The lanes of all ranks with their threads, and a scan pool for each rank.
class Sleepers {
 public:
  explicit Sleepers(const Case& c) : case_(c), cluster_(options(c)) {
    for (int r = 0; r < c.ranks; ++r) {
      bells_.push_back(std::make_unique<Bells>(cluster_, r));
      pools_.push_back(std::make_unique<engine::ScanPool>(c.scan_threads, [](int) {}));
      for (int l = 0; l < c.lanes; ++l)
        threads_.emplace_back([this, r, l](std::stop_token stop) { cluster_.lane(r, l).run(stop); });
    }
  }
  ~Sleepers() {
    for (auto& thread : threads_) thread.request_stop();
    for (int r = 0; r < case_.ranks; ++r) {
      for (int l = 0; l < case_.lanes; ++l) cluster_.lane(r, l).ring();
    }
  }

  Cluster& cluster() { return cluster_; }
  /// Does what a call does that starts an operation.
  void start(int rank, const std::shared_ptr<Operation>& op) {
    op->ring_lanes(bells_[static_cast<std::size_t>(rank)].get(), case_.lanes);
    op->bell = &finished_;
    if (!op->layout.tiled()) pools_[static_cast<std::size_t>(rank)]->submit(op);
    for (int l = 0; l < case_.lanes; ++l) {
      if (op->layout.on_lane(static_cast<std::uint32_t>(l), static_cast<std::uint32_t>(case_.lanes)))
        cluster_.lane(rank, l).submit(op.get());
    }
    if (case_.callers) look_in(rank);
  }
  void look_in(int rank) {
    for (int l = 0; l < case_.lanes; ++l) cluster_.lane(rank, l).drive();
    for (int l = 0; l < case_.lanes; ++l) cluster_.lane(rank, l).hand_back();
  }
  void wait(const std::vector<std::shared_ptr<Operation>>& operations) {
    finished_.listen();
    for (int rank = 0; const auto& op : operations) {
      while (!op->finished() && !cluster_.failure()) {
        const std::uint32_t seen = finished_.rings();
        if (op->finished()) break;
        if (case_.callers && random_() % 4 == 0) {
          look_in(rank);
          std::this_thread::yield();
          continue;
        }
        finished_.wait(seen);
      }
      ++rank;
    }
    finished_.stop_listening();
  }
  std::uint64_t overslept() {
    std::uint64_t sum = 0;
    for (int r = 0; r < case_.ranks; ++r) {
      for (int l = 0; l < case_.lanes; ++l) sum += cluster_.lane(r, l).overslept();
    }
    return sum;
  }

 private:
  class Bells final : public engine::LaneBells {
   public:
    Bells(Cluster& cluster, int rank) : cluster_(cluster), rank_(rank) {}
    void ring(int lane) noexcept override { cluster_.lane(rank_, lane).ring(); }

   private:
    Cluster& cluster_;
    const int rank_;
  };
  static ClusterOptions options(const Case& c) {
    ClusterOptions o;
    o.workers = c.ranks;
    o.lanes = c.lanes;
    o.slot_bytes = 16 << 10;
    o.express_slot_bytes = 4096;
    o.slice_bytes = c.slice_bytes;
    o.merging = c.merging;
    o.tile_block_bytes = c.block == 1 ? 512 : 0;
    return o;
  }

  const Case case_;
  engine::CompletionBell finished_;
  Cluster cluster_;
  std::vector<std::unique_ptr<Bells>> bells_;
  std::vector<std::unique_ptr<engine::ScanPool>> pools_;
  std::vector<std::jthread> threads_;
  std::minstd_rand random_{1};
};

class SleepingLanesTest : public ::testing::TestWithParam<Case> {};

TEST_P(SleepingLanesTest, AreWokenWheneverSomethingIsReady) {
  const Case& c = GetParam();
  const auto ranks = static_cast<std::size_t>(c.ranks);
  std::vector<std::vector<std::int32_t>> inputs(ranks), outputs(ranks);
  std::vector<std::int32_t> sum(c.count);
  std::mt19937 random(7);
  for (std::size_t r = 0; r < ranks; ++r) {
    inputs[r].resize(c.count);
    outputs[r].resize(c.count);
    for (std::uint64_t i = 0; i < c.count; ++i) {
      if (random() % (20 * c.block) != 0) continue;
      inputs[r][i] = static_cast<std::int32_t>(random() % 1000 + 1);
      sum[i] += inputs[r][i];
    }
  }
  std::vector<std::shared_ptr<Operation>> operations(ranks);  // outlive the lanes' threads
  Sleepers sleepers(c);
  Cluster& cluster = sleepers.cluster();
  std::vector<std::unique_ptr<verbs::MemoryRegion>> regions;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (auto* const v : {&inputs[r], &outputs[r]})
      regions.push_back(cluster.device(static_cast<int>(r))
                            .register_memory(std::as_writable_bytes(std::span(*v)), MemoryKind::host));
  }
  for (std::uint64_t epoch = 0; epoch < kOperations && sleepers.overslept() == 0; ++epoch) {
    for (std::size_t r = 0; r < ranks; ++r) {
      wire::OperationRecord record;
      record.count = c.count;
      record.block_elems = c.block;
      record.type = static_cast<std::uint8_t>(DataType::int32);
      record.algorithm = c.merging ? wire::Algorithm::merging : wire::Algorithm::push;
      record.packed_result = c.packed;
      record.output_address = regions[2 * r + 1]->remote().address;
      record.output_key = regions[2 * r + 1]->remote().key;
      operations[r] = std::make_shared<Operation>(
          cluster.layout(epoch, c.count, sizeof(std::int32_t), c.block), record,
          engine::InputView{.base = reinterpret_cast<const std::byte*>(inputs[r].data()),
                            .region = regions[2 * r].get()},
          engine::OutputView{.base = reinterpret_cast<std::byte*>(outputs[r].data()),
                             .region = regions[2 * r + 1].get(),
                             .packed = c.packed,
                             .capacity = c.count / c.block},
          c.lanes);
      operations[r]->epoch = epoch;
      operations[r]->table_index = static_cast<std::uint32_t>(epoch % engine::kMaxOperations);
      sleepers.start(static_cast<int>(r), operations[r]);
    }
    sleepers.wait(operations);
    ASSERT_FALSE(cluster.failure()) << cluster.failure()->text;
  }
  EXPECT_EQ(sleepers.overslept(), 0u);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto total = std::accumulate(sum.begin(), sum.end(), std::int64_t{0});
    const auto placed = c.packed ? operations[r]->union_blocks.load() * c.block : c.count;
    EXPECT_EQ(std::accumulate(outputs[r].begin(), outputs[r].begin() + static_cast<std::ptrdiff_t>(placed),
                              std::int64_t{0}),
              total);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SleepingLanesTest,
    ::testing::Values(Case{.name = "packed_tiles", .lanes = 2, .packed = true, .block = 1, .count = 1000000},
                      Case{.name = "packed_tiles_merged",
                           .lanes = 2,
                           .packed = true,
                           .merging = true,
                           .block = 1,
                           .count = 400000},
                      Case{.name = "packed_tiles_merged_by_3_ranks",
                           .ranks = 3,
                           .lanes = 2,
                           .packed = true,
                           .merging = true,
                           .block = 1,
                           .count = 400000},
                      Case{.name = "packed_blocks",
                           .lanes = 3,
                           .packed = true,
                           .block = 256,
                           .count = 4000000,
                           .slice_bytes = 256 << 10},
                      Case{.name = "one_rank_scanned_ahead",
                           .ranks = 1,
                           .scan_threads = 3,
                           .block = 256,
                           .count = 4000000,
                           .slice_bytes = 4 << 20},
                      Case{.name = "packed_tiles_with_callers",
                           .lanes = 2,
                           .packed = true,
                           .block = 1,
                           .count = 400000,
                           .callers = true},
                      Case{.name = "packed_blocks_with_callers",
                           .lanes = 2,
                           .scan_threads = 2,
                           .packed = true,
                           .block = 64,
                           .count = 400000,
                           .callers = true}),
    [](const auto& of) { return of.param.name; });

/// Endpoints of the loopback network whose descriptor is never readable, as if another thread had always
/// taken the event already. They count how often a thread has gone to sleep on it.
class DeafDevice final : public verbs::Device {
 public:
  explicit DeafDevice(std::shared_ptr<verbs::Device> device) : device_(std::move(device)) {}
  std::string name() const override { return device_->name(); }
  const verbs::Limits& limits() const noexcept override { return device_->limits(); }
  std::unique_ptr<verbs::MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override {
    return device_->register_memory(bytes, kind);
  }
  std::unique_ptr<verbs::Endpoint> open_endpoint(const verbs::EndpointOptions& options) override {
    return std::make_unique<DeafEndpoint>(device_->open_endpoint(options), rests_);
  }
  /// Returns when a thread has gone to sleep more often than `seen` times; returns how often.
  std::uint32_t wait_for_rest(std::uint32_t seen) const {
    rests_.wait(seen);
    return rests_.load();
  }

 private:
  class DeafEndpoint final : public verbs::Endpoint {
   public:
    DeafEndpoint(std::unique_ptr<verbs::Endpoint> endpoint, std::atomic<std::uint32_t>& rests)
        : endpoint_(std::move(endpoint)), rests_(rests), fd_(::eventfd(0, EFD_CLOEXEC)) {}
    ~DeafEndpoint() override { ::close(fd_); }
    std::string address_for(verbs::PeerId peer) override { return endpoint_->address_for(peer); }
    void connect(std::span<const std::string> addresses, verbs::Deadline deadline) override {
      endpoint_->connect(addresses, deadline);
    }
    std::size_t post(std::span<const verbs::Write> writes) noexcept override {
      return endpoint_->post(writes);
    }
    std::size_t poll(std::span<verbs::Completion> out) noexcept override { return endpoint_->poll(out); }
    std::string failure() const override { return endpoint_->failure(); }
    std::size_t in_flight() const noexcept override { return endpoint_->in_flight(); }
    int wait_fd() const noexcept override { return fd_; }
    bool prepare_wait() noexcept override {
      if (!endpoint_->prepare_wait()) return false;
      ++rests_;
      rests_.notify_all();
      return true;
    }

   private:
    const std::unique_ptr<verbs::Endpoint> endpoint_;
    std::atomic<std::uint32_t>& rests_;
    const int fd_;
  };
  const std::shared_ptr<verbs::Device> device_;
  std::atomic<std::uint32_t> rests_{0};
};

/// A caller drives once while the lane's thread sleeps, takes what has arrived, and goes away before all is
/// done.
TEST(SleepingLane, IsWokenByACallerThatLeavesItSomethingToDo) {
  constexpr std::uint64_t kCount = 100000;
  std::shared_ptr<DeafDevice> deaf;
  ClusterOptions options;
  options.slice_bytes = 8 << 10;
  options.device = [&](int member, std::shared_ptr<verbs::Device> device) -> std::shared_ptr<verbs::Device> {
    if (member != 0) return device;
    return deaf = std::make_shared<DeafDevice>(std::move(device));
  };
  Cluster cluster(options);
  TwoRankSum sum(cluster, kCount, 256);
  engine::Lane& lane = cluster.lane(0, 0);
  std::jthread thread([&](std::stop_token stop) { lane.run(stop); });
  std::uint32_t rests = deaf->wait_for_rest(0);
  cluster.submit(0, *sum.operations[0]);
  rests = deaf->wait_for_rest(rests);  // it has sent what it can
  int woken = 0, late = 0;
  cluster.submit(1, *sum.operations[1]);
  while (!sum.operations[0]->finished() && !cluster.failure() && lane.overslept() == 0) {
    for (int quiet = 0; quiet < 10;) quiet = cluster.lane(1, 0).drive() ? 0 : quiet + 1;
    if (!lane.drive()) continue;
    lane.hand_back();
    const std::uint64_t slept_out = lane.slept_out();
    rests = deaf->wait_for_rest(rests);
    ++(lane.slept_out() == slept_out ? woken : late);
  }
  EXPECT_FALSE(cluster.failure());
  EXPECT_EQ(lane.overslept(), 0u);
  EXPECT_GT(woken, late) << "its sleep may have ended just then, but not every time";
  thread.request_stop();
  lane.ring();
}

}  // namespace
}  // namespace nzcl::test

// A simulated rack whose ranks have tensors in memory, for the tests of the switch exchange.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/switch/simulation/rack.h"
#include "tests/engine/switch_tensor.h"

namespace nzcl::engine::slot_pool::test {

struct RackSetting {
  int workers = 2;
  std::uint32_t slots = 8, piece = 16;
  std::uint32_t block = 0;  // elements; 0: a piece has one block
  std::size_t count = 16 * 100 + 3;
  double density = 1;
  int tensors = 1;
  verbs::SimulatedLink link{};
  /// The aggregator's link; by default a switch's, which is at the other end of all links at once.
  std::optional<verbs::SimulatedLink> aggregator{};
  std::vector<Time> late{};  // when each rank begins; those without an entry begin at once
  unsigned seed = 1;
  bool zeros = false;                    // Pool::zeros
  std::uint32_t window = ~0u;            // Pool::window
  std::vector<std::uint32_t> windows{};  // of each rank; those without an entry have `window`
  simulation::MakeAggregator make{};     // a SlotServer if it is empty
};

inline simulation::RackPlan plan_of(const RackSetting& s) {
  simulation::RackPlan plan;
  plan.pool = {s.workers, s.slots, s.piece, kJob, s.zeros, s.window};
  plan.make = s.make;
  plan.link = s.link;
  verbs::SimulatedLink inside = s.link;
  inside.bits_per_second = 0;
  plan.aggregator = s.aggregator.value_or(inside);
  plan.windows = s.windows;
  plan.late = s.late;
  plan.seed = s.seed;
  plan.most_tensors = static_cast<std::size_t>(s.tensors);
  return plan;
}

class Rack : public simulation::Rack {
 public:
  explicit Rack(const RackSetting& setting) : simulation::Rack(plan_of(setting)), setting_(setting) {
    for (int r = 0; r < setting.workers; ++r) {
      for (int t = 0; t < setting.tensors; ++t) {
        const unsigned seed = setting.seed * 1000 + static_cast<unsigned>(t * setting.workers + r);
        const MemoryTensor::Cut cut{setting.piece, setting.block ? setting.block : setting.piece,
                                    setting.zeros};
        tensors_.push_back(
            std::make_unique<MemoryTensor>(random_values(setting.count, cut.block, setting.density, seed),
                                           cut, setting.slots, static_cast<std::uint32_t>(t)));
        add(r, *tensors_.back());
      }
    }
  }

  MemoryTensor& tensor(int rank, int number) {
    return *tensors_[static_cast<std::size_t>(rank * setting_.tensors + number)];
  }
  std::vector<std::int32_t> sum(int number) {
    std::vector<std::int32_t> sum(setting_.count);
    for (int r = 0; r < setting_.workers; ++r) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) +
                                           static_cast<std::uint32_t>(tensor(r, number).input[i]));
      }
    }
    return sum;
  }
  /// Compares every element of every tensor on every rank with the plain sum.
  void expect_sums() {
    for (int t = 0; t < setting_.tensors; ++t) {
      const auto expected = sum(t);
      for (int r = 0; r < setting_.workers; ++r) {
        EXPECT_EQ(tensor(r, t).output, expected) << "tensor " << t << " on rank " << r;
        EXPECT_TRUE(tensor(r, t).done());
      }
    }
  }
  double seconds() { return std::chrono::duration<double>(network().now()).count(); }

 private:
  const RackSetting setting_;
  std::vector<std::unique_ptr<MemoryTensor>> tensors_;
};

}  // namespace nzcl::engine::slot_pool::test

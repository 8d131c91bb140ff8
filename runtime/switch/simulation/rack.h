// Ranks, an aggregator and the network between them, in one thread and in virtual time: the state machines of
// the switch exchange as they are, on simulated links.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/switch/simulation/aggregator.h"
#include "runtime/switch/slot_worker.h"
#include "verbs/datagram/simulated/network.h"

namespace nzcl::simulation {

struct RackPlan {
  engine::slot_pool::Pool pool;  // its workers are all ranks
  MakeAggregator make{};         // a SlotServer if it is empty
  verbs::SimulatedLink link{};   // of a rank
  verbs::SimulatedLink aggregator{};
  std::vector<std::uint32_t> windows{};  // Pool::window of each rank; those without an entry have the pool's
  std::vector<engine::slot_pool::Time> late{};  // when each rank begins; those without an entry begin at once
  std::uint64_t seed = 1;
  std::size_t most_tensors = 1;
};

class Rack {
 public:
  explicit Rack(const RackPlan& plan);

  /// Will begin this tensor when its rank begins, behind those that it has already.
  void add(int rank, engine::slot_pool::Tensor& tensor);
  /// Goes on until all tensors are summed. Returns false if they are not at `limit`, or if anything has
  /// failed.
  bool run(engine::slot_pool::Time limit);
  /// Why run() came to no end; empty if there was too little time.
  const std::string& failure() const { return failure_; }

  engine::slot_pool::SlotWorker& worker(int rank) { return *workers_[static_cast<std::size_t>(rank)]; }
  RackAggregator& aggregator() { return *aggregator_; }
  verbs::SimulatedNetwork& network() { return network_; }

 private:
  std::size_t workers() const { return workers_.size(); }
  void open_ports();
  void begin_those_whose_time_has_come();
  void drive(std::size_t port);
  void drive_worker(std::size_t rank);
  void send_of_worker(std::size_t rank);
  void drive_aggregator();
  void send_answers();
  void tick();

  const RackPlan plan_;
  verbs::SimulatedNetwork network_;
  std::vector<std::unique_ptr<verbs::DatagramPort>> ports_;  // of the ranks, then of the aggregator
  std::vector<std::unique_ptr<engine::slot_pool::SlotWorker>> workers_;
  std::unique_ptr<RackAggregator> aggregator_;
  std::vector<std::vector<engine::slot_pool::Tensor*>> waiting_;  // of each rank, until it begins
  std::vector<bool> begun_, busy_;
  std::size_t busy_count_ = 0;  // ranks that are not done
  engine::slot_pool::Time next_tick_{};
  std::vector<std::byte> packet_;
  std::string failure_;
};

}  // namespace nzcl::simulation

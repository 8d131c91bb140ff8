// Sums in two levels: the ranks of each host sum first, and what they have together goes to other hosts once.
// HIERARCHY.md, beside this file, describes the steps.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/base/failure.h"
#include "runtime/comm/communicator/level_buffers.h"
#include "runtime/comm/communicator/ordered_steps.h"
#include "runtime/comm/communicator/two_level_sum.h"
#include "runtime/comm/join/split_plan.h"
#include "runtime/comm/request/request.h"
#include "runtime/plan/hierarchy.h"

namespace nzcl::comm {

class CommunicatorCore;

/// A step's communicator: first the ranks of the host, then those with the same place on all hosts, then the
/// ranks of the host again. The first and the last have one each, so that a step up of one operation does not
/// wait for the step down of the one before.
enum class Level : std::uint8_t { up, across, down };

/// The second half of a communicator whose ranks are on several hosts. It has a communicator for each level.
/// They share the session, so buffers are registered once. They are made when the first operation needs them,
/// by a thread ("nzcl-levels"), so that no call waits for other ranks.
///
/// Thread-safe. Every sum that was added is over in the end, also if a communicator fails: one of its own, by
/// which the caller's communicator fails, or the caller's, through end().
class Hierarchy {
 public:
  /// How it is tied to the communicator whose operations it exchanges, which outlives it.
  struct Parent {
    int rank = 0;
    /// Collective among the members of the group: makes a communicator of them, which names them as the
    /// parent does.
    std::function<std::shared_ptr<CommunicatorCore>(const SplitGroup& group, const std::string& name)> join;
    std::function<void(const Failure&)> fail;
    std::function<void()> ring;  // wakes those that wait for operations of the parent
    LevelBuffers::Register register_memory;
  };
  Hierarchy(engine::HierarchyPlan plan, Parent parent);
  ~Hierarchy();
  Hierarchy(const Hierarchy&) = delete;
  Hierarchy& operator=(const Hierarchy&) = delete;

  std::string describe() const;
  /// Takes the sum's place in the order, which is that of the calls and must be the same on all ranks. Its
  /// begin() has to be called afterwards.
  void add(TwoLevelSum& sum);
  /// Fails what is under way, and returns when no sum that was added uses its memory any more.
  void end(const Failure& failure);
  /// Collective, when all sums are over: closes its communicators.
  void close();
  /// Adds what its communicators have sent and received.
  void add_to(Statistics& total) const;

  // --- For sums.
  const engine::HierarchyPlan& plan() const { return plan_; }
  int place() const { return place_; }  // of this rank on its host
  int host_ranks() const { return static_cast<int>(plan_.ranks_of(plan_.host_of(parent_.rank)).size()); }
  bool has_column() const { return place_ < plan_.columns(); }
  OrderedSteps& steps(Level level) { return levels_[static_cast<std::size_t>(level)].steps; }
  LevelBuffers& buffers() { return buffers_; }
  using Next = std::function<void(const std::shared_ptr<engine::Operation>&)>;
  /// Starts the operation of a step, and calls `next` when it is over: with the operation, or with nullptr if
  /// there was none. If `failure` is set, only takes the step's place in the order of the level's operations,
  /// so that the other ranks of the level learn of it. A failure of the step is noted there.
  void start(Level level, const Request& request, std::optional<Failure>& failure, Next next);
  /// Called once for each sum that was added, when its last step is over and its operation has been told.
  void over();

 private:
  struct LevelState {
    OrderedSteps steps;
    std::shared_ptr<CommunicatorCore> core;  // nullptr until it is made, or if it could not be made
  };
  void make();
  void make_levels();
  void cannot_make(const Failure& failure);
  std::optional<Failure> why_not_made() const;
  void note_failure(const LevelState& level, std::optional<Failure>& noted, const Failure& failure);

  const engine::HierarchyPlan plan_;
  const Parent parent_;
  const int place_;
  LevelBuffers buffers_;
  std::array<LevelState, 3> levels_;

  mutable std::mutex mutex_;  // of all below, and of the levels' cores while they are made
  std::condition_variable over_;
  std::uint64_t under_way_ = 0;  // sums
  std::optional<Failure> failure_;
  bool begun_ = false;  // the first sum was added
  std::thread maker_;   // started by the call that adds it, and joined when no other call is made any more
};

}  // namespace nzcl::comm

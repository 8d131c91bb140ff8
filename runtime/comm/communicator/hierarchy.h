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
#include <string>
#include <thread>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/base/failure.h"
#include "runtime/comm/communicator/levels.h"
#include "runtime/comm/communicator/two_level_sum.h"
#include "runtime/comm/join/split_plan.h"

namespace nzcl::comm {

class CommunicatorCore;

/// The second half of a communicator whose ranks are on several hosts. It has a communicator for each level.
/// They share the session, so buffers are registered once. They are made when the first operation needs them,
/// by a thread ("nzcl-levels"), so that no call waits for other ranks.
///
/// Thread-safe. Every sum that was added is over in the end, also if a communicator fails: one of its own, by
/// which the caller's communicator fails, or the caller's, through end().
class Hierarchy final : public Levels {
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
  ~Hierarchy() override;

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
  void start(Level level, const Request& request, std::optional<Failure>& failure, Next next) override;
  void over() override;

 private:
  using Core = std::shared_ptr<CommunicatorCore>;
  void make();
  void make_levels();
  void cannot_make(const Failure& failure);
  std::optional<Failure> why_not_made() const;
  void note_failure(const Core& core, std::optional<Failure>& noted, const Failure& failure);

  const Parent parent_;
  std::array<Core, 3> cores_;  // by Level; nullptr until it is made, or if it could not be made

  mutable std::mutex mutex_;  // of all below, and of the cores while they are made
  std::condition_variable over_;
  std::uint64_t under_way_ = 0;  // sums
  std::optional<Failure> failure_;
  bool begun_ = false;  // the first sum was added
  std::thread maker_;   // started by the call that adds it, and joined when no other call is made any more
};

}  // namespace nzcl::comm

// What a sum in two levels needs of its levels.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/base/failure.h"
#include "runtime/comm/communicator/level_buffers.h"
#include "runtime/comm/communicator/ordered_steps.h"
#include "runtime/comm/request/request.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/hierarchy.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {

/// A step's communicator: first the ranks of the host, then those with the same place on all hosts, then the
/// ranks of the host again. The first and the last have one each, so that a step up of one operation does not
/// wait for the step down of the one before.
enum class Level : std::uint8_t { up, across, down };

/// The levels as one rank sees them: who is in them, the order of their steps, and how a step is started.
/// Sums know nothing else of them, so a simulation can take the place of communicators and their threads.
/// Thread-safe.
class Levels {
 public:
  Levels(engine::HierarchyPlan plan, int rank, LevelBuffers::Register register_memory,
         std::uint64_t least_piece_bytes = engine::kLeastPieceBytes)
      : plan_(std::move(plan)),
        rank_(rank),
        place_(plan_.place_of(rank)),
        least_piece_bytes_(least_piece_bytes),
        buffers_(std::move(register_memory)) {}
  virtual ~Levels() = default;
  Levels(const Levels&) = delete;
  Levels& operator=(const Levels&) = delete;

  const engine::HierarchyPlan& plan() const { return plan_; }
  int place() const { return place_; }  // of this rank on its host
  int host_ranks() const { return static_cast<int>(plan_.ranks_of(plan_.host_of(rank_)).size()); }
  bool has_column() const { return place_ < plan_.columns(); }
  std::uint64_t least_piece_bytes() const { return least_piece_bytes_; }
  OrderedSteps& steps(Level level) { return steps_[static_cast<std::size_t>(level)]; }
  LevelBuffers& buffers() { return buffers_; }

  using Next = std::function<void(const std::shared_ptr<engine::Operation>&)>;
  /// Starts the operation of a step, and calls `next` when it is over: with the operation, or with nullptr if
  /// there was none. If `failure` is set, only takes the step's place in the order of the level's operations,
  /// so that the other ranks of the level learn of it. A failure of the step is noted there.
  virtual void start(Level level, const Request& request, std::optional<Failure>& failure, Next next) = 0;
  /// Called once for each sum, when its last step is over and its operation has been told.
  virtual void over() = 0;

 protected:
  /// Lets steps begin, which wait until the communicators are there.
  void open_steps() {
    for (OrderedSteps& steps : steps_) steps.open();
  }
  int rank() const { return rank_; }

 private:
  const engine::HierarchyPlan plan_;
  const int rank_, place_;
  const std::uint64_t least_piece_bytes_;
  LevelBuffers buffers_;
  std::array<OrderedSteps, 3> steps_;
};

}  // namespace nzcl::comm

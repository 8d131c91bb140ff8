// Sums in two levels: the ranks of each host sum first, and what they have together goes to other hosts once.
// HIERARCHY.md, beside this file, describes the steps.
#pragma once

#include <condition_variable>
#include <cstddef>
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
#include "runtime/comm/communicator/ordered_steps.h"
#include "runtime/comm/join/split_plan.h"
#include "runtime/comm/request/request.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/hierarchy.h"

namespace nzcl::comm {

class CommunicatorCore;

/// One operation by hierarchy on this rank. What is here is read and written by one step after another.
struct TwoLevelSum {
  std::shared_ptr<engine::Operation> operation;  // the caller's
  wire::OperationRecord record;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool dense = false;                 // all blocks of the input are sent
  std::vector<std::uint64_t> bitmap;  // those that are, if the caller or its indices have told
  std::chrono::nanoseconds timeout{};
  /// Values that belong into the output before the sum begins, because the caller gave them with indices.
  engine::InputView sparse;

  struct PieceState {
    engine::Piece cut;
    std::uint64_t up = 0, across = 0, down = 0;  // numbers of its steps
    std::vector<std::uint64_t> bits;             // of this rank's share: which blocks any rank has
    std::optional<Failure> failure;
  };
  std::vector<PieceState> pieces;

  std::mutex mutex;  // of all below
  std::size_t pieces_left = 0;
  std::vector<std::uint64_t> union_bits;
  std::uint64_t union_blocks = 0;
  std::optional<Failure> failure;  // of the first piece that has failed
};

/// The second half of a communicator whose ranks are on several hosts. It has communicators of its own: two
/// among the ranks of this host, and one among those with the same place on all hosts. They share the
/// session, so buffers are registered once. They are made when the first operation needs them, by a thread
/// ("nzcl-levels"), so that no call waits for other ranks.
///
/// Thread-safe. Every operation that was added is over in the end, also if a communicator fails: its own, by
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
  };
  Hierarchy(engine::HierarchyPlan plan, Parent parent);
  ~Hierarchy();
  Hierarchy(const Hierarchy&) = delete;
  Hierarchy& operator=(const Hierarchy&) = delete;

  std::string describe() const;
  /// Takes the operation's place in the order, which is that of the calls and must be the same on all ranks.
  /// If this rank has refused it, `failure` says why.
  void add(const std::shared_ptr<TwoLevelSum>& sum, const std::optional<Failure>& failure);
  /// Begins what add() has taken. It may start operations, and wait until there is room for them.
  void begin(const std::shared_ptr<TwoLevelSum>& sum);

  /// Fails what is under way, and returns when no operation that was added uses its memory any more.
  void end(const Failure& failure);
  /// Collective, when all operations are over: closes its communicators.
  void close();
  /// Adds what its communicators have sent and received.
  void add_to(Statistics& total) const;

 private:
  /// The operations of one of its communicators.
  struct Level {
    OrderedSteps steps;
    std::shared_ptr<CommunicatorCore> core;  // nullptr until it is made, or if it could not be made
  };
  using Sum = std::shared_ptr<TwoLevelSum>;
  using Next = std::function<void(engine::Operation*)>;

  bool has_column() const { return place_ < plan_.columns(); }
  void make();
  void make_levels();
  std::optional<Failure> why_not_made() const;
  void start(Level& level, const Sum& sum, std::size_t piece, const Request& request, Next next);
  void note_failure(Level& level, TwoLevelSum& sum, std::size_t piece, const Failure& failure);
  void sum_host(const Sum& sum, std::size_t piece);
  void host_summed(const Sum& sum, std::size_t piece);
  void sum_hosts(const Sum& sum, std::size_t piece);
  void hosts_summed(const Sum& sum, std::size_t piece);
  void give_to_host(const Sum& sum, std::size_t piece);
  void piece_over(const Sum& sum, std::size_t piece, engine::Operation* last);
  std::byte* share_of(const TwoLevelSum& sum, std::size_t piece) const;
  /// Elements of the piece's shares by the places of this host's ranks.
  std::vector<std::uint64_t> counts(const engine::Piece& piece) const;

  const engine::HierarchyPlan plan_;
  const Parent parent_;
  const int place_;  // of this rank on its host
  Level up_, across_, down_;

  mutable std::mutex mutex_;  // of all below, and of the levels' cores while they are made
  std::condition_variable over_;
  std::uint64_t under_way_ = 0;  // operations
  std::optional<Failure> failure_;
  std::thread maker_;
};

/// Puts values that came with indices into the output, and zeros between them.
void place_values(TwoLevelSum& sum);

}  // namespace nzcl::comm

// An operation by hierarchy on one rank: what its three steps are.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "nzcl/packed_memory.h"
#include "runtime/base/failure.h"
#include "runtime/comm/gpu/staged_work.h"
#include "runtime/comm/session/registrations.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/hierarchy.h"
#include "runtime/wire/message.h"

namespace nzcl::comm {

class Levels;

/// What the caller has asked for, in memory that lasts as long as the operation.
struct TwoLevelRequest {
  std::shared_ptr<engine::Operation> operation;  // the caller's
  wire::OperationRecord record;
  std::chrono::nanoseconds timeout{};
  std::optional<Failure> refusal{};  // why this rank has refused it, if it has
  /// Handles of input and output, because steps look up what is registered when they begin.
  std::vector<std::shared_ptr<const Registration>> handles{};
  const std::byte* input = nullptr;  // of a packed result: values
  engine::OutputView output{};

  // --- With a dense result.
  bool dense = false;                   // all blocks of the input are sent
  std::vector<std::uint64_t> bitmap{};  // those that are, if the caller or its indices have told
  /// Values that belong into the output before the sum begins, because the caller gave them with indices.
  std::optional<engine::InputView> sparse{};

  // --- With a packed result.
  std::vector<std::byte> indices{};  // as the caller gave them
  std::size_t index_count = 0;
  IndexType index_type = IndexType::int64;
  bool sum_duplicates = false;
  /// Copies the list.
  void set_indices(const IndexSpan& list, bool duplicates);

  DataType type() const { return static_cast<DataType>(record.type); }
  ReduceOp op() const { return static_cast<ReduceOp>(record.op); }
  std::uint64_t block_bytes() const { return record.block_elems * element_bytes(type()); }
  /// An average is divided once, when all hosts are in the sum.
  ReduceOp level_op() const { return op() == ReduceOp::avg ? ReduceOp::sum : op(); }
  /// How dense the sum of so many ranks is at most, if the caller expects a density; otherwise 0: not known.
  /// It is the same number on all machines, as nothing is computed but a product.
  double host_density(int ranks) const;
  /// Add what a step has read, or moved, to what the caller's operation has.
  void count_input(const engine::Operation& step) const;
  void count_traffic(const engine::Operation& step) const;
  /// The caller's own communicator knows best whom an operation waits for, so it gets to say so first.
  std::chrono::nanoseconds level_timeout() const;
};

/// What is read and written by one step after another, on the threads that run these.
class TwoLevelSum : public std::enable_shared_from_this<TwoLevelSum> {
 public:
  virtual ~TwoLevelSum() = default;
  /// Announces its steps to the levels. Called in the order of operations, which is the same on all ranks.
  virtual void announce() = 0;
  /// Lets the first steps begin. It may start operations, and wait until there is room for them.
  virtual void begin() = 0;
  /// Gives it, before it begins, the caller's list, which was on a GPU when the sum was made, and has come.
  /// If it is wrong, the steps are refused.
  void give_list(const StagedWork& staged);
  /// Has this rank refuse its steps when it begins, so that no rank gets a result: what it would sum is
  /// wrong, or has not come from a GPU.
  virtual void refuse(const Failure& failure) = 0;

 protected:
  /// Throws Error if it is wrong.
  virtual void take_list(const HostList& list) = 0;
};

/// Makes the sum that the request asks for. `levels` outlive it.
std::shared_ptr<TwoLevelSum> make_two_level_sum(Levels& levels, TwoLevelRequest request);

/// Divides the first elements of a rank's share by the number of ranks.
void divide(std::byte* share, std::uint64_t elements, DataType type, int ranks);

}  // namespace nzcl::comm

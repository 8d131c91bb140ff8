// The interface of the ways in which ranks exchange slices and sum them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/channel/lane_context.h"
#include "runtime/operation/operation.h"

namespace nzcl::engine {

/// Whom an exchange waits for when it makes no progress. An empty text means nobody.
struct Stall {
  /// Members that are known to be missing, as in "operation 7, allreduce(...): rank(s) 2 did not join".
  std::string known;
  /// Members that have not answered, as in "rank 2 (operation 7, slice 0)". They may be waiting for somebody
  /// else themselves, so `known` is the better explanation.
  std::string suspected;
  /// All ranks that get a result, if none of them takes it, as in "operation 7, allreduce(...): rank(s) 0, 1
  /// stopped taking results". They probably wait for somebody else, who is named as `suspected` elsewhere, so
  /// this is the poorest explanation.
  std::string all = {};
};

/// Runs all operations of one priority on one lane.
///
/// An exchange is a state machine without I/O: it reads messages from the context's channels and puts writes
/// into its outbox, and the lane moves both. The lane owns it, and only the thread that drives the lane calls
/// it. Its functions do not allocate, lock, log or throw, except to describe a failure. A failure is recorded
/// in the context, and nothing more happens after it.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Makes this rank take part in `operation`, which must stay alive until it has finished. Operations are
  /// submitted in the order of their epochs. Precondition: agree() knows what this rank takes the operation
  /// for, because other ranks may send something else, to this exchange or to another one.
  virtual void submit(Operation& operation) = 0;
  /// Does what can be done now. Returns true if anything moved, but not for what was only repeated.
  virtual bool step() = 0;
  /// Called when nothing has arrived although something is under way: gets the memory ready in which the next
  /// messages will lie, if that helps.
  virtual void expect_messages() const {}
  /// Called when a direct write from `member` has become visible. `sequence` is that of its slice, modulo
  /// 2^16.
  virtual void direct_arrived(std::uint16_t member, std::uint16_t sequence) = 0;

  // --- Of exchanges that have a port of their own beside the lane's channels.
  /// What the same exchange of other members needs to reach this one's port.
  virtual std::string address() const { return {}; }
  /// Takes all members' addresses, by member. Called once, before the first operation. Throws Error.
  virtual void connect(std::span<const std::string>) {}
  /// A file descriptor that becomes readable when step() may have something to do; -1 if it has no port.
  virtual int wait_fd() const { return -1; }

  /// Returns true if nothing is under way.
  virtual bool idle() const = 0;
  /// Says whom the exchange waits for. The lane asks when it has not moved for too long.
  virtual Stall waiting_for() const = 0;
};

/// Fails the communicator in direct_arrived() of an exchange in which nobody writes into the output of
/// others.
void refuse_direct_write(LaneContext& context, std::uint16_t member);

}  // namespace nzcl::engine

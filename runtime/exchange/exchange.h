// The one interface to the ways in which ranks exchange slices and sum them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/channel/lane_context.h"
#include "runtime/operation/operation.h"

namespace nzcl::engine {

/// What an exchange that does not move waits for. Empty texts: for nobody.
struct Stall {
  std::string known;  // who is known to be missing, and where: "operation 7, ...: rank(s) 2 did not join"
  std::string
      suspected;  // who has not answered, perhaps because it waits itself: "rank 2 (operation 7, slice 0)"
};

/// All operations of one priority on one lane. A state machine without I/O: it reads messages from the
/// context's channels and puts writes into its outbox; the lane moves both. Owned by the lane; only the
/// thread that drives the lane calls it. Nothing here allocates, locks, logs or throws, except to describe a
/// failure, which goes to the context; after a failure nothing more happens.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// This rank takes part in `operation`, which stays alive until it has finished. In epoch order.
  virtual void submit(Operation& operation) = 0;
  /// Does what can be done now. True if anything moved.
  virtual bool step() = 0;
  /// A direct write from `member` for the slice with this sequence (modulo 2^16) is visible.
  virtual void direct_arrived(std::uint16_t member, std::uint16_t sequence) = 0;

  /// Nothing is under way.
  virtual bool idle() const = 0;
  virtual Stall waiting_for() const = 0;
};

/// The way that the configuration asks for at this priority. `context` outlives it.
std::unique_ptr<Exchange> make_exchange(LaneContext& context, wire::Priority priority);

}  // namespace nzcl::engine

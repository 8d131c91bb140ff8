// Push to owners: every slice has an owner, to which all ranks push their contributions, and which writes the
// sum back to all of them.
#pragma once

#include <optional>

#include "runtime/exchange/exchange.h"
#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"

namespace nzcl::engine {

/// The halves that this member has: a Worker in ranks, an Aggregator where slices are owned, connected where
/// it has both. Steps and bytes: runtime/exchange/push/README.md.
class PushExchange final : public Exchange {
 public:
  PushExchange(LaneContext& context, wire::Priority priority);

  void submit(Operation& operation) override { worker_->submit(&operation); }
  bool step() override;
  void direct_arrived(std::uint16_t member, std::uint16_t sequence) override;
  bool idle() const override;
  Stall waiting_for() const override;

 private:
  LaneContext& context_;
  std::optional<Worker> worker_;
  std::optional<Aggregator> aggregator_;
};

}  // namespace nzcl::engine

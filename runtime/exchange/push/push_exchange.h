// Push to owners: every slice has an owner. All ranks push their contributions to it, and it writes the sum
// back to all of them.
#pragma once

#include <optional>

#include "runtime/exchange/exchange.h"
#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"

namespace nzcl::engine {

/// Consists of the halves that this member has: a Worker if it is a rank, and an Aggregator if it owns
/// slices. If it has both, they are connected. Steps and bytes: runtime/exchange/push/README.md.
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

#include "runtime/lane/make_exchange.h"

#include "runtime/exchange/gather/gather_exchange.h"
#include "runtime/exchange/merging/merging_exchange.h"
#include "runtime/exchange/push/push_exchange.h"

namespace nzcl::engine {

std::unique_ptr<Exchange> make_exchange(LaneContext& context, wire::Priority priority) {
  const int ranks = context.config.members.workers;
  if (priority == wire::Priority::doubling) {
    if (!context.config.has_doubling()) return nullptr;
    return std::make_unique<GatherExchange>(context, priority, doubling_schedule(ranks));
  }
  if (priority == wire::Priority::merging)
    return context.config.has_merging() ? std::make_unique<MergingExchange>(context) : nullptr;
  if (context.config.make_exchange) return context.config.make_exchange(context);
  if (context.config.channel(priority).slots == 0) return nullptr;
  if (context.config.one_hop && priority == wire::Priority::express)
    return std::make_unique<GatherExchange>(context, priority, one_hop_schedule(ranks));
  return std::make_unique<PushExchange>(context, priority);
}

}  // namespace nzcl::engine

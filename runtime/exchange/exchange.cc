#include "runtime/exchange/exchange.h"

#include "runtime/exchange/doubling/doubling_exchange.h"
#include "runtime/exchange/merging/merging_exchange.h"
#include "runtime/exchange/one_hop/one_hop_exchange.h"
#include "runtime/exchange/push/push_exchange.h"

namespace nzcl::engine {

std::unique_ptr<Exchange> make_exchange(LaneContext& context, wire::Priority priority) {
  if (priority == wire::Priority::doubling)
    return context.config.has_doubling() ? std::make_unique<DoublingExchange>(context) : nullptr;
  if (priority == wire::Priority::merging)
    return context.config.has_merging() ? std::make_unique<MergingExchange>(context) : nullptr;
  if (context.config.make_exchange) return context.config.make_exchange(context);
  if (context.config.one_hop && priority == wire::Priority::express)
    return std::make_unique<OneHopExchange>(context);
  return std::make_unique<PushExchange>(context, priority);
}

}  // namespace nzcl::engine

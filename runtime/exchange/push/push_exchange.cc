#include "runtime/exchange/push/push_exchange.h"

#include <fmt/format.h>

namespace nzcl::engine {

PushExchange::PushExchange(LaneContext& context, wire::Priority priority) : context_(context) {
  const Members& members = context.config.members;
  if (members.is_worker(members.self)) worker_.emplace(context, priority);
  if (members.is_aggregator(members.self)) aggregator_.emplace(context, priority);
  if (worker_ && aggregator_) {
    worker_->connect(&*aggregator_);
    aggregator_->connect(&*worker_);
  }
}

bool PushExchange::step() {
  bool any = false;
  if (worker_) any |= worker_->step();
  if (aggregator_) any |= aggregator_->step();
  return any;
}

void PushExchange::direct_arrived(std::uint16_t member, std::uint16_t sequence) {
  if (worker_) return worker_->on_direct(member, sequence);
  context_.fail(ErrorCode::transport,
                fmt::format("{} announced a direct write to an aggregator, which has no output",
                            context_.name(member)));
}

bool PushExchange::idle() const {
  return !(worker_ && worker_->busy()) && !(aggregator_ && !aggregator_->idle());
}

Stall PushExchange::waiting_for() const {
  Stall stall = aggregator_ ? aggregator_->waiting_for() : Stall();
  if (worker_) stall.suspected = worker_->waiting_for();
  return stall;
}

}  // namespace nzcl::engine

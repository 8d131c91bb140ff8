// The aggregator's half of the switch exchange if the packets are summed elsewhere (KernelPools).
#pragma once

#include <memory>

#include "runtime/exchange/exchange.h"
#include "runtime/switch/switch_exchange.h"

namespace nzcl::engine::slot_pool {

/// Precondition: the configuration has kernel pools, and this member is a dedicated aggregator.
std::unique_ptr<Exchange> make_kernel_exchange(LaneContext& context, const SwitchConfig& config);

}  // namespace nzcl::engine::slot_pool

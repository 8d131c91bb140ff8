// The aggregator's half of the switch exchange if the packets are summed elsewhere (KernelPools).
#pragma once

#include <memory>

#include "runtime/exchange/exchange.h"

namespace nzcl::engine {

/// Precondition: the configuration has datagrams and kernel pools, and this member is a dedicated aggregator.
std::unique_ptr<Exchange> make_kernel_exchange(LaneContext& context);

}  // namespace nzcl::engine

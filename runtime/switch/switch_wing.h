// The switch exchange as the rest of nzcl sees it, and as nzcl_switch makes it.
#pragma once

#include <memory>

#include "runtime/exchange/wing.h"
#include "runtime/switch/kernel_pools.h"
#include "verbs/datagram/datagram.h"

namespace nzcl::engine::slot_pool {

/// Makes this member's wing. `kernel_pools` are those in which a dedicated aggregator has packets summed
/// outside of this process; nullptr: it sums them itself.
std::shared_ptr<const Wing> make_switch_wing(std::shared_ptr<KernelPools> kernel_pools);

/// How the ports of a member's lanes are opened.
verbs::DatagramOptions port_options(const Options& options, const Membership& membership);

}  // namespace nzcl::engine::slot_pool

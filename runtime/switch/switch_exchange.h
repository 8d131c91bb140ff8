// The switch exchange on a lane: a datagram port, and behind it the slots of an aggregator or those of a
// worker.
#pragma once

#include <memory>

#include "runtime/exchange/exchange.h"
#include "runtime/switch/kernel_pools.h"
#include "verbs/datagram/datagram.h"

namespace nzcl::engine::slot_pool {

/// What is planned for all lanes of one member.
struct SwitchConfig {
  verbs::DatagramOptions port;
  /// Of a dedicated aggregator: where the slot pools are, if they are not in this process.
  std::shared_ptr<KernelPools> kernel_pools;
};

/// Makes this member's half of the exchange. Precondition: there are dedicated aggregators. `context` must
/// outlive it. Throws Error if no port can be opened.
///
/// Unlike other exchanges it has a port of its own, which step() reads and writes: packets go from and to the
/// user's buffers through one packet's memory, and none is kept. The protocol itself, in SlotWorker and
/// SlotServer, is free of I/O.
std::unique_ptr<Exchange> make_switch_exchange(LaneContext& context, const SwitchConfig& config);

}  // namespace nzcl::engine::slot_pool

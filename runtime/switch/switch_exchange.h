// The switch exchange on a lane: a datagram port, and behind it the slots of an aggregator or those of a
// worker.
#pragma once

#include <memory>

#include "runtime/exchange/exchange.h"

namespace nzcl::engine {

/// Makes this member's half of the exchange. Precondition: the configuration has datagrams, and dedicated
/// aggregators. `context` must outlive it. Throws Error if no port can be opened.
///
/// Unlike other exchanges it has a port of its own, which step() reads and writes: packets go from and to the
/// user's buffers through one packet's memory, and none is kept. The protocol itself, in SlotWorker and
/// SlotServer, is free of I/O.
std::unique_ptr<Exchange> make_switch_exchange(LaneContext& context);

}  // namespace nzcl::engine

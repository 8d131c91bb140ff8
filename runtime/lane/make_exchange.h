// Chooses the exchange of each priority of a lane.
#pragma once

#include <memory>

#include "runtime/exchange/exchange.h"

namespace nzcl::engine {

/// Makes the exchange that the configuration asks for at this priority, or returns nullptr if it has no
/// channels for it. `context` must outlive it.
std::unique_ptr<Exchange> make_exchange(LaneContext& context, wire::Priority priority);

}  // namespace nzcl::engine

// From which size on a run of blocks is worth a gather entry, or a write, of its own. Such choices shape what
// is sent how, never results.
#pragma once

#include <cstdint>

#include "verbs/transport.h"

namespace nzcl::comm {

/// Runs from this many bytes on are gathered from the user's buffer: there the copy that this saves costs
/// more than the entry.
std::uint64_t gather_from(const verbs::Costs& costs);

/// Results whose runs average this many bytes or more are written to their places: `ranks` - 1 writes then do
/// what otherwise `ranks` copies out of messages do. The largest number: never worth it.
std::uint64_t direct_from(const verbs::Costs& costs, int ranks);

}  // namespace nzcl::comm

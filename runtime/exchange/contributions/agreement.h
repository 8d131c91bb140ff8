// Whether the ranks mean the same operation, and what they call it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/channel/lane_context.h"
#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"

namespace nzcl::engine {

/// Compares what a rank says about an operation with what the first rank said, over all priorities and slices
/// of a lane. `refusal` is the rank's, or nullptr. Returns true if they agree; otherwise the communicator
/// fails.
bool agree(LaneContext& context, int rank, std::uint64_t epoch, const wire::OperationRecord& record,
           const wire::Refusal* refusal);

/// What a rank said about an operation, for people.
std::string text_of(const wire::OperationRecord& record, const wire::Refusal* refusal);

/// Returns a text such as "operation 7, allreduce(...)". If a later operation has taken the place of that one
/// in the lane's table, the text is just "operation 7".
std::string describe(const LaneContext& context, std::uint64_t epoch);

}  // namespace nzcl::engine

// What calls that are made of other calls, and the C API, need beside the C++ API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nzcl/communicator.h"
#include "runtime/comm/request/request.h"

namespace nzcl::comm {

/// Takes the place, in the order of operations, of a call that was refused before it was started. The
/// operation fails on all ranks. If `request` is what the call would have asked for, the communicator stays
/// usable. Throws Error if the communicator has failed or is closed.
void refuse(Communicator& communicator, const Request& request, const Error& refusal);
/// The same for a call that was refused before it could say anything of its operation. Without it the next
/// operation of this rank would meet the other ranks' present one.
void refuse_unknown(Communicator& communicator, const Error& refusal);

/// Throws the Error by which the communicator would refuse the request now. Nothing takes a place in the
/// order of operations.
void check(Communicator& communicator, const Request& request);

/// Throws Error{invalid_usage} if an operation in flight writes to what an allreduce is about to read, and
/// Error{unsupported} if that is memory of a GPU, and may not be.
void require_unwritten(Communicator& communicator, std::span<const std::byte> input, bool may_be_gpu);

/// Whether the communicator exchanges such a tensor in tiles. Otherwise it does not take the request.
bool takes(Communicator& communicator, const CompressedRequest& request);
/// Whether it exchanges values with their indices at all.
bool takes_lists(Communicator& communicator);
/// Returns why the results of compressed tensors cannot be coded here, as a part of a sentence, or nullptr.
const char* why_no_coded_results(Communicator& communicator);
/// Whether all slices are owned by ranks, and none by a dedicated aggregator.
bool owners_are_ranks(Communicator& communicator);
/// Which share of a tensor has owners that are not this member.
double remote_share(Communicator& communicator);
/// Starts what the request asks for. Ranks whose checksums differ fail by name. The source of a compressed
/// request has to be asked to make what is not made by other threads, unless a step on a GPU makes it.
Work start(Communicator& communicator, const Request& request, std::uint64_t checksum = 0);
/// Called with what start() has returned, by whoever has had the source make something: sends that.
void send_made(const Work& work);

}  // namespace nzcl::comm

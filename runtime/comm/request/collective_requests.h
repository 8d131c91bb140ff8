// Checks a caller's request for a collective other than allreduce, and turns it into what an Operation is
// made from.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/collectives.h"
#include "runtime/comm/request/requests.h"

namespace nzcl::comm {

/// Any of these requests, and on which of how many ranks it was made.
struct CollectiveRequest {
  wire::Collective collective;
  int rank = 0, ranks = 1;
  const void* input = nullptr;
  void* output = nullptr;
  std::uint64_t count = 0;
  std::span<const std::uint64_t> counts = {};
  DataType type = DataType::float32;
  static constexpr WireType wire_type = WireType::as_is;
  static constexpr Algorithm algorithm = Algorithm::automatic;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::uint64_t block_elems = 256;
  std::span<const std::uint64_t> bitmap = {};
  bool dense = false;
  std::chrono::nanoseconds timeout{0};
  std::uint64_t tag = 0;
  void* stream = nullptr;
  /// The output is zero wherever the result has no blocks.
  bool output_has_zeros = false;
};

CollectiveRequest request_of(const BroadcastRequest& request, int rank, int ranks);
CollectiveRequest request_of(const ReduceRequest& request, int rank, int ranks);
CollectiveRequest request_of(const ReduceScatterRequest& request, int rank, int ranks);
CollectiveRequest request_of(const AllgatherRequest& request, int rank, int ranks);

/// Returns how many elements lie before each chunk, and in all of them, if the request's chunks differ in
/// size; otherwise nothing. `shape` is the request's own.
std::vector<std::uint64_t> chunk_begins_of(const CollectiveRequest& request,
                                           const wire::OperationRecord& shape);

/// These do what their namesakes in requests.h do for an allreduce. Values travel as they are, whatever the
/// option says.
wire::OperationRecord shape_of(const CollectiveRequest& request, WireType wire_type);
void prepare(const CollectiveRequest& request, const Registrations& registrations, Prepared& p);

}  // namespace nzcl::comm

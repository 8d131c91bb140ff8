// An allreduce of what a compressor sends, as the communicator takes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "nzcl/communicator.h"
#include "runtime/comm/request/requests.h"
#include "runtime/operation/tile_source.h"

namespace nzcl::comm {

/// The tensor is of float32, in blocks of one element, and its result is dense.
struct CompressedRequest {
  float* output = nullptr;
  std::uint64_t count = 0;
  ReduceOp op = ReduceOp::sum;
  std::chrono::nanoseconds timeout{0};
  std::uint64_t tag = 0;
  wire::ValueRule value_rule = wire::ValueRule::coded;
  std::uint64_t checksum = 0;  // of what the ranks' compressors must have in common
  /// What makes the contribution, while the operation runs. Without one, and without a step, the request can
  /// only be checked.
  std::shared_ptr<engine::TileSource> source = nullptr;
  /// What codes the results that this rank owns, if they are coded.
  std::shared_ptr<engine::ResultCoder> result_coder = nullptr;
  /// Of a state on a GPU: what makes the contribution, in the order of `stream`, and with the source or
  /// without. Without it, what is selected is exchanged as a list.
  std::shared_ptr<GpuStep> step = nullptr;
  void* stream = nullptr;  // for a state, or an output, on a GPU

  static constexpr WireType wire_type = WireType::as_is;
  static constexpr Algorithm algorithm = Algorithm::automatic;
};

/// These do what their namesakes in requests.h do. The values are coded, whatever the option says.
wire::OperationRecord shape_of(const CompressedRequest& request, WireType wire_type);
void prepare(const CompressedRequest& request, const Registrations& registrations, Prepared& p);

}  // namespace nzcl::comm

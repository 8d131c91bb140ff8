// Checks a caller's request, and turns it into what an Operation is made from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nzcl/communicator.h"
#include "nzcl/error.h"
#include "runtime/comm/gpu/staged_operation.h"
#include "runtime/comm/request/index_list.h"
#include "runtime/comm/session/registrations.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"

namespace nzcl::comm {

/// A checked request, from which the operation is made before the call returns.
struct Prepared {
  wire::OperationRecord record;
  std::optional<engine::SliceLayout> layout;  // but for its epoch, if it has been made already
  std::vector<std::uint64_t> chunk_begins;    // see LayoutRequest::begins; empty if chunks are equal
  engine::InputView input;
  engine::OutputView output;
  std::chrono::nanoseconds timeout{};  // 0: the value of the option
  /// Which blocks are non-zero: those that a scan finds, all of them, those of `bitmap`, those of `indices`,
  /// none, or those that `source` makes.
  enum class Input { scan, all, bitmap, indices, none, source } known = Input::scan;
  std::vector<std::uint64_t> bitmap;
  IndexList indices;                  // views the caller's list, if that ascends, so for the call only
  IndexSpan caller_indices;           // the same list as the caller gave it, for the call only
  bool sum_duplicates = false;        // whether that may have an index several times
  std::vector<std::byte> own_values;  // of a list that had duplicates, for a tensor that is not tiled
  engine::ElementStream stream;       // the same as `indices`, for a tiled tensor
  std::shared_ptr<engine::TileSource> source;
  std::shared_ptr<engine::ResultCoder> result_coder;
  std::span<const std::byte> input_bytes, output_bytes;  // to find conflicts with operations in flight
  std::array<SharedRegion, 2> regions;                   // those of input and output
  std::unique_ptr<const wire::Refusal> refusal;          // why the request was refused, if it was
  /// Of a request whose memory is on a GPU: that, and what is there. `input`, `output` and `regions` are
  /// those of `staged` then, which the communicator makes.
  std::shared_ptr<gpu::Gpu> gpu;
  GpuTensors on_gpu;
  std::shared_ptr<StagedOperation> staged;
};

/// Returns true if two ranges have a byte in common.
bool overlap(std::span<const std::byte> a, std::span<const std::byte> b);

/// Returns what the request says of the tensor and of the operation, without its memory. Throws an
/// Error{invalid_argument} that names the argument if there cannot be such a tensor.
/// `wire_type` is the option's.
wire::OperationRecord shape_of(const AllreduceRequest& request, WireType wire_type);
wire::OperationRecord shape_of(const SparseAllreduceRequest& request, WireType wire_type);

/// The tensor of an allreduce has no chunks.
inline std::vector<std::uint64_t> chunk_begins_of(const auto&, const wire::OperationRecord&) { return {}; }

/// Check everything else, and add it to `p`, whose record is the request's own shape. Both throw an
/// Error{invalid_argument} that names the argument; what `p` has by then is of no use.
void prepare(const AllreduceRequest& request, const Registrations& registrations, Prepared& p);
void prepare(const SparseAllreduceRequest& request, const Registrations& registrations, Prepared& p);

/// Adds the buffers of a checked request to `p`. If the request has a bitmap, the caller has to add that.
void take_buffers(const AllreduceRequest& request, SharedRegion input, SharedRegion output, Prepared& p);

/// Puts Input::indices into the form that the layout of the operation asks for: a bitmap of blocks, or a
/// stream of elements. To be called while the caller's list is there.
void cut_indices(Prepared& p, const engine::SliceLayout& layout);

/// Returns what takes the place of a request that was refused on `rank` with `error`. Its record is another
/// one if there are too many blocks to refuse them all.
Prepared refused(const wire::OperationRecord& shape, int rank, const Error& error);

}  // namespace nzcl::comm

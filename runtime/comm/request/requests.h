// Checks a caller's request, and turns it into what an Operation is made from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nzcl/communicator.h"
#include "nzcl/error.h"
#include "runtime/comm/gpu/gpu_step.h"
#include "runtime/comm/gpu/staged_stream.h"
#include "runtime/comm/lists/index_list.h"
#include "runtime/comm/request/request_checks.h"
#include "runtime/comm/session/registrations.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"

namespace nzcl::comm {

class KeptRequest;

/// A checked request, from which the operation is made before the call returns.
struct Prepared {
  wire::OperationRecord record;
  std::optional<engine::SliceLayout> layout;  // but for its epoch, if it has been made already
  std::vector<std::uint64_t> chunk_begins;    // see LayoutRequest::begins; empty if chunks are equal
  engine::InputView input;
  engine::OutputView output;
  std::chrono::nanoseconds timeout{};  // 0: the value of the option
  /// Which blocks are non-zero: those that a scan finds, all of them, those of `bitmap`, those of `indices`,
  /// none, those that `source` makes, those of a list that is on a GPU, or those that a GPU finds tile by
  /// tile and that come from `source`.
  enum class Input {
    scan,
    all,
    bitmap,
    indices,
    none,
    source,
    staged_list,
    staged_tiles
  } known = Input::scan;
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
  /// Of a request of which some memory is on a GPU: that, and what is there. What `input`, `output` and
  /// `regions` say of it is that of `staged` then, which the communicator makes.
  std::shared_ptr<gpu::Gpu> gpu;
  const char* gpu_argument = "";  // the first one that is there
  GpuTensors on_gpu;
  std::optional<GpuStream> stream_on_gpu;  // in its place, for a sparse stream or what comes in tiles
  std::shared_ptr<GpuStep> gpu_step;       // what makes the input, if that is a compressor on a GPU
  std::shared_ptr<StagedWork> staged;
  std::shared_ptr<const KeptRequest> kept;  // if the operation may have to begin once more
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

/// Add the memory of one side of a checked request to `p`, of which `chunks` say what of the tensor is there.
void take_input(const void* data, std::uint64_t bytes, CoveredMemory memory, GpuTensors::Chunks chunks,
                Prepared& p);
void take_output(void* data, std::uint64_t bytes, CoveredMemory memory, GpuTensors::Chunks chunks,
                 Prepared& p);
/// Notes where the other ranks find `p.output`, which lies in this region.
void set_output_region(SharedRegion region, Prepared& p);
/// Notes which GPU the argument `name` is on. Throws Error{unsupported} if another one is on another GPU.
void take_gpu(std::shared_ptr<gpu::Gpu> gpu, const char* name, Prepared& p);
/// Adds the stream of a request whose memory has been added. Throws Error{invalid_argument} if there is one
/// although no memory is a GPU's.
void take_stream(std::string_view call, void* stream, Prepared& p);

/// Adds the buffers of a checked request to `p`. If the request has a bitmap, the caller has to add that.
void take_buffers(const AllreduceRequest& request, CoveredMemory input, CoveredMemory output, Prepared& p);

/// Puts Input::indices into the form that the layout of the operation asks for: a bitmap of blocks, or a
/// stream of elements. To be called while the caller's list is there.
void cut_indices(Prepared& p, const engine::SliceLayout& layout);

/// Returns what takes the place of a request that was refused on `rank` with `error`. Its record is another
/// one if there are too many blocks to refuse them all.
Prepared refused(const wire::OperationRecord& shape, int rank, const Error& error);

}  // namespace nzcl::comm

// A packed result on its way to a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "nzcl/indices.h"
#include "runtime/base/failure.h"
#include "runtime/comm/gpu/staging_slots.h"
#include "runtime/gpu/gpu.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::comm {

/// Where a caller has a packed result.
struct GpuPacked {
  std::byte* values = nullptr;
  IndexBuffer indices;             // or null
  std::uint64_t capacity = 0;      // blocks, of which the tensor has as many
  std::uint64_t* count = nullptr;  // see SparseAllreduceRequest::packed_count
  bool count_on_gpu = false;
};

/// Lanes write the result to pinned memory. When all of it is there, its sizes are written down, and the
/// GPU, which has waited, copies so much. Used by the call, and then by the staging thread.
class StagedPacked {
 public:
  /// Throws Error{system} if there is no memory.
  StagedPacked(std::shared_ptr<StagingSlots> slots, const GpuPacked& packed,
               const engine::SliceLayout& layout);
  ~StagedPacked();
  StagedPacked(const StagedPacked&) = delete;
  StagedPacked& operator=(const StagedPacked&) = delete;

  engine::OutputView output() const;
  /// Has the result placed when it is there, and then `done` raised. The caller's memory is not touched
  /// before its stream has come to this. Throws Error.
  void begin(gpu::Stream stream, const gpu::Flag& done);
  /// Whether `done` will be raised by the GPU.
  bool has_begun() const { return begun_; }
  /// Whether the caller's stream has come to the operation.
  bool stream_has_come() const { return slot_->is_raised(0); }
  /// Lets the GPU go on; see StagedWork::place_rest().
  std::optional<Failure> place(engine::Operation& operation, bool lost);
  /// Lets the GPU go on without a result, if it has not done so.
  void call_off();

 private:
  gpu::ListSizes* sizes() const { return reinterpret_cast<gpu::ListSizes*>(slot_->input()); }
  std::byte* indices() const;
  gpu::ListSizes most() const;
  gpu::ListSizes measure(engine::Operation& operation) const;
  void go_on(bool valid, std::uint64_t blocks);

  const std::shared_ptr<StagingSlots> slots_;
  const GpuPacked packed_;
  const std::uint64_t block_bytes_, last_block_bytes_, blocks_;
  std::unique_ptr<StagingSlot> slot_;
  bool begun_ = false, gone_on_ = false;
};

}  // namespace nzcl::comm

// One operation whose input and output are on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/comm/gpu/staging_slots.h"
#include "runtime/gpu/gpu.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::comm {

/// What the caller has on the GPU.
struct GpuTensors {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  gpu::Stream stream = nullptr;  // the caller's
};

/// The steps of such an operation, in their order. The call makes them up to pack(), the staging thread all
/// others. Only enqueue_wait() may come from any thread.
class StagedOperation final : public engine::StagedMemory {
 public:
  /// `placing` is the stream on which the result is placed. Throws Error{system} if there is no memory.
  StagedOperation(std::shared_ptr<StagingSlots> slots, gpu::Stream placing, const GpuTensors& tensors,
                  const engine::SliceLayout& layout);
  ~StagedOperation() override;

  /// What the operation has for input and output.
  engine::InputView input() const;
  engine::OutputView output() const;
  const SharedRegion& region() const { return slot_->region(); }

  /// Starts to bring the input here, on the caller's stream. Without a `bitmap`, the GPU finds out which
  /// blocks are not zero; with one it packs those that are set, and `all` stands for all of them. Throws
  /// Error.
  void pack(std::span<const std::uint64_t> bitmap, bool all);
  /// Publishes the slices that have come. Returns true if there were any.
  bool publish(engine::Operation& operation);
  bool all_published() const { return published_ == flags_; }
  /// Starts to place the result. Throws Error.
  void place(engine::Operation& operation);
  bool is_placing() const { return placing_; }
  bool is_placed() const { return done_.is_raised(); }
  /// Why the GPU does no more work, if that is so.
  std::optional<std::string> why_broken() const { return slots_->gpu()->why_broken(placing_stream_); }
  /// The last step: lets all streams go on that wait for the operation, whatever has become of it, and gives
  /// its memory to others.
  void release();

  void enqueue_wait(void* stream) override;

 private:
  gpu::Shape whole_slices() const;
  gpu::Shape blocks() const;

  const std::shared_ptr<StagingSlots> slots_;
  const gpu::Stream placing_stream_;
  const GpuTensors tensors_;
  const engine::SliceLayout layout_;
  /// The tensor is moved whole, in both directions: a warp for each of many small blocks would take longer.
  const bool copied_;
  const std::uint64_t flags_;  // one for each slice
  std::unique_ptr<StagingSlot> slot_;
  gpu::Flag done_;
  bool known_ = false;  // which blocks are there was known before
  std::vector<bool> seen_;
  std::uint64_t published_ = 0;
  bool placing_ = false;
};

}  // namespace nzcl::comm

// One operation whose input and output are on a GPU.
#pragma once

#include <array>
#include <atomic>
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

/// The steps of such an operation, in their order. The call gives the GPU everything that it has to do: from
/// then on only words of pinned memory change, which say how far the GPU and the host have come. (A driver
/// may refuse to start anything while another thread is in a call that waits for the GPU, as cudaFree() does.
/// So an operation that still had something to start would wait for itself.) The staging thread does the
/// rest, and the lanes say which slices are over. Only enqueue_wait() may come from any thread.
class StagedOperation final : public engine::StagedMemory {
 public:
  /// Throws Error{system} if there is no memory.
  StagedOperation(std::shared_ptr<StagingSlots> slots, const GpuTensors& tensors,
                  const engine::SliceLayout& layout);
  ~StagedOperation() override;

  /// What the operation has for input and output.
  engine::InputView input() const;
  engine::OutputView output() const;
  const SharedRegion& region() const { return slot_->region(); }

  /// Has the input brought here, on the caller's stream, and the result placed when it is there. Without a
  /// `bitmap`, the GPU finds out which blocks are not zero; with one it packs those that are set, and `all`
  /// stands for all of them. Throws Error, after which the operation is of no use.
  void begin(std::span<const std::uint64_t> bitmap, bool all);
  /// Publishes the slices that have come. Returns true if there were any.
  bool publish(engine::Operation& operation);
  bool all_published() const { return published_ == slices_; }
  /// Lets the GPU go on without the slices that are not over. Precondition: the lanes are done.
  void give_up_rest();
  bool is_placed() const { return done_.is_raised(); }
  /// Why the GPU does no more work, if that is so.
  std::optional<std::string> why_broken() const { return slots_->gpu()->why_broken(slots_->stream()); }
  /// The last step: lets all streams go on that wait for the operation, whatever has become of it, and gives
  /// its memory to others.
  void release();

  void enqueue_wait(void* stream) override;
  void slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits, bool valid) noexcept override;

 private:
  /// Slices whose results are placed together.
  struct Group {
    std::atomic<std::uint64_t> left{0};
    std::atomic<bool> invalid{false};
  };
  gpu::Shape whole_slices() const;
  gpu::Shape blocks() const;
  void say_what_is_known(std::span<const std::uint64_t> bitmap, bool all);
  void start_packing();
  void start_placing();

  const std::shared_ptr<StagingSlots> slots_;
  const GpuTensors tensors_;
  const engine::SliceLayout layout_;
  /// The tensor is moved whole, in both directions: a warp for each of many small blocks would take longer.
  const bool copied_;
  const std::uint64_t slices_;
  const std::uint64_t group_slices_;
  std::array<Group, StagingSlot::kMostGroups> groups_;
  std::unique_ptr<StagingSlot> slot_;
  gpu::Flag done_;
  bool known_ = false;  // which blocks are there was known before
  bool begun_ = false;  // the GPU may raise done_
  std::vector<bool> seen_;
  std::uint64_t published_ = 0;
};

}  // namespace nzcl::comm

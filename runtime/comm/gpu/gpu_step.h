// One step of a compressor's state that is on a GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/comm/gpu/gpu_arrays.h"
#include "runtime/comm/gpu/staging_slots.h"
#include "runtime/compress/slice_source.h"
#include "runtime/compress/tensor_state.h"

namespace nzcl::comm {

/// A kernel on the caller's stream adds the gradient, selects, and writes what is selected to pinned memory,
/// slice by slice. The staging thread sees that, and codes the values. Then lanes may read the slice.
class GpuStep final : public compress::SliceSource {
 public:
  /// Both live as long as the step is in progress. `gradient` is on the GPU of the arrays.
  GpuStep(compress::TensorState& state, GpuArrays& arrays, const float* gradient, gpu::Stream stream,
          int rank, int ranks);
  ~GpuStep() override;

  const std::shared_ptr<gpu::Gpu>& gpu() const { return arrays_.gpu(); }
  std::size_t slices() const { return slices_; }
  /// Takes the pinned memory. Throws Error{system} if there is none.
  void take_memory(const std::shared_ptr<StagingSlots>& slots);
  /// Starts the kernel. Throws Error, and then nothing has changed.
  void begin();
  /// Codes the slices that have come. Returns whether there were any. When the last one is ready, the step of
  /// the state has ended.
  bool advance();
  bool all_ready() const { return ready_count_ == slices_; }
  /// Whether the kernel does not use the state any more.
  bool is_quiet() const { return !slot_ || slot_->is_quiet(); }
  const SharedRegion& region() const { return slot_->region(); }
  std::byte* values() const { return slot_->input(); }
  /// Gives the memory to others, unless the GPU may still write to it. Nobody may read a slice any more.
  void release();
  std::span<const std::byte> gradient() const {
    return {reinterpret_cast<const std::byte*>(gradient_), state_.layout().elements() * sizeof(float)};
  }

  void make(std::size_t) noexcept override {}
  bool ready(std::size_t slice) const noexcept override {
    return ready_[slice].load(std::memory_order_acquire);
  }
  compress::SliceContent content(std::size_t slice) const noexcept override;
  bool has_the_draw(std::size_t slice) const noexcept override {
    return state_.outcome(slice).non_finite == 0;
  }
  std::size_t draw(std::size_t slice, std::uint32_t begin, std::uint32_t end,
                   std::span<std::uint16_t> offsets) const noexcept override {
    return state_.draw(number_, slice, begin, end, offsets);
  }

 private:
  /// The parts of the pinned memory, one behind the other.
  struct Parts {
    Parts(std::uint64_t elements, std::size_t slices, std::size_t bins);
    std::uint64_t values = 0, offsets, counts, found, maxima, end;
  };
  template <typename T>
  T* part(std::uint64_t at) const {
    return reinterpret_cast<T*>(slot_->input() + at);
  }
  gpu::SelectJob job() const;
  void take(std::size_t slice);
  void code(std::size_t slice);
  void end();

  compress::TensorState& state_;
  GpuArrays& arrays_;
  const float* const gradient_;
  const gpu::Stream stream_;
  const int rank_, ranks_;
  const std::uint64_t number_;
  const std::size_t slices_;
  const Parts parts_;
  std::shared_ptr<StagingSlots> slots_;
  std::unique_ptr<StagingSlot> slot_;
  compress::TensorState::Elsewhere asked_;
  std::vector<bool> taken_;                     // by slice: the state knows what was selected
  std::unique_ptr<std::atomic<bool>[]> ready_;  // by slice
  std::size_t taken_count_ = 0, ready_count_ = 0;
};

}  // namespace nzcl::comm

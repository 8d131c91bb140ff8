// An allreduce of what a compressor on a GPU selects.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/gpu/gpu_step.h"
#include "runtime/comm/gpu/staged_stream.h"
#include "runtime/comm/gpu/staged_work.h"

namespace nzcl::comm {

/// In tiles, the step is the operation's source. In any other form, the operation, or those that exchange its
/// tensor, get the whole list when all of it is there. The result is that of a stream without a list.
class StagedCompressed final : public StagedWork {
 public:
  /// `output`: on the GPU, or null. Throws Error{system} if there is no memory.
  StagedCompressed(const std::shared_ptr<StagingSlots>& slots, std::shared_ptr<GpuStep> step,
                   std::byte* output, gpu::Stream stream, bool in_tiles, const engine::SliceLayout& layout,
                   Exchanged exchanged);

  /// What an operation that is not in tiles has for an input.
  engine::InputView input() const;
  const SharedRegion& region() const { return step_->region(); }
  const StagedOperation* dense() const { return result_.dense(); }

  void begin(std::uint64_t epoch, std::span<const std::uint64_t> bitmap, bool all) override;
  bool publish(engine::Operation& operation) override;
  std::optional<HostList> list_for_others() const override;
  bool all_published() const override { return published_ && result_.all_published(); }
  std::optional<Failure> place_rest(engine::Operation& operation, bool lost) override {
    return result_.place_rest(operation, lost);
  }
  bool is_placed() const override { return result_.is_placed(); }
  std::optional<std::string> why_broken() const override { return result_.why_broken(); }
  void release() override;

  bool brings(std::uint64_t) const override { return !in_tiles_ && !by_others_; }
  void enqueue_wait(void* stream) override { result_.enqueue_wait(stream); }
  void slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits, bool valid,
                  bool far) noexcept override {
    result_.slice_over(slice, bits, valid, far);
  }

 private:
  bool gather();
  HostList list() const;

  const std::shared_ptr<GpuStep> step_;
  const bool in_tiles_, by_others_;
  bool published_ = false, gathered_ = false;
  std::vector<std::int64_t> indices_;  // of a list that was gathered
  StagedStream result_;
};

}  // namespace nzcl::comm

// One operation whose input, output or both are on a GPU.
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
#include "runtime/comm/gpu/chunk_range.h"
#include "runtime/comm/gpu/peer_sum.h"
#include "runtime/comm/gpu/staged_work.h"
#include "runtime/comm/gpu/staging_slots.h"
#include "runtime/gpu/gpu.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::comm {

/// What the caller has on the GPU.
struct GpuTensors {
  /// Chunks of the tensor, one behind the other; a tensor without chunks is one. None: that side of the
  /// operation is in the host's memory, or this rank has none.
  struct Chunks {
    std::uint32_t first = 0, count = 0;
  };
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  Chunks input_chunks, output_chunks;
  gpu::Stream stream = nullptr;  // the caller's
  bool check = false;            // whether a bitmap hides blocks that are not zero
  bool by_graph = false;         // the stream is captured: see StagedOperation::capture()
  /// It is an allreduce that the GPUs of a host's ranks may sum, if all of them can.
  bool gpus_may_sum = false;
  /// It is an allreduce by push, of which the transport may send what others sum from memory of the GPU, and
  /// write direct results there. The slices of so many owners, from `first_own` on, are summed by this
  /// member.
  bool may_be_far = false;
  std::uint32_t first_own = 0, own = 0;
  gpu::SumType type{};
  gpu::SumOp op{};
};

/// One whose input and output are tensors, or chunks of one. See StagedWork.
class StagedOperation final : public StagedWork {
 public:
  /// Throws Error{system} if there is no memory. What the layout refers to must live as long as the operation
  /// that owns this one. `peers` may be nullptr.
  StagedOperation(std::shared_ptr<StagingSlots> slots, const GpuTensors& tensors,
                  const engine::SliceLayout& layout, Exchanged exchanged,
                  const std::shared_ptr<PeerMemory>& peers = nullptr);
  ~StagedOperation() override;

  /// What the operation has for an input, or an output, that is on the GPU.
  bool has_input() const { return !in_.empty(); }
  bool has_output() const { return !out_.empty(); }
  engine::InputView input() const;
  engine::OutputView output() const;
  const SharedRegion& region() const { return slot_->region(); }

  /// For tensors of a captured stream, instead of begin(): puts into the graph that `start` is called, with
  /// `call`, and then all that the GPU has to do with the input; enqueue_wait() puts the rest into it. Each
  /// start() has to call begin(), once what was begun before is over, or abandon(). Throws Error{system}.
  void capture(std::span<const std::uint64_t> bitmap, bool all, gpu::HostFunction start, void* call);
  /// Lets the graph go on without a result.
  void abandon();

  void begin(std::uint64_t epoch, std::span<const std::uint64_t> bitmap, bool all) override;
  void called(std::uint64_t epoch) override {
    if (peers_) peers_->vote(epoch);
  }
  bool publish(engine::Operation& operation) override;
  bool all_published() const override {
    return published_ == slices_ && !awaits_stream_ &&
           (!by_peers_ || peers_->state() == PeerSum::State::known);
  }
  bool stream_has_come() const override { return peers_ ? is_packed_for_peers() : all_published(); }
  bool peers_wait() const override { return by_peers_ && !all_published(); }
  std::string awaited_of_peers() const override { return peers_ ? peers_->awaited() : ""; }
  bool summed_by_gpus() const override { return by_peers_; }
  std::uint64_t far_bytes() const override { return far_bytes_.load(std::memory_order_relaxed); }
  std::optional<std::uint64_t> hidden_block() const override { return hidden_; }
  std::optional<Failure> place_rest(engine::Operation& operation, bool lost) override;
  bool is_placed() const override { return !placing_ || done_.is_raised(); }
  std::optional<std::string> why_broken() const override {
    return slots_->gpu()->why_broken(slots_->stream());
  }
  void release() override;

  bool brings(std::uint64_t slice) const override { return !by_others_ && packs(slice); }
  void enqueue_wait(void* stream) override;
  void slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits, bool valid,
                  bool far) noexcept override;

 private:
  /// Slices whose results are placed together.
  struct Group {
    std::atomic<std::uint64_t> left{0};  // slices, and one more until the caller's stream has come
    std::atomic<bool> invalid{false};
  };
  bool packs(std::uint64_t slice) const { return in_.has(slice) && layout_.blocks_of(slice) > 0; }
  std::uint64_t groups() const { return (out_.slices() + group_slices_ - 1) / group_slices_; }
  std::uint64_t stream_flag() const { return slices_; }
  std::uint64_t peers_flag() const { return slices_ + 1; }
  std::uint64_t used_flags() const { return slices_ + (peers_ ? 2 : 1); }
  bool is_packed_for_peers() const { return slot_->is_raised(peers_flag()); }
  gpu::Shape input_shape(std::uint32_t chunk) const {
    return copied_ ? in_.whole_slices_of(chunk) : in_.blocks_of(chunk);
  }
  std::uint64_t* input_bits(std::uint64_t slice) const;
  bool in_place(std::uint32_t chunk) const;
  bool results_may_be_early() const;
  void take_back();
  void prepare(std::uint64_t epoch, std::span<const std::uint64_t> bitmap, bool all);
  void choose_far_inputs(std::uint64_t epoch);
  void say_what_is_known(std::span<const std::uint64_t> bitmap, bool all);
  void note_hidden(std::uint64_t slice);
  void place_whole(std::span<const std::uint64_t> bits);
  void note_hidden_on_host();
  void set_groups();
  void start_packing();
  void start_for_peers();
  bool publish_by_peers(engine::Operation& operation);
  void contribute_nothing(engine::Operation& operation);
  void settle_peers(engine::Operation& operation, bool lost);
  void start_placing(gpu::Stream stream);
  void place(gpu::Stream stream, std::uint64_t number);
  void one_less(std::uint64_t group) noexcept;
  void add_far_bytes(std::uint64_t slice, std::span<const std::uint64_t> bits) noexcept;
  void give_up_rest();

  const std::shared_ptr<StagingSlots> slots_;
  const GpuTensors tensors_;
  const engine::SliceLayout layout_;
  const ChunkRange in_, out_;
  const bool by_others_;
  /// The input is moved whole: a warp for each of many small blocks would take longer.
  const bool copied_;
  const bool far_;
  const std::uint64_t slices_;
  const std::uint64_t group_slices_;
  std::array<Group, StagingSlot::kMostGroups> groups_;
  std::unique_ptr<StagingSlot> slot_;
  gpu::Flag done_;
  std::unique_ptr<PeerSum> peers_;     // if the GPUs of the host's ranks may sum it
  std::atomic<bool> by_peers_{false};  // they do, and the lanes have nothing to exchange
  bool known_ = false;                 // which blocks are there was known before
  bool placing_ = false;               // the GPU may raise done_
  bool awaits_stream_ = false;  // nothing may be placed before the caller's stream has come to the operation
  std::vector<std::uint64_t> given_;  // to be checked: bits of blocks as input_bits(), or of the whole input
  std::optional<std::uint64_t> hidden_;
  std::vector<bool> seen_;
  std::uint64_t published_ = 0;
  std::atomic<std::uint64_t> far_bytes_{0};
};

}  // namespace nzcl::comm

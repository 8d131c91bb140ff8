#include "runtime/comm/gpu/staged_operation.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/bitmap.h"

namespace nzcl::comm {
namespace {

bool moves_whole(const engine::SliceLayout& layout) {
  return layout.tiled() || layout.words_per_slice() > gpu::kMostSliceWords;
}

}  // namespace

StagedOperation::StagedOperation(std::shared_ptr<StagingSlots> slots, gpu::Stream placing,
                                 const GpuTensors& tensors, const engine::SliceLayout& layout)
    : slots_(std::move(slots)),
      placing_stream_(placing),
      tensors_(tensors),
      layout_(layout),
      copied_(moves_whole(layout)),
      flags_(layout.slices()),
      slot_(slots_->take({.bytes = layout.tensor_bytes(),
                          .words = layout.slices() * layout.words_per_slice(),
                          .flags = layout.slices()})),
      done_(slots_->gpu()->take_flag()),
      seen_(layout.slices()) {
  assert(blocks().slices() == layout.slices());
}

/// A flag that the GPU may still raise is not used again.
StagedOperation::~StagedOperation() {
  if (!placing_ || done_.is_raised()) slots_->gpu()->give_back(done_);
  if (slot_) slots_->give_back(std::move(slot_));
}

/// Each slice is one block, all of which are there.
gpu::Shape StagedOperation::whole_slices() const {
  return {.bytes = layout_.tensor_bytes(), .block_bytes = layout_.slice_bytes(), .slice_blocks = 1};
}

gpu::Shape StagedOperation::blocks() const {
  return {.bytes = layout_.tensor_bytes(),
          .block_bytes = layout_.block_bytes(),
          .slice_blocks = layout_.slice_blocks()};
}

engine::InputView StagedOperation::input() const {
  return {.base = slot_->input(), .region = slot_->region().get(), .packed_slices = !copied_};
}

engine::OutputView StagedOperation::output() const {
  return {.base = slot_->output(), .region = slot_->region().get(), .staged = true};
}

void StagedOperation::pack(std::span<const std::uint64_t> bitmap, bool all) {
  std::uint64_t* const bits = slot_->input_bits();
  known_ = all || !bitmap.empty();
  for (std::uint64_t s = 0; s < flags_; ++s) {
    if (copied_) {
      bits[s] = 1;
    } else if (known_) {
      const std::span words(bits + s * layout_.words_per_slice(), layout_.words_of(s));
      std::fill(words.begin(), words.end(), 0);
      if (all) {
        fill_ones(words, layout_.blocks_of(s));
      } else {
        engine::copy_bits(words, 0, bitmap, layout_.first_block(s), layout_.blocks_of(s));
      }
    }
  }
  const std::uint32_t value = slot_->use(flags_);
  try {
    slots_->gpu()->pack(tensors_.stream, {.shape = copied_ ? whole_slices() : blocks(),
                                          .tensor = tensors_.input,
                                          .packed = slot_->seen(slot_->input()),
                                          .bits = slot_->seen(bits),
                                          .flags = slot_->seen(slot_->flags()),
                                          .value = value,
                                          .known = copied_ || known_});
  } catch (...) {
    slot_->use(0);  // nothing was started
    throw;
  }
}

bool StagedOperation::publish(engine::Operation& operation) {
  const std::uint64_t before = published_;
  for (std::uint64_t s = 0; s < flags_ && published_ < flags_; ++s) {
    if (seen_[s] || !slot_->is_raised(s)) continue;
    seen_[s] = true;
    ++published_;
    const bool by_gpu = !copied_ && !known_;
    const std::span bits(slot_->input_bits() + s * layout_.words_per_slice(), layout_.words_of(s));
    operation.slice_staged(s, by_gpu ? bits : std::span<std::uint64_t>(),
                           layout_.tiled() || !copied_ || known_);
  }
  return published_ > before;
}

void StagedOperation::place(engine::Operation& operation) {
  std::uint64_t* const bits = slot_->output_bits();
  const bool whole = layout_.tiled();
  if (whole) {
    std::fill_n(bits, flags_, 1);
  } else {
    const auto result = operation.staged_union();
    std::copy(result.begin(), result.end(), bits);
  }
  gpu::Gpu& gpu = *slots_->gpu();
  gpu.place(placing_stream_, {.shape = whole ? whole_slices() : blocks(),
                              .tensor = tensors_.output,
                              .staged = slot_->seen(slot_->output()),
                              .bits = slot_->seen(bits),
                              .fill = tensors_.input != tensors_.output});
  placing_ = true;
  gpu.raise(placing_stream_, done_.device, done_.value);
}

void StagedOperation::release() {
  done_.raise_here();
  slots_->give_back(std::move(slot_));
}

void StagedOperation::enqueue_wait(void* stream) {
  if (!done_.is_raised()) slots_->gpu()->await(stream, done_.device, done_.value);
}

}  // namespace nzcl::comm

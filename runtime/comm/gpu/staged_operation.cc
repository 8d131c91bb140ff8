#include "runtime/comm/gpu/staged_operation.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/bitmap.h"

namespace nzcl::comm {
namespace {

bool moves_whole(const engine::SliceLayout& layout) {
  return layout.tiled() || layout.words_per_slice() > gpu::kMostSliceWords;
}

/// A group is so large that starting its kernel does not count.
constexpr std::uint64_t kGroupBytes = 4 << 20;

std::uint64_t slices_per_group(const engine::SliceLayout& layout) {
  const std::uint64_t groups =
      std::clamp<std::uint64_t>(layout.tensor_bytes() / kGroupBytes, 1, StagingSlot::kMostGroups);
  return std::max<std::uint64_t>((layout.slices() + groups - 1) / groups, 1);
}

}  // namespace

StagedOperation::StagedOperation(std::shared_ptr<StagingSlots> slots, const GpuTensors& tensors,
                                 const engine::SliceLayout& layout)
    : slots_(std::move(slots)),
      tensors_(tensors),
      layout_(layout),
      copied_(moves_whole(layout)),
      slices_(layout.slices()),
      group_slices_(slices_per_group(layout)),
      slot_(slots_->take({.bytes = layout.tensor_bytes(),
                          .words = layout.slices() * layout.words_per_slice(),
                          .flags = layout.slices()})),
      done_(slots_->gpu()->take_flag()),
      seen_(layout.slices()) {
  assert(blocks().slices() == layout.slices());
}

/// A flag that the GPU may still raise is not used again.
StagedOperation::~StagedOperation() {
  if (!begun_ || done_.is_raised()) slots_->gpu()->give_back(done_);
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

void StagedOperation::begin(std::span<const std::uint64_t> bitmap, bool all) {
  say_what_is_known(bitmap, all);
  slot_->begin_use(slices_);
  for (std::uint64_t first = 0; first < slices_; first += group_slices_)
    groups_[first / group_slices_].left = std::min(group_slices_, slices_ - first);
  try {
    start_packing();
  } catch (...) {
    slot_->begin_use(0);  // nothing was started
    throw;
  }
  begun_ = true;
  try {
    start_placing();
  } catch (...) {
    give_up_rest();  // for what was started
    throw;
  }
}

void StagedOperation::say_what_is_known(std::span<const std::uint64_t> bitmap, bool all) {
  std::uint64_t* const bits = slot_->input_bits();
  known_ = all || !bitmap.empty();
  for (std::uint64_t s = 0; s < slices_; ++s) {
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
}

void StagedOperation::start_packing() {
  slots_->gpu()->pack(tensors_.stream, {.shape = copied_ ? whole_slices() : blocks(),
                                        .tensor = tensors_.input,
                                        .packed = slot_->seen(slot_->input()),
                                        .bits = slot_->seen(slot_->input_bits()),
                                        .flags = slot_->seen(slot_->flags()),
                                        .value = slot_->use(),
                                        .known = copied_ || known_});
}

/// The stream places each group when its result is here, and then says that the operation is over. The lanes
/// do not begin before, so nobody else writes the bits.
void StagedOperation::start_placing() {
  gpu::Gpu& gpu = *slots_->gpu();
  const gpu::Stream stream = slots_->stream();
  const bool whole = layout_.tiled();
  if (whole) std::fill_n(slot_->output_bits(), slices_, 1);
  for (std::uint64_t first = 0; first < slices_; first += group_slices_) {
    std::uint32_t* const ready = slot_->seen(slot_->ready(first / group_slices_));
    gpu.await(stream, ready, slot_->value_of_valid());
    gpu.place(stream, {.shape = whole ? whole_slices() : blocks(),
                       .first_slice = first,
                       .slices = std::min(group_slices_, slices_ - first),
                       .tensor = tensors_.output,
                       .staged = slot_->seen(slot_->output()),
                       .bits = slot_->seen(slot_->output_bits()),
                       .fill = tensors_.input != tensors_.output,
                       .go = ready,
                       .go_value = slot_->value_of_valid()});
  }
  gpu.raise(stream, done_.device, done_.value);
}

void StagedOperation::slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits,
                                 bool valid) noexcept {
  std::copy(bits.begin(), bits.end(), slot_->output_bits() + slice * layout_.words_per_slice());
  const std::uint64_t number = slice / group_slices_;
  Group& group = groups_[number];
  if (!valid) group.invalid.store(true, std::memory_order_relaxed);
  if (group.left.fetch_sub(1, std::memory_order_acq_rel) == 1)
    slot_->set_ready(number, !group.invalid.load(std::memory_order_relaxed));
}

void StagedOperation::give_up_rest() {
  for (std::uint64_t number = 0; number * group_slices_ < slices_; ++number) {
    if (groups_[number].left.exchange(0, std::memory_order_acq_rel) > 0) slot_->set_ready(number, false);
  }
}

bool StagedOperation::publish(engine::Operation& operation) {
  const std::uint64_t before = published_;
  for (std::uint64_t s = 0; s < slices_ && published_ < slices_; ++s) {
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

void StagedOperation::release() {
  done_.raise_here();
  slots_->give_back(std::move(slot_));
}

void StagedOperation::enqueue_wait(void* stream) {
  if (!done_.is_raised()) slots_->gpu()->await(stream, done_.device, done_.value);
}

}  // namespace nzcl::comm

#include "runtime/compress/compression_step.h"

#include <algorithm>
#include <new>
#include <thread>

namespace nzcl::compress {

CompressionStep::CompressionStep(TensorState& state)
    : state_(state),
      slices_(state.layout().slices().size()),
      progress_(std::make_unique<std::atomic<Progress>[]>(slices_)),
      values_(std::make_unique_for_overwrite<float[]>(state.layout().elements())),
      offsets_(std::make_unique_for_overwrite<std::uint16_t[]>(state.layout().elements())) {
  for (std::size_t i = 0; i < slices_; ++i) progress_[i].store(Progress::ready, std::memory_order_relaxed);
}

void CompressionStep::begin(std::span<const float> gradient, int rank, int ranks) {
  state_.begin_step(gradient, rank, ranks);
  number_ = state_.step_number();
  next_ = 0;
  for (std::size_t i = 0; i < slices_; ++i) progress_[i].store(Progress::open, std::memory_order_release);
}

bool CompressionStep::claim(std::size_t slice) noexcept {
  auto expected = Progress::open;
  return progress_[slice].compare_exchange_strong(expected, Progress::claimed, std::memory_order_acq_rel);
}

void CompressionStep::compress(std::size_t slice, SliceBuffers& buffers) noexcept {
  const Slice& place = state_.layout().slices()[slice];
  const SliceOutcome outcome =
      state_.compress_slice(slice, buffers, {values_.get() + place.begin, place.elements});
  std::copy_n(buffers.offsets.begin(), outcome.sent, offsets_.get() + place.begin);
  progress_[slice].store(Progress::ready, std::memory_order_release);
}

bool CompressionStep::make_next() noexcept {
  for (; next_ < slices_; ++next_) {
    if (!claim(next_)) continue;
    compress(next_++, own_);
    return true;
  }
  return false;
}

void CompressionStep::make(std::size_t slice) noexcept {
  if (progress_[slice].load(std::memory_order_relaxed) != Progress::open) return;
  for (Helper& helper : helpers_) {
    if (helper.busy.test_and_set(std::memory_order_acquire)) continue;
    try {
      if (!helper.buffers) helper.buffers = std::make_unique<SliceBuffers>();
      if (claim(slice)) compress(slice, *helper.buffers);
    } catch (const std::bad_alloc&) {
      // The owner compresses what is left over.
    }
    helper.busy.clear(std::memory_order_release);
    return;
  }
}

void CompressionStep::end() noexcept {
  while (make_next()) {
  }
  for (std::size_t i = 0; i < slices_; ++i) {
    while (!ready(i)) std::this_thread::yield();
  }
  state_.end_step();
}

void CompressionStep::abandon() noexcept {
  for (std::size_t i = 0; i < slices_; ++i) progress_[i].store(Progress::ready, std::memory_order_release);
  state_.abandon_step();
}

SliceContent CompressionStep::content(std::size_t slice) const noexcept {
  const std::uint64_t begin = state_.layout().slices()[slice].begin;
  const std::size_t sent = state_.outcome(slice).sent;
  return {.offsets = {offsets_.get() + begin, sent},
          .values = {values_.get() + begin, sent},
          .scales = state_.scales(slice)};
}

}  // namespace nzcl::compress

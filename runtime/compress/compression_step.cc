#include "runtime/compress/compression_step.h"

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
  unselected_.store(slices_, std::memory_order_relaxed);
  selected_.store(false, std::memory_order_relaxed);
  for (std::size_t i = 0; i < slices_; ++i) progress_[i].store(Progress::open, std::memory_order_release);
}

bool CompressionStep::claim(std::size_t slice, Progress from, Progress to) noexcept {
  return progress_[slice].compare_exchange_strong(from, to, std::memory_order_acq_rel);
}

bool CompressionStep::advance(std::size_t slice, SliceBuffers& buffers) noexcept {
  if (claim(slice, Progress::open, Progress::selecting)) {
    select(slice, buffers);
  } else if (selected_.load(std::memory_order_acquire) &&
             claim(slice, Progress::selected, Progress::coding)) {
    code(slice, buffers);
  } else {
    return false;
  }
  return true;
}

void CompressionStep::select(std::size_t slice, SliceBuffers& buffers) noexcept {
  const Slice& place = state_.layout().slices()[slice];
  state_.select_slice(slice, buffers, {offsets_.get() + place.begin, place.elements},
                      {values_.get() + place.begin, place.elements});
  if (!state_.codes_after_all()) return code(slice, buffers);
  progress_[slice].store(Progress::selected, std::memory_order_release);
  if (unselected_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  state_.end_selection();
  selected_.store(true, std::memory_order_release);
}

void CompressionStep::code(std::size_t slice, SliceBuffers& buffers) noexcept {
  const std::uint64_t begin = state_.layout().slices()[slice].begin;
  const std::size_t count = state_.outcome(slice).sent;
  state_.code_slice(slice, buffers, {offsets_.get() + begin, count}, {values_.get() + begin, count});
  progress_[slice].store(Progress::ready, std::memory_order_release);
}

bool CompressionStep::make_next() noexcept {
  const std::size_t rounds = state_.codes_after_all() ? 2 : 1;
  for (; next_ < rounds * slices_; ++next_) {
    // The last slices may still be with other threads.
    if (next_ == slices_)
      while (!selected_.load(std::memory_order_acquire)) std::this_thread::yield();
    if (!advance(next_ % slices_, own_)) continue;
    ++next_;
    return true;
  }
  return false;
}

void CompressionStep::make(std::size_t slice) noexcept {
  const Progress progress = progress_[slice].load(std::memory_order_relaxed);
  if (progress != Progress::open && progress != Progress::selected) return;
  for (Helper& helper : helpers_) {
    if (helper.busy.test_and_set(std::memory_order_acquire)) continue;
    try {
      if (!helper.buffers) helper.buffers = std::make_unique<SliceBuffers>();
      advance(slice, *helper.buffers);
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
  selected_.store(true, std::memory_order_release);
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

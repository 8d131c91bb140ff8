#include "runtime/comm/gpu/gpu_step.h"

#include "runtime/base/plain_floats.h"

namespace nzcl::comm {

static_assert(gpu::SelectJob::kSquares == compress::kPartOfSquares);

GpuStep::Parts::Parts(std::uint64_t elements, std::size_t slices, std::size_t bins)
    : offsets(whole_pages(elements * sizeof(float))),
      counts(whole_pages(offsets + elements * sizeof(std::uint16_t))),
      found(counts + slices * sizeof(gpu::SelectCounts)),
      maxima(found + sizeof(gpu::FoundRank)),
      end(maxima + bins * sizeof(std::uint32_t)) {}

GpuStep::GpuStep(compress::TensorState& state, GpuArrays& arrays, const float* gradient, gpu::Stream stream,
                 int rank, int ranks)
    : state_(state),
      arrays_(arrays),
      gradient_(gradient),
      stream_(stream),
      rank_(rank),
      ranks_(ranks),
      number_(state.step_number()),
      slices_(state.layout().slices().size()),
      parts_(state.layout().elements(), slices_, state.wants_maxima() ? state.layout().bins() : 0),
      taken_(slices_),
      ready_(std::make_unique<std::atomic<bool>[]>(slices_)) {}

GpuStep::~GpuStep() {
  if (slot_) slots_->give_back(std::move(slot_));
}

void GpuStep::take_memory(const std::shared_ptr<StagingSlots>& slots) {
  slots_ = slots;
  slot_ = slots_->take({.input_bytes = parts_.end, .flags = slices_});
}

void GpuStep::release() {
  if (slot_ && slot_->is_quiet()) slots_->give_back(std::move(slot_));
}

void GpuStep::begin() {
  asked_ = state_.begin_step_elsewhere(rank_);
  if (slices_ == 0) return end();
  gpu::SelectJob step = job();
  step.puts_back = arrays_.write_lost(part<std::uint16_t>(parts_.offsets), part<float>(parts_.values),
                                      part<gpu::SelectCounts>(parts_.counts));
  slot_->begin_use(slices_);
  step.value = slot_->use();
  try {
    gpu()->select(stream_, step);
  } catch (...) {
    slot_->begin_use(0);  // no flag will be raised
    throw;
  }
  arrays_.step_begun();
}

gpu::SelectJob GpuStep::job() const {
  using By = gpu::SelectJob::By;
  gpu::SelectJob job = arrays_.job();
  if (job.by == By::threshold && asked_.wanted > 0) job.by = By::rank;
  job.gradient = gradient_;
  job.most_norm = state_.most_norm(ranks_);
  job.threshold = asked_.rule.threshold;
  job.lower_threshold = asked_.rule.lower_threshold;
  job.wanted = asked_.wanted;
  job.more_ties = asked_.more_ties;
  job.key = asked_.key;
  job.draw_below = asked_.rule.draw_below;
  if (state_.wants_maxima()) job.maxima = slot_->seen(part<std::uint32_t>(parts_.maxima));
  job.offsets = slot_->seen(part<std::uint16_t>(parts_.offsets));
  job.values = slot_->seen(part<float>(parts_.values));
  job.counts = slot_->seen(part<gpu::SelectCounts>(parts_.counts));
  if (asked_.wanted > 0) job.found = slot_->seen(part<gpu::FoundRank>(parts_.found));
  job.flags = slot_->seen(slot_->flags());
  return job;
}

compress::SliceContent GpuStep::content(std::size_t slice) const noexcept {
  const std::uint64_t begin = state_.layout().slices()[slice].begin;
  const std::size_t sent = state_.outcome(slice).sent;
  return {.offsets = {part<std::uint16_t>(parts_.offsets) + begin, sent},
          .values = {part<float>(parts_.values) + begin, sent},
          .scales = state_.scales(slice)};
}

/// Tells the state what was selected in a slice.
void GpuStep::take(std::size_t slice) {
  const gpu::SelectCounts counts = part<gpu::SelectCounts>(parts_.counts)[slice];
  const compress::Slice& place = state_.layout().slices()[slice];
  std::span<const std::uint32_t> maxima;
  if (state_.wants_maxima()) maxima = {part<std::uint32_t>(parts_.maxima) + place.first_bin, place.bins};
  state_.selected_elsewhere(slice, {.count = counts.selected, .count_lower = counts.lower}, maxima);
  taken_[slice] = true;
  ++taken_count_;
}

void GpuStep::code(std::size_t slice) {
  const compress::Slice& place = state_.layout().slices()[slice];
  const std::size_t count = state_.outcome(slice).sent;
  const std::span offsets(part<std::uint16_t>(parts_.offsets) + place.begin, count);
  const std::span values(part<float>(parts_.values) + place.begin, count);
  compress::SliceBuffers& buffers = arrays_.buffers();
  state_.code_slice(slice, buffers, offsets, values);
  if (state_.feeds_back()) arrays_.keep_lost(place, slice, offsets, buffers.before, values);
  if (++ready_count_ == slices_) end();  // before the operation can be over
  ready_[slice].store(true, std::memory_order_release);
}

bool GpuStep::advance() {
  const PlainFloats floats;
  const std::size_t before = ready_count_;
  for (std::size_t slice = 0; slice < slices_ && taken_count_ < slices_; ++slice) {
    if (taken_[slice] || !slot_->is_raised(slice)) continue;
    take(slice);
    if (!state_.codes_after_all()) code(slice);
  }
  if (state_.codes_after_all() && taken_count_ == slices_ && ready_count_ == 0) {
    state_.end_selection();
    for (std::size_t slice = 0; slice < slices_; ++slice) code(slice);
  }
  return ready_count_ > before;
}

void GpuStep::end() {
  compress::TensorState::FoundElsewhere found;
  if (slices_ > 0 && asked_.wanted > 0) {
    const auto& rank = *part<gpu::FoundRank>(parts_.found);
    found = {.threshold = rank.threshold, .some_ties = rank.equal > rank.ties + asked_.more_ties};
  }
  state_.end_step_elsewhere(found);
}

}  // namespace nzcl::comm

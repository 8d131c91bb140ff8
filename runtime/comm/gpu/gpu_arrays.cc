#include "runtime/comm/gpu/gpu_arrays.h"

#include <algorithm>

#include "runtime/compress/select.h"

namespace nzcl::comm {

GpuArrays::GpuArrays(std::shared_ptr<gpu::Gpu> gpu, const Compressor& compressor,
                     const compress::Layout& layout)
    : gpu_(std::move(gpu)),
      elements_(layout.elements()),
      keeps_residual_(compressor.residual),
      lost_offsets_(std::make_unique_for_overwrite<std::uint16_t[]>(elements_)),
      lost_(std::make_unique_for_overwrite<float[]>(elements_)),
      lost_counts_(layout.slices().size()) {
  try {
    stream_ = gpu_->make_stream();
    allocate_all(compressor, layout);
  } catch (...) {
    free_all();
    throw;
  }
}

GpuArrays::~GpuArrays() { free_all(); }

void GpuArrays::free_all() noexcept {
  for (std::byte* const memory : all_) gpu_->free(memory);
  if (stream_ != nullptr) gpu_->destroy_stream(stream_);
}

template <typename T>
T* GpuArrays::allocate(std::uint64_t count) {
  all_.reserve(all_.size() + 1);
  all_.push_back(gpu_->allocate(std::max<std::uint64_t>(count, 1) * sizeof(T)));
  return reinterpret_cast<T*>(all_.back());
}

template <typename T>
T* GpuArrays::upload(const std::vector<T>& from) {
  T* const to = allocate<T>(from.size());
  if (!from.empty()) gpu_->copy(stream_, to, from.data(), from.size() * sizeof(T));
  gpu_->synchronize(stream_);
  return to;
}

void GpuArrays::allocate_all(const Compressor& compressor, const compress::Layout& layout) {
  using By = gpu::SelectJob::By;
  const std::uint64_t slices = layout.slices().size();
  job_.elements = elements_;
  job_.residual = allocate<float>(elements_);
  job_.momentum = compressor.momentum;
  if (compressor.momentum > 0) job_.velocity = allocate<float>(elements_);
  if (compressor.clip > 0) {
    job_.squares = allocate<double>(slices);
    job_.factor = allocate<float>(1);
  }
  if (std::holds_alternative<RandomK>(compressor.selection)) job_.by = By::draw;
  const bool blocks = std::holds_alternative<BlockTopK>(compressor.selection);
  if (blocks || std::holds_alternative<TopK>(compressor.selection)) {
    job_.search = allocate<gpu::RankSearch>(1);
    job_.last_counts = allocate<std::uint32_t>(slices * gpu::RankSearch::kLastBuckets);
  }
  if (!blocks && !std::holds_alternative<AdaComp>(compressor.selection)) return;
  job_.by = blocks ? By::block_rank : By::adacomp;
  std::vector<std::uint32_t> ends;
  std::vector<std::uint64_t> first{0};
  for (const compress::Slice& slice : layout.slices()) {
    const auto of_slice = layout.bin_ends(slice);
    ends.insert(ends.end(), of_slice.begin(), of_slice.end());
    first.push_back(ends.size());
  }
  job_.bins = ends.size();
  job_.bin_ends = upload(ends);
  job_.first_bins = upload(first);
  if (blocks) job_.maxima = allocate<std::uint32_t>(ends.size());
}

gpu::SelectJob GpuArrays::job() const {
  gpu::SelectJob job = job_;
  job.scale = scale_;
  job.fresh_residual = fresh_ || !keeps_residual_;
  job.fresh_velocity = fresh_;
  return job;
}

void GpuArrays::step_begun() {
  fresh_ = false;
  scale_ = 1;
  std::ranges::fill(lost_counts_, 0);
}

void GpuArrays::reset() {
  step_begun();
  fresh_ = true;
}

void GpuArrays::keep_lost(const compress::Slice& slice, std::size_t index,
                          std::span<const std::uint16_t> offsets, std::span<const float> before,
                          std::span<const float> sent) noexcept {
  std::ranges::copy(offsets, lost_offsets_.get() + slice.begin);
  for (std::size_t i = 0; i < sent.size(); ++i) lost_[slice.begin + i] = compress::lost(before[i], sent[i]);
  lost_counts_[index] = static_cast<std::uint32_t>(sent.size());
}

bool GpuArrays::write_lost(std::uint16_t* offsets, float* values, gpu::SelectCounts* counts) const noexcept {
  bool any = false;
  for (std::size_t i = 0; i < lost_counts_.size(); ++i) {
    const std::uint64_t begin = i * gpu::SelectJob::kSlice;
    const std::uint32_t count = lost_counts_[i];
    counts[i] = {.selected = count};
    std::copy_n(lost_offsets_.get() + begin, count, offsets + begin);
    std::copy_n(lost_.get() + begin, count, values + begin);
    any |= count > 0;
  }
  return any;
}

std::vector<float> GpuArrays::read(const float* from) const {
  if (from == nullptr) return {};
  std::vector<float> to(elements_);
  if (fresh_ || elements_ == 0) return to;
  gpu_->copy(stream_, to.data(), from, to.size() * sizeof(float));
  gpu_->synchronize(stream_);
  return to;
}

std::vector<float> GpuArrays::residual() const {
  if (!keeps_residual_) return {};
  std::vector<float> kept = read(job_.residual);
  for (std::size_t i = 0; i < lost_counts_.size(); ++i) {
    const std::uint64_t begin = i * gpu::SelectJob::kSlice;
    for (std::uint64_t k = begin; k < begin + lost_counts_[i]; ++k) kept[begin + lost_offsets_[k]] = lost_[k];
  }
  if (scale_ != 1) {
    for (float& x : kept) x *= scale_;
  }
  return kept;
}

void GpuArrays::write(std::span<const std::byte> residual, std::span<const std::byte> velocity) {
  if (elements_ == 0) return;
  if (!residual.empty()) gpu_->copy(stream_, job_.residual, residual.data(), residual.size());
  if (!velocity.empty()) gpu_->copy(stream_, job_.velocity, velocity.data(), velocity.size());
  gpu_->synchronize(stream_);
  step_begun();
}

}  // namespace nzcl::comm

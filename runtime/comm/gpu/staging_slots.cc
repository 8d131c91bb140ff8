#include "runtime/comm/gpu/staging_slots.h"

#include <algorithm>
#include <atomic>

#include "nzcl/error.h"

namespace nzcl::comm {
namespace {

std::uint64_t bitmap_bytes(const SlotSize& size) { return whole_pages(size.words * sizeof(std::uint64_t)); }

std::size_t total_bytes(const SlotSize& size) {
  return whole_pages(size.input_bytes) + whole_pages(size.output_bytes) + 2 * bitmap_bytes(size) +
         whole_pages((size.flags + StagingSlot::kMostGroups) * sizeof(std::uint32_t) + 2 * size.flags);
}

}  // namespace

StagingSlot::StagingSlot(std::shared_ptr<gpu::Gpu> gpu, Registrations& registrations, const SlotSize& size)
    : gpu_(std::move(gpu)), size_(size), memory_(gpu_->pin(total_bytes(size))) {
  try {
    registration_ = registrations.add({memory_.host, memory_.bytes}, MemoryKind::host);
    if (size.far) far_.emplace(gpu_, registrations, whole_pages(size.input_bytes) + size.output_bytes);
  } catch (...) {
    registration_.reset();
    gpu_->unpin(memory_);
    throw;
  }
}

StagingSlot::~StagingSlot() {
  far_.reset();
  registration_.reset();
  gpu_->unpin(memory_);
}

std::byte* StagingSlot::output() const { return memory_.host + whole_pages(size_.input_bytes); }
std::uint64_t* StagingSlot::input_bits() const {
  return reinterpret_cast<std::uint64_t*>(output() + whole_pages(size_.output_bytes));
}
std::uint64_t* StagingSlot::output_bits() const {
  return input_bits() + bitmap_bytes(size_) / sizeof(std::uint64_t);
}
std::uint32_t* StagingSlot::flags() const {
  return reinterpret_cast<std::uint32_t*>(output_bits() + bitmap_bytes(size_) / sizeof(std::uint64_t));
}

std::uint8_t* StagingSlot::far_inputs() const { return reinterpret_cast<std::uint8_t*>(ready(kMostGroups)); }
engine::FarMemory StagingSlot::far_output() const {
  return {far_->data() + whole_pages(size_.input_bytes), far_->region()};
}

std::uint32_t* StagingSlot::ready(std::uint64_t group) const { return flags() + size_.flags + group; }

void StagingSlot::set_ready(std::uint64_t group, bool valid) const {
  std::atomic_ref(*ready(group))
      .store(valid ? value_of_valid() : value_of_invalid(), std::memory_order_release);
}

void StagingSlot::begin_use(std::uint64_t flags) {
  used_flags_ = flags;
  ++use_;
}

void StagingSlot::take_back_use() const {
  const auto set = [](std::uint32_t& word, std::uint32_t value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
  };
  for (std::uint64_t flag = 0; flag < used_flags_; ++flag) set(flags()[flag], use_ - 1);
  for (std::uint64_t group = 0; group < kMostGroups; ++group) set(*ready(group), value_of_valid() - 1);
}

void StagingSlot::raise_here(std::uint64_t flag) const {
  std::atomic_ref(flags()[flag]).store(use_, std::memory_order_release);
}

bool StagingSlot::is_raised(std::uint64_t flag) const {
  return std::atomic_ref(flags()[flag]).load(std::memory_order_acquire) == use_;
}

bool StagingSlot::is_quiet() const {
  for (std::uint64_t flag = 0; flag < used_flags_; ++flag) {
    if (!is_raised(flag)) return false;
  }
  return true;
}

StagingSlots::~StagingSlots() {
  gpu_->destroy_stream(stream_);
  if (callers_stream_) gpu_->destroy_stream(*callers_stream_);
  static auto* const kept = new std::vector<std::unique_ptr<StagingSlot>>;  // until the process ends
  static auto* const mutex = new std::mutex;
  for (auto& slot : slots_) {
    if (slot->is_quiet()) continue;
    const std::scoped_lock lock(*mutex);
    kept->push_back(std::move(slot));
  }
}

gpu::Stream StagingSlots::callers_stream() {
  const std::scoped_lock lock(mutex_);
  if (!callers_stream_) callers_stream_ = gpu_->make_stream();
  return *callers_stream_;
}

void StagingSlots::await(gpu::Stream stream, const gpu::Flag& done) const {
  if (done.is_raised()) return;
  if (gpu_->captures(stream))
    throw Error(ErrorCode::invalid_usage,
                "enqueue_wait: the stream is captured into a graph, and the operation was begun outside it; "
                "capture the call as well, or wait before the capture");
  gpu_->await(stream, done.device, done.value);
}

std::unique_ptr<StagingSlot> StagingSlots::take(const SlotSize& size) {
  {
    const std::scoped_lock lock(mutex_);
    auto best = slots_.end();
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      if (!size.fits((*slot)->size()) || !(*slot)->is_quiet()) continue;
      if (best == slots_.end() || (*slot)->size().bytes() < (*best)->size().bytes()) best = slot;
    }
    if (best != slots_.end()) {
      auto found = std::move(*best);
      slots_.erase(best);
      return found;
    }
  }
  return std::make_unique<StagingSlot>(gpu_, registrations_, size);
}

void StagingSlots::give_back(std::unique_ptr<StagingSlot> slot) {
  const std::scoped_lock lock(mutex_);
  slots_.push_back(std::move(slot));
}

}  // namespace nzcl::comm

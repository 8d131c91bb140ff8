#include "runtime/comm/gpu/staged_packed.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "runtime/comm/gpu/list_memory.h"
#include "runtime/comm/lists/index_list.h"
#include "runtime/operation/index_memory.h"

namespace nzcl::comm {
namespace {

/// No union has more blocks than the tensor.
GpuPacked within(GpuPacked packed, const engine::SliceLayout& layout) {
  packed.capacity = std::min(packed.capacity, layout.blocks());
  return packed;
}

}  // namespace

StagedPacked::StagedPacked(std::shared_ptr<StagingSlots> slots, const GpuPacked& packed,
                           const engine::SliceLayout& layout)
    : slots_(std::move(slots)),
      packed_(within(packed, layout)),
      block_bytes_(layout.block_bytes()),
      last_block_bytes_(layout.tensor_bytes() - (layout.blocks() - 1) * layout.block_bytes()),
      blocks_(layout.blocks()),
      slot_(slots_->take({.input_bytes = sizeof(gpu::ListSizes),
                          .output_bytes = whole_pages(most().value_bytes) + most().index_bytes,
                          .flags = 1})) {}

StagedPacked::~StagedPacked() {
  call_off();
  slots_->give_back(std::move(slot_));
}

gpu::ListSizes StagedPacked::most() const {
  const bool wanted = packed_.indices.data() != nullptr;
  return {.blocks = packed_.capacity,
          .value_bytes = packed_.capacity * block_bytes_,
          .index_bytes = wanted ? packed_.capacity * index_bytes(packed_.indices.type()) : 0};
}

std::byte* StagedPacked::indices() const { return slot_->output() + whole_pages(most().value_bytes); }

engine::OutputView StagedPacked::output() const {
  const bool wanted = packed_.indices.data() != nullptr;
  return {.base = slot_->output(),
          .packed = true,
          .capacity = packed_.capacity,
          .indices = IndexBuffer(wanted ? indices() : nullptr, packed_.indices.type())};
}

void StagedPacked::begin(gpu::Stream stream, const gpu::Flag& done) {
  gpu::Gpu& gpu = *slots_->gpu();
  slot_->begin_use(1);
  try {
    gpu.raise(stream, slot_->seen(slot_->flags()), slot_->use());
  } catch (...) {
    slot_->begin_use(0);  // nothing was started
    throw;
  }
  std::uint32_t* const ready = slot_->seen(slot_->ready(0));
  gpu.await(slots_->stream(), ready, slot_->value_of_valid());
  gpu.copy_list(slots_->stream(),
                {.values = {slot_->seen(slot_->output()), packed_.values},
                 .indices = {slot_->seen(indices()), static_cast<std::byte*>(packed_.indices.data())},
                 .sizes = most(),
                 .found = slot_->seen(sizes()),
                 .count = packed_.count_on_gpu ? packed_.count : nullptr,
                 .go = ready,
                 .go_value = slot_->value_of_valid(),
                 .runners = list_runners(most().value_bytes)});
  begun_ = true;
  gpu.raise(slots_->stream(), done.device, done.value);
}

gpu::ListSizes StagedPacked::measure(engine::Operation& operation) const {
  const std::uint64_t blocks = operation.union_blocks.load(std::memory_order_relaxed);
  const bool wanted = packed_.indices.data() != nullptr;
  gpu::ListSizes sizes{.blocks = blocks,
                       .value_bytes = blocks * block_bytes_,
                       .index_bytes = wanted ? blocks * index_bytes(packed_.indices.type()) : 0};
  if (blocks > 0 && last_block_bytes_ < block_bytes_ &&
      static_cast<std::uint64_t>(operation.packed_indices().back()) == blocks_ - 1)
    sizes.value_bytes -= block_bytes_ - last_block_bytes_;
  return sizes;
}

std::optional<Failure> StagedPacked::place(engine::Operation& operation, bool lost) {
  if (lost) {
    call_off();
    return std::nullopt;
  }
  try {
    operation.complete_packed();
    *sizes() = measure(operation);
  } catch (const std::bad_alloc&) {
    call_off();
    return Failure{ErrorCode::system,
                   fmt::format("operation {}: out of memory for a packed result", operation.epoch)};
  }
  go_on(true, sizes()->blocks);
  return std::nullopt;
}

void StagedPacked::call_off() {
  if (!gone_on_) go_on(false, 0);
}

void StagedPacked::go_on(bool valid, std::uint64_t blocks) {
  gone_on_ = true;
  if (packed_.count != nullptr && !packed_.count_on_gpu)
    std::atomic_ref(*packed_.count).store(blocks, std::memory_order_relaxed);
  slot_->set_ready(0, valid);
}

}  // namespace nzcl::comm

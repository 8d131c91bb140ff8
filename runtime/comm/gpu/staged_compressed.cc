#include "runtime/comm/gpu/staged_compressed.h"

#include <cstring>
#include <new>

#include "runtime/comm/gpu/staged_list.h"

namespace nzcl::comm {

StagedCompressed::StagedCompressed(const std::shared_ptr<StagingSlots>& slots, std::shared_ptr<GpuStep> step,
                                   std::byte* output, gpu::Stream stream, bool in_tiles,
                                   const engine::SliceLayout& layout, Exchanged exchanged)
    : step_(std::move(step)),
      in_tiles_(in_tiles),
      by_others_(exchanged == Exchanged::by_others),
      result_(slots, {.list = {}, .output = output, .packed = {}, .stream = stream}, layout, exchanged) {
  step_->take_memory(slots);
}

engine::InputView StagedCompressed::input() const {
  return {.base = step_->values(), .region = step_->region().get(), .sparse = true};
}

void StagedCompressed::begin(std::uint64_t epoch, std::span<const std::uint64_t>, bool) {
  step_->begin();
  result_.begin(epoch, {}, false);
}

bool StagedCompressed::publish(engine::Operation& operation) {
  bool changed = result_.publish(operation);
  if (published_) return changed;
  changed |= step_->advance();
  if (in_tiles_ && changed) operation.ring_for_made();
  if (!step_->all_ready()) return changed;
  gathered_ = !in_tiles_ && gather();
  if (!in_tiles_ && !by_others_) {
    if (gathered_) {
      give_list(operation, list());
    } else {
      refuse_list(operation, ErrorCode::system, "out of memory");
    }
  }
  return published_ = true;
}

HostList StagedCompressed::list() const {
  return {.values = step_->values(), .region = step_->region().get(), .indices = indices_};
}

std::optional<HostList> StagedCompressed::list_for_others() const {
  if (!published_) return std::nullopt;
  if (!gathered_) throw Error(ErrorCode::system, "allreduce: out of memory");
  return list();
}

/// The values of slices come to lie one behind the other, as those of a list. Returns false if there is no
/// memory for the list.
bool StagedCompressed::gather() {
  std::byte* to = step_->values();
  try {
    for (std::size_t slice = 0; slice < step_->slices(); ++slice) {
      const compress::SliceContent content = step_->content(slice);
      const auto first = static_cast<std::int64_t>(slice * gpu::SelectJob::kSlice);
      for (const std::uint16_t offset : content.offsets) indices_.push_back(first + offset);
      std::memmove(to, content.values.data(), content.values.size_bytes());
      to += content.values.size_bytes();
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void StagedCompressed::release() {
  step_->release();
  result_.release();
}

}  // namespace nzcl::comm

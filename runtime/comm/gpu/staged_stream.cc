#include "runtime/comm/gpu/staged_stream.h"

namespace nzcl::comm {

StagedStream::StagedStream(std::shared_ptr<StagingSlots> slots, const GpuStream& memory,
                           const engine::SliceLayout& layout, Exchanged exchanged)
    : slots_(std::move(slots)), stream_(memory.stream), by_others_(exchanged == Exchanged::by_others) {
  if (memory.list) list_.emplace(slots_, *memory.list);
  if (memory.tensor != nullptr) tiles_ = std::make_shared<StagedTiles>(slots_, memory.tensor, layout);
  if (memory.packed) packed_.emplace(slots_, *memory.packed, layout);
  if (memory.output != nullptr) {
    dense_.emplace(slots_,
                   GpuTensors{.output = memory.output,
                              .input_chunks = {},
                              .output_chunks = {.first = 0, .count = 1},
                              .stream = stream_},
                   layout, exchanged);
  } else {
    done_ = slots_->gpu()->take_flag();
  }
}

/// A flag that the GPU may still raise is not used again.
StagedStream::~StagedStream() {
  const bool may_be_raised = packed_ && packed_->has_begun() && !done_.is_raised();
  if (done_ && !may_be_raised) slots_->gpu()->give_back(done_);
}

/// The input comes first, so that a result which the caller's stream has come to is never placed before the
/// input has been read.
void StagedStream::begin(std::uint64_t epoch, std::span<const std::uint64_t>, bool) {
  if (list_) list_->begin(stream_);
  if (tiles_) tiles_->begin(stream_);
  if (dense_) dense_->begin(epoch, {}, false);
  if (packed_) packed_->begin(stream_, done_);
}

bool StagedStream::publish(engine::Operation& operation) {
  bool changed = dense_ && dense_->publish(operation);
  if (tiles_) changed |= tiles_->publish(operation);
  if (!list_ || given_ || !list_->has_come()) return changed;
  if (!by_others_) give_list(operation, list_->list());
  return given_ = true;
}

std::optional<HostList> StagedStream::list_for_others() const {
  return given_ ? std::optional(list_->list()) : std::nullopt;
}

bool StagedStream::all_published() const {
  return (!list_ || given_) && (!tiles_ || tiles_->all_published()) && (!dense_ || dense_->all_published()) &&
         (!packed_ || packed_->stream_has_come());
}

std::optional<Failure> StagedStream::place_rest(engine::Operation& operation, bool lost) {
  if (dense_) return dense_->place_rest(operation, lost);
  return packed_ ? packed_->place(operation, lost) : std::nullopt;
}

bool StagedStream::is_placed() const {
  if (dense_) return dense_->is_placed();
  return !packed_ || done_.is_raised();
}

std::optional<std::string> StagedStream::why_broken() const {
  return slots_->gpu()->why_broken(slots_->stream());
}

void StagedStream::release() {
  if (tiles_) tiles_->release();
  if (dense_) {
    list_.reset();
    return dense_->release();
  }
  packed_.reset();
  list_.reset();
  done_.raise_here();
}

bool StagedStream::brings(std::uint64_t) const { return !by_others_ && (list_ || tiles_); }

void StagedStream::enqueue_wait(void* stream) {
  if (dense_) return dense_->enqueue_wait(stream);
  slots_->await(stream, done_);
}

void StagedStream::slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits, bool valid,
                              bool far) noexcept {
  if (dense_) dense_->slice_over(slice, bits, valid, far);
}

}  // namespace nzcl::comm

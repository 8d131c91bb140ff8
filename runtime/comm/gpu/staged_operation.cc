#include "runtime/comm/gpu/staged_operation.h"

#include <algorithm>
#include <bit>

#include "runtime/base/bitmap.h"
#include "runtime/operation/input_check.h"

namespace nzcl::comm {
namespace {

bool moves_whole(const engine::SliceLayout& layout) {
  return layout.tiled() || layout.words_per_slice() > gpu::kMostSliceWords;
}

/// A group is so large that starting its kernel does not count.
constexpr std::uint64_t kGroupBytes = 4 << 20;

std::uint64_t slices_per_group(const ChunkRange& output) {
  const std::uint64_t groups =
      std::clamp<std::uint64_t>(output.bytes() / kGroupBytes, 1, StagingSlot::kMostGroups);
  return std::max<std::uint64_t>((output.slices() + groups - 1) / groups, 1);
}

}  // namespace

StagedOperation::StagedOperation(std::shared_ptr<StagingSlots> slots, const GpuTensors& tensors,
                                 const engine::SliceLayout& layout, Exchanged exchanged,
                                 const std::shared_ptr<PeerMemory>& peers)
    : slots_(std::move(slots)),
      tensors_(tensors),
      layout_(layout),
      in_(layout_, tensors.input_chunks.first, tensors.input_chunks.count),
      out_(layout_, tensors.output_chunks.first, tensors.output_chunks.count),
      by_others_(exchanged == Exchanged::by_others),
      copied_(by_others_ || moves_whole(layout)),
      far_(tensors.may_be_far && !copied_ && !layout.express()),
      slices_(layout.slices()),
      group_slices_(slices_per_group(out_)),
      slot_(slots_->take({.input_bytes = in_.bytes(),
                          .output_bytes = out_.bytes(),
                          .words = layout.slices() * layout.words_per_slice(),
                          .flags = layout.slices() + 2,
                          .far = far_})),
      done_(slots_->gpu()->take_flag()),
      seen_(layout.slices()) {
  if (!peers || !tensors_.gpus_may_sum || by_others_ || copied_ || layout_.express() || !has_input() ||
      !has_output())
    return;
  peers_ = PeerSum::make(peers, slots_->gpu(),
                         {.shape = in_.blocks_of(0),
                          .type = tensors_.type,
                          .op = tensors_.op,
                          .output = tensors_.output,
                          .union_bits = slot_->seen(slot_->output_bits()),
                          .in_place = in_place(0)});
}

/// A flag that the GPU may still raise is not used again.
StagedOperation::~StagedOperation() {
  if (slot_) {
    give_up_rest();
    peers_.reset();
    slots_->give_back(std::move(slot_));
  }
  if (!tensors_.by_graph && (!placing_ || done_.is_raised())) slots_->gpu()->give_back(done_);
}

engine::InputView StagedOperation::input() const {
  return {.base = slot_->input(),
          .region = slot_->region().get(),
          .packed_slices = !copied_,
          .far = far_ ? slot_->far_input() : engine::FarMemory()};
}

engine::OutputView StagedOperation::output() const {
  return {.base = slot_->output(),
          .region = slot_->region().get(),
          .absent_stay = true,  // it is only on the way to the output
          .far = far_ ? slot_->far_output() : engine::FarMemory()};
}

/// Bits of blocks, or, where the input is moved whole, a word for each slice.
std::uint64_t* StagedOperation::input_bits(std::uint64_t slice) const {
  return slot_->input_bits() + slice * (copied_ ? 1 : layout_.words_per_slice());
}

/// Whether a chunk's result belongs where the input of it lies.
bool StagedOperation::in_place(std::uint32_t chunk) const {
  return in_.has_chunk(chunk) &&
         tensors_.input + in_.offset_of(chunk) == tensors_.output + out_.offset_of(chunk);
}

/// Whether there are results that do not wait for what this rank's GPU reads, and so may be here while the
/// caller's stream still uses the output.
bool StagedOperation::results_may_be_early() const {
  for (std::uint32_t chunk = out_.first(); chunk < out_.end(); ++chunk) {
    if (!in_.has_chunk(chunk)) return true;
  }
  return false;
}

void StagedOperation::begin(std::uint64_t epoch, std::span<const std::uint64_t> bitmap, bool all) {
  if (tensors_.by_graph) {
    take_back();
    return prepare(epoch, bitmap, all);
  }
  slot_->begin_use(used_flags());
  prepare(epoch, bitmap, all);
  start_packing();
  start_placing(slots_->stream());
}

void StagedOperation::capture(std::span<const std::uint64_t> bitmap, bool all, gpu::HostFunction start,
                              void* call) {
  slot_->begin_use(used_flags());
  prepare(0, bitmap, all);
  slots_->gpu()->call(tensors_.stream, start, call);
  start_packing();
}

/// A graph has the same values for each use.
void StagedOperation::take_back() {
  slot_->take_back_use();
  done_.lower_here();
  std::fill(seen_.begin(), seen_.end(), false);
  published_ = 0;
  hidden_.reset();
}

void StagedOperation::abandon() {
  for (std::uint64_t number = 0; number < groups(); ++number) slot_->set_ready(number, false);
  if (!placing_) done_.raise_here();
}

/// What the host has to do before the GPU begins.
void StagedOperation::prepare(std::uint64_t epoch, std::span<const std::uint64_t> bitmap, bool all) {
  say_what_is_known(bitmap, all);
  if (far_ && has_input()) choose_far_inputs(epoch);
  if (tensors_.check && copied_) given_.assign(bitmap.begin(), bitmap.end());
  if (tensors_.check && !copied_ && !bitmap.empty()) given_.assign(input_bits(0), input_bits(slices_));
  awaits_stream_ = results_may_be_early();
  if (!awaits_stream_) slot_->raise_here(stream_flag());
  for (std::uint64_t s = 0; s < slices_; ++s) {
    if (packs(s)) continue;
    slot_->raise_here(s);
    seen_[s] = true;
    ++published_;
  }
  set_groups();
  if (has_output() && layout_.tiled()) std::fill_n(slot_->output_bits(), slices_, 1);
}

/// The host sums the slices of its own lanes, and only sends the others. Who owns a slice depends on the
/// epoch.
void StagedOperation::choose_far_inputs(std::uint64_t epoch) {
  const engine::SliceLayout layout = layout_.at_epoch(epoch);
  for (std::uint64_t s = 0; s < slices_; ++s)
    slot_->far_inputs()[s] = layout.owner(s) - tensors_.first_own < tensors_.own ? 0 : 1;
}

void StagedOperation::say_what_is_known(std::span<const std::uint64_t> bitmap, bool all) {
  known_ = all || !bitmap.empty();
  for (std::uint64_t s = in_.first_slice(); s < in_.first_slice() + in_.slices(); ++s) {
    std::uint64_t* const bits = input_bits(s);
    if (copied_) {
      *bits = 1;
    } else if (known_) {
      const std::span words(bits, layout_.words_of(s));
      std::fill(words.begin(), words.end(), 0);
      if (all) {
        fill_ones(words, layout_.blocks_of(s));
      } else {
        engine::copy_bits(words, 0, bitmap, in_.first_block(s), layout_.blocks_of(s));
      }
    }
  }
}

/// The bits are those that the caller gave and those that the GPU has found.
void StagedOperation::note_hidden(std::uint64_t slice) {
  const std::uint64_t* const found = input_bits(slice);
  const std::uint64_t* const given = given_.data() + slice * layout_.words_per_slice();
  for (std::uint64_t w = 0; w < layout_.words_of(slice); ++w) {
    if ((found[w] & ~given[w]) == 0) continue;
    const std::uint64_t block =
        in_.first_block(slice) + w * 64 + static_cast<unsigned>(std::countr_zero(found[w] & ~given[w]));
    hidden_ = std::min(hidden_.value_or(block), block);
    return;
  }
}

void StagedOperation::note_hidden_on_host() {
  engine::InputBlocks blocks{.chunks = {}, .block_bytes = layout_.block_bytes()};
  for (std::uint32_t chunk = in_.first(); chunk < in_.end(); ++chunk)
    blocks.chunks.emplace_back(slot_->input() + in_.offset_of(chunk), in_.blocks_of(chunk).bytes);
  hidden_ = engine::first_hidden_block(blocks, given_);
}

void StagedOperation::set_groups() {
  for (std::uint64_t number = 0; number < groups(); ++number) {
    groups_[number].left =
        std::min(group_slices_, out_.slices() - number * group_slices_) + (awaits_stream_ ? 1 : 0);
    groups_[number].invalid = false;
  }
}

/// Packs the input for the GPUs of the host's ranks, and puts into nzcl's stream what they do with it. The
/// rest of what the call starts is for the case that they do not: it then begins in nzcl's stream as well,
/// because that is known only when all ranks have called.
void StagedOperation::start_for_peers() {
  gpu::Gpu& gpu = *slots_->gpu();
  bool packing = false;
  try {
    peers_->begin_use();
    gpu.pack(tensors_.stream, {.shape = input_shape(0),
                               .tensor = tensors_.input,
                               .packed = peers_->contribution(),
                               .bits = slot_->seen(input_bits(0)),
                               .known = known_,
                               .checked = !given_.empty(),
                               .in_places = true,
                               .second_bits = peers_->bits()});
    packing = true;
    gpu.raise(tensors_.stream, slot_->seen(slot_->flags() + peers_flag()), slot_->use());
    peers_->begin(slots_->stream());
  } catch (...) {
    if (!packing) slot_->raise_here(peers_flag());
    peers_->give_up();
    throw;
  }
}

/// What cannot be started counts as done, so that the memory can be used again.
void StagedOperation::start_packing() {
  gpu::Gpu& gpu = *slots_->gpu();
  std::uint64_t begun = 0;  // slices before it will be brought
  bool stream_told = false;
  try {
    if (peers_) start_for_peers();
    if (awaits_stream_) gpu.raise(tensors_.stream, slot_->seen(slot_->flags() + stream_flag()), slot_->use());
    stream_told = awaits_stream_;
    for (std::uint32_t chunk = in_.first(); chunk < in_.end(); ++chunk) {
      const std::uint64_t first = layout_.first_slice_of(chunk);
      const gpu::Shape shape = input_shape(chunk);
      if (shape.bytes > 0)
        gpu.pack(peers_ ? slots_->stream() : tensors_.stream,
                 {.shape = shape,
                  .tensor = tensors_.input + in_.offset_of(chunk),
                  .packed = slot_->seen(slot_->input()) + in_.offset_of(chunk),
                  .bits = slot_->seen(input_bits(first)),
                  .flags = slot_->seen(slot_->flags() + first),
                  .value = slot_->use(),
                  .known = copied_ || known_ || peers_,
                  .checked = !copied_ && !given_.empty() && !peers_,
                  .far = far_ ? slot_->far_input().base : nullptr,
                  .is_far = far_ ? slot_->seen(slot_->far_inputs()) : nullptr,
                  .go = peers_ ? peers_->declined_word() : nullptr,
                  .go_value = peers_ ? peers_->declined_value() : 0});
      begun = layout_.first_slice_of(chunk + 1);
    }
  } catch (...) {
    for (std::uint64_t s = begun; s < slices_; ++s) slot_->raise_here(s);
    if (!stream_told) slot_->raise_here(stream_flag());
    if (peers_) peers_->give_up();
    throw;
  }
}

/// The stream places each group when its result is here, and then says that the operation is over. The lanes
/// do not begin before, so nobody else writes the bits.
void StagedOperation::start_placing(gpu::Stream stream) {
  if (!has_output()) return;
  for (std::uint64_t number = 0; number < groups(); ++number) place(stream, number);
  placing_ = true;
  slots_->gpu()->raise(stream, done_.device, done_.value);
}

void StagedOperation::place(gpu::Stream stream, std::uint64_t number) {
  gpu::Gpu& gpu = *slots_->gpu();
  const bool whole = layout_.tiled();
  std::uint32_t* const ready = slot_->seen(slot_->ready(number));
  gpu.await(stream, ready, slot_->value_of_valid());
  const std::uint64_t first = out_.first_slice() + number * group_slices_;
  const std::uint64_t end = std::min(first + group_slices_, out_.first_slice() + out_.slices());
  for (std::uint32_t chunk = layout_.chunk_of(first); chunk <= layout_.chunk_of(end - 1); ++chunk) {
    const std::uint64_t begin = layout_.first_slice_of(chunk);
    const gpu::Shape shape = whole ? out_.whole_slices_of(chunk) : out_.blocks_of(chunk);
    const std::uint64_t from = std::max(first, begin) - begin, to = std::min(end - begin, shape.slices());
    if (from >= to) continue;
    gpu.place(stream,
              {.shape = shape,
               .first_slice = from,
               .slices = to - from,
               .tensor = tensors_.output + out_.offset_of(chunk),
               .staged = slot_->seen(slot_->output()) + out_.offset_of(chunk),
               .far = far_ ? slot_->far_output().base : nullptr,
               .is_far = far_ ? slot_->seen(slot_->far_outputs()) : nullptr,
               .bits = slot_->seen(slot_->output_bits() + begin * (whole ? 1 : layout_.words_per_slice())),
               .fill = !in_place(chunk),
               .go = ready,
               .go_value = slot_->value_of_valid()});
  }
}

void StagedOperation::one_less(std::uint64_t group) noexcept {
  if (groups_[group].left.fetch_sub(1, std::memory_order_acq_rel) == 1)
    slot_->set_ready(group, !groups_[group].invalid.load(std::memory_order_relaxed));
}

void StagedOperation::slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits, bool valid,
                                 bool far) noexcept {
  if (by_others_ || by_peers_ || !out_.has(slice)) return;
  if (far_) {
    slot_->far_outputs()[slice] = far ? 1 : 0;
    if (far) add_far_bytes(slice, bits);
  }
  std::copy(bits.begin(), bits.end(), slot_->output_bits() + slice * layout_.words_per_slice());
  const std::uint64_t number = (slice - out_.first_slice()) / group_slices_;
  if (!valid) groups_[number].invalid.store(true, std::memory_order_relaxed);
  one_less(number);
}

void StagedOperation::add_far_bytes(std::uint64_t slice, std::span<const std::uint64_t> bits) noexcept {
  far_bytes_.fetch_add(engine::SliceView(layout_, slice, bits).stream_bytes(), std::memory_order_relaxed);
}

/// Groups whose slices are over have gone on already, so the rest is of an operation that has failed.
std::optional<Failure> StagedOperation::place_rest(engine::Operation& operation, bool lost) {
  if (!lost && by_others_) place_whole(operation.union_bitmap());
  if (peers_) settle_peers(operation, lost);
  give_up_rest();
  return std::nullopt;
}

/// Places the result that other operations have exchanged; `bits` are its blocks.
void StagedOperation::place_whole(std::span<const std::uint64_t> bits) {
  for (std::uint64_t s = out_.first_slice(); s < out_.first_slice() + out_.slices() && !layout_.tiled();
       ++s) {
    const std::span words(slot_->output_bits() + s * layout_.words_per_slice(), layout_.words_of(s));
    std::fill(words.begin(), words.end(), 0);
    engine::copy_bits(words, 0, bits, out_.first_block(s), layout_.blocks_of(s));
  }
  for (std::uint64_t number = 0; number < groups(); ++number) {
    groups_[number].left = 0;
    slot_->set_ready(number, true);
  }
}

void StagedOperation::give_up_rest() {
  for (std::uint64_t number = 0; number < groups(); ++number) {
    if (groups_[number].left.exchange(0, std::memory_order_acq_rel) > 0) slot_->set_ready(number, false);
  }
}

bool StagedOperation::publish_by_peers(engine::Operation& operation) {
  const bool moved = peers_->step(is_packed_for_peers());
  if (peers_->state() == PeerSum::State::agreed && !by_peers_) contribute_nothing(operation);
  return moved;
}

/// The lanes exchange slices without blocks, by which the ranks find out whether they agree. The GPU places
/// no groups.
void StagedOperation::contribute_nothing(engine::Operation& operation) {
  by_peers_ = true;
  give_up_rest();
  const std::vector<std::uint64_t> none(layout_.words_per_slice());
  for (std::uint64_t s = 0; s < slices_; ++s) {
    if (seen_[s]) continue;
    seen_[s] = true;
    ++published_;
    slot_->raise_here(s);
    if (!given_.empty()) note_hidden(s);
    operation.slice_staged(s, std::span(none).first(layout_.words_of(s)), true);
  }
}

/// Tells the operation what its lanes do not know; or, if it is lost, lets the stream go on. What is not
/// packed then will not be.
void StagedOperation::settle_peers(engine::Operation& operation, bool lost) {
  if (by_peers_ && !lost) {
    for (std::uint64_t s = 0; s < slices_; ++s) {
      const std::span words(slot_->output_bits() + s * layout_.words_per_slice(), layout_.words_of(s));
      std::copy(words.begin(), words.end(), operation.union_bits(s).begin());
      operation.union_known(s);
      operation.add(operation.input_blocks, count_bits({input_bits(s), layout_.words_of(s)}));
    }
  }
  if (peers_->state() == PeerSum::State::declined) return;
  peers_->give_up();
  for (std::uint64_t s = 0; s < slices_; ++s) {
    if (!seen_[s]) slot_->raise_here(s);
  }
}

bool StagedOperation::publish(engine::Operation& operation) {
  if (peers_ && peers_->state() != PeerSum::State::declined) return publish_by_peers(operation);
  const std::uint64_t before = published_;
  for (std::uint64_t s = 0; s < slices_ && published_ < slices_; ++s) {
    if (seen_[s] || !slot_->is_raised(s)) continue;
    seen_[s] = true;
    ++published_;
    if (!given_.empty() && !copied_) note_hidden(s);
    if (!given_.empty() && copied_ && published_ == slices_) note_hidden_on_host();
    if (by_others_) continue;
    if (far_ && slot_->far_inputs()[s] != 0) add_far_bytes(s, {input_bits(s), layout_.words_of(s)});
    const bool by_gpu = !copied_ && (!known_ || !given_.empty());
    const std::span bits(input_bits(s), layout_.words_of(s));
    operation.slice_staged(s, by_gpu ? bits : std::span<std::uint64_t>(),
                           layout_.tiled() || !copied_ || known_);
  }
  if (!awaits_stream_ || !slot_->is_raised(stream_flag())) return published_ > before;
  awaits_stream_ = false;
  for (std::uint64_t number = 0; number < groups(); ++number) one_less(number);
  return true;
}

/// In a graph, it is the stream that says when all is placed, and the memory is used again.
void StagedOperation::release() {
  if (peers_) peers_->release(is_packed_for_peers());
  if (!tensors_.by_graph || !placing_) done_.raise_here();
  if (!tensors_.by_graph) slots_->give_back(std::move(slot_));
}

void StagedOperation::enqueue_wait(void* stream) {
  if (!tensors_.by_graph) return slots_->await(stream, done_);
  gpu::Gpu& gpu = *slots_->gpu();
  if (!gpu.captures(stream))
    throw Error(ErrorCode::invalid_usage,
                "enqueue_wait: the call was captured into a graph, and this stream is not");
  if (has_output() && !placing_) return start_placing(stream);
  gpu.await(stream, done_.device, done_.value);
}

}  // namespace nzcl::comm

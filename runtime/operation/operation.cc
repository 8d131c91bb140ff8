#include "runtime/operation/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"
#include "runtime/base/json_text.h"
#include "runtime/kernels/scan.h"
#include "runtime/operation/index_memory.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {
namespace {

void write_packed_indices(const IndexBuffer& to, std::span<const std::int64_t> indices) {
  const auto write = [&](auto* at) {
    for (const std::int64_t index : indices)
      *at++ = static_cast<std::remove_reference_t<decltype(*at)>>(index);
  };
  switch (to.type()) {
    case IndexType::int32:
      return write(static_cast<std::int32_t*>(to.data()));
    case IndexType::uint32:
      return write(static_cast<std::uint32_t*>(to.data()));
    case IndexType::int64:
      return write(static_cast<std::int64_t*>(to.data()));
  }
}

}  // namespace

Operation::Operation(const SliceLayout& slice_layout, const wire::OperationRecord& operation_record,
                     InputView in, OutputView out, int lanes)
    : layout(slice_layout),
      record(operation_record),
      input(std::move(in)),
      output(std::move(out)),
      words_(layout.tiled() ? 0 : 2 * layout.slices() * layout.words_per_slice()),
      scan_(layout.slices()),
      parts_left_(layout.slices()) {
  if (output.packed && output.grow) overflow_ = std::make_unique<PackedOverflow>();
  if (layout.tiled()) {
    tile_input_ = std::make_unique<TileInput>(input.base, input.region);
    if (output.packed) {
      tile_output_ = std::make_unique<TileOutput>(layout, output.base, output.capacity, output.indices,
                                                  overflow_.get(), lanes, output.spare);
    } else {
      tile_output_ = std::make_unique<TileOutput>(layout, output.base, in_place(0));
    }
  } else if (output.packed) {
    positions_ = PackedPositions(layout.slices(), lanes);
  }
}

void Operation::ring_lanes(LaneBells* bells, int lanes) {
  bells_ = bells;
  lanes_ = static_cast<std::uint32_t>(lanes);
  positions_.ring(bells);
  if (tile_output_) tile_output_->ring(bells);
}

/// Every slice belongs to one lane of each member.
void Operation::ring_lane_of(std::uint64_t slice) noexcept {
  if (bells_ != nullptr) bells_->ring(static_cast<int>(layout.owner(slice) % lanes_));
}

void Operation::set_rank(int rank, int workers) {
  rank_ = rank;
  workers_ = workers;
  if (record.collective == wire::Collective::allreduce) return;
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {  // what it does not contribute is not read
    if (!contributes(s)) scan_[s].store(kScanned, std::memory_order_relaxed);
  }
}

verbs::RemoteMemory OutputView::remote(verbs::Level level) const {
  const FarMemory at = far.region != nullptr ? far : FarMemory{base, region};
  return at.region->remote_at(level).offset(static_cast<std::uint64_t>(at.base - at.region->bytes().data()));
}

wire::OperationRecord Operation::record_of(std::uint64_t slice, verbs::Level level) const {
  wire::OperationRecord r = record;
  if (level == verbs::Level::within && output.region != nullptr) {
    const verbs::RemoteMemory remote = output.remote(level);
    r.output_address = remote.address;
    r.output_key = remote.key;
  }
  if (wire::is_chunked(r.collective)) r.chunk_count = layout.chunk_elements(layout.chunk_of(slice));
  r.output_address += output_offset(slice);
  return r;
}

std::uint64_t Operation::first_block(Side side, std::uint64_t slice) const {
  const bool all_chunks = record.collective == (side == Side::input ? wire::Collective::reduce_scatter
                                                                    : wire::Collective::allgather);
  return (all_chunks ? layout.blocks_before(layout.chunk_of(slice)) : 0) + layout.first_block(slice);
}

std::uint64_t Operation::own_chunk_blocks() const {
  const auto chunk = static_cast<std::uint32_t>(rank_);
  return layout.blocks_before(chunk + 1) - layout.blocks_before(chunk);
}

std::uint64_t Operation::contributed_blocks() const {
  return record.collective == wire::Collective::allgather ? own_chunk_blocks() : layout.blocks();
}

std::uint64_t Operation::result_blocks() const {
  return record.collective == wire::Collective::reduce_scatter ? own_chunk_blocks() : layout.blocks();
}
void Operation::set_input_stream(ElementStream stream) { tile_input_->set_stream(std::move(stream)); }
void Operation::set_input_source(std::shared_ptr<TileSource> source) {
  tile_input_->set_source(std::move(source));
}

void Operation::set_rest() {
  set_no_input();
  has_rest_ = true;
  parts_left_.fetch_add(1, std::memory_order_relaxed);
}

void Operation::rest_done(Rest rest) {
  union_blocks.fetch_add(rest.blocks, std::memory_order_relaxed);
  rest_ = std::move(rest);
  part_done();
}

void Operation::set_input_bitmap(std::span<const std::uint64_t> bits) {
  if (tile_input_) return tile_input_->set_bitmap(bits);
  if (input.sparse) blocks_before_.resize(layout.slices());
  std::uint64_t total = 0;
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {
    const auto words = bits_of(Side::input, s);
    if (contributes(s)) copy_bits(words, 0, bits, first_block(Side::input, s), layout.blocks_of(s));
    if (!input_is_staged_) scan_[s].store(kScanned, std::memory_order_relaxed);
    if (input.sparse) blocks_before_[s] = total;
    total += count_bits(words);
  }
  input_blocks = total;
}

void Operation::set_all_input() {
  if (tile_input_) return tile_input_->set_all();
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {
    scan_[s].store(kScanned, std::memory_order_relaxed);
    if (!contributes(s)) continue;
    fill_ones(bits_of(Side::input, s), layout.blocks_of(s));
    input_blocks += layout.blocks_of(s);
  }
}

void Operation::set_no_input() {
  if (tile_input_) return tile_input_->set_none();
  for (std::uint64_t s = 0; s < layout.slices(); ++s) scan_[s].store(kScanned, std::memory_order_relaxed);
}

bool Operation::ensure_scanned(std::uint64_t slice) {
  if (layout.tiled() && !input_is_staged_) return ensure_made(slice);  // tiles are scanned when they are sent
  if (try_scan(slice)) return true;
  std::uint8_t state = kScanning;
  scan_[slice].compare_exchange_strong(state, kAwaited, std::memory_order_acquire);
  return state == kScanned;
}

/// Returns false if another thread is scanning the slice, or it has not been staged.
bool Operation::try_scan(std::uint64_t slice) {
  std::uint8_t state = scan_[slice].load(std::memory_order_acquire);
  if (state == kScanned) return true;
  if (state != kUnscanned) return false;
  if (!layout.express()) {  // otherwise no other thread scans it
    if (!scan_[slice].compare_exchange_strong(state, kScanning, std::memory_order_acquire))
      return state == kScanned;
  }
  scan_slice(slice);
  return true;
}

/// Says that the lane waits, and looks once more. Both are sequentially consistent, like the publication of
/// what was made and the look for lanes that wait in ring_for_made(): either the slice is seen here, or the
/// lane is rung there.
bool Operation::ensure_made(std::uint64_t slice) {
  if (tile_input_->ready(layout, slice)) return true;
  if (scan_[slice].load(std::memory_order_relaxed) == kAwaited) return false;
  scan_[slice].store(kAwaited, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return tile_input_->ready(layout, slice);
}

void Operation::ring_for_made() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the pair of the one in ensure_made()
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {
    std::uint8_t awaited = kAwaited;
    if (scan_[s].load(std::memory_order_relaxed) != kAwaited || !tile_input_->ready(layout, s)) continue;
    if (scan_[s].compare_exchange_strong(awaited, kUnscanned, std::memory_order_relaxed)) ring_lane_of(s);
  }
}

void Operation::scan_slice(std::uint64_t slice) {
  const trace::Span span(trace::What::scan, epoch, slice);
  const auto words = bits_of(Side::input, slice);
  scan_blocks(input.base + input_offset(slice) + layout.offset_of(slice, 0),
              layout.bytes_of_blocks(slice, 0, layout.blocks_of(slice)), layout.block_bytes(), words,
              scan_streams);
  add(input_blocks, count_bits(words));
  if (layout.express()) return scan_[slice].store(kScanned, std::memory_order_release);  // nobody waits
  if (scan_[slice].exchange(kScanned, std::memory_order_acq_rel) == kAwaited) ring_lane_of(slice);
}

void Operation::scan_ahead(std::uint64_t slice) {
  if (tile_input_) {
    tile_input_->make(layout, slice);
    ring_for_made();
  } else {
    try_scan(slice);
  }
}

std::span<std::uint64_t> Operation::bits_of(Side side, std::uint64_t slice) {
  const std::uint64_t slices_before = (side == Side::result ? layout.slices() : 0) + slice;
  return {words_.data() + slices_before * layout.words_per_slice(), layout.words_of(slice)};
}

RunWalk Operation::input_walk(std::uint64_t slice) {
  const SliceView view = input_slice(slice);
  if (input.packed_slices)
    return {
        view,
        {.kind = BlockOrder::Kind::stream, .first = layout.first_block(slice), .base = input_offset(slice)}};
  if (!input.sparse) return {view, {.base = input_offset(slice)}};
  if (input.order.empty()) return {view, {.kind = BlockOrder::Kind::stream, .first = blocks_before_[slice]}};
  return {view,
          {.kind = BlockOrder::Kind::indexed, .first = blocks_before_[slice], .order = input.order.data()}};
}

void Operation::union_known(std::uint64_t slice, std::uint64_t blocks) {
  add(union_blocks, blocks);
  if (output.packed && !layout.tiled()) positions_.note(slice, blocks);
}

void Operation::slice_refused(std::uint64_t slice, const wire::Refusal& why) {
  if (!layout.tiled()) union_known(slice);  // its bitmap is all zero
  const std::scoped_lock lock(failure_mutex_);
  if (failure_) return;
  set_failure(
      {static_cast<ErrorCode>(why.code()), fmt::format("operation {}: rank {} refused its request: {}", epoch,
                                                       why.rank(), valid_utf8(why.text()))});
}

std::optional<RunWalk> Operation::output_walk(std::uint64_t slice, int lane) {
  const SliceView view = union_slice(slice);
  if (!output.packed) return RunWalk(view, {.base = output_offset(slice)});
  const auto before = positions_.before(slice, lane);
  if (!before) return std::nullopt;
  return RunWalk(view, {.kind = BlockOrder::Kind::stream, .first = *before});
}

std::uint64_t Operation::writable(std::uint64_t offset, std::uint64_t bytes) const {
  if (!output.packed) return bytes;
  const std::uint64_t end = output.capacity * layout.block_bytes();
  return offset < end ? std::min(bytes, end - offset) : 0;
}

void Operation::keep_overflow(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (overflow_) overflow_->write(offset - output.capacity * layout.block_bytes(), bytes);
}

void Operation::zero_absent(std::uint64_t slice) {
  if (output.packed || output.absent_stay || in_place(slice)) return;
  const trace::Span span(trace::What::zero, epoch, slice);
  const SliceView view = union_slice(slice);
  std::byte* const base = output.base + output_offset(slice);
  for (std::uint64_t b = view.next_absent(0), next = b; b < view.blocks(); b = next) {
    const std::uint64_t end = view.next(b);
    next = view.next_absent(end);
    if (next < view.blocks()) prefetch_to_write(base + view.tensor_offset(next), view.bytes(next, 1));
    zero_cold(base + view.tensor_offset(b), view.bytes(b, end - b));
  }
}

void Operation::part_done() {
  if (layout.slices() == 1 && !has_rest_) {  // one lane counts all parts, see add()
    const std::uint64_t left = parts_left_.load(std::memory_order_relaxed) - 1;
    parts_left_.store(left, std::memory_order_relaxed);
    if (left == 0) finish();
    return;
  }
  if (parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) finish();
}

void Operation::finish() {
  trace::record(trace::What::operation, begun_ns, epoch, 0);
  const std::uint64_t blocks = union_blocks.load(std::memory_order_relaxed);
  if (output.packed && blocks > output.capacity && !output.grow) {
    const std::scoped_lock lock(failure_mutex_);
    if (!failure_) {
      set_failure({ErrorCode::invalid_argument,
                   fmt::format("operation {}: the packed result has {} blocks, packed_capacity is {}", epoch,
                               blocks, output.capacity)});
    }
  }
  if (has_rest_) {  // what the ranks tell each other about the operation itself counts more
    const std::scoped_lock lock(failure_mutex_);
    if (rest_.failure && !failure_) set_failure(*rest_.failure);
  }
  if (staged) return exchanged_.store(true, std::memory_order_release);
  set_finished();  // last, because the operation may be deleted from here on
}

void Operation::await_staging() {
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {
    if (!staged->brings(s)) continue;
    scan_[s].store(kScanning, std::memory_order_relaxed);
    input_is_staged_ = true;
  }
}

void Operation::slice_staged(std::uint64_t slice, std::span<const std::uint64_t> bits, bool scanned) {
  if (!bits.empty()) {
    const auto known = bits_of(Side::input, slice);
    input_blocks.fetch_add(count_bits(bits) - count_bits(known), std::memory_order_relaxed);
    std::copy(bits.begin(), bits.end(), known.begin());
  }
  const std::uint8_t state = scanned ? kScanned : kUnscanned;
  if (scan_[slice].exchange(state, std::memory_order_acq_rel) == kAwaited) ring_lane_of(slice);
}

void Operation::refuse_staged(ErrorCode code, std::string_view why) {
  if (tile_input_) tile_input_->set_none();
  if (input.sparse) blocks_before_.resize(layout.slices());
  refusal = std::make_unique<wire::Refusal>(static_cast<std::uint16_t>(rank_),
                                            static_cast<std::uint16_t>(code), why);
}

bool Operation::ensure_all_staged() {
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {
    if (!ensure_scanned(s)) return false;
  }
  return true;
}

void Operation::stage_result(std::uint64_t slice, bool far) noexcept {
  const bool valid = !failed_.load(std::memory_order_acquire);
  staged->slice_over(slice, layout.tiled() ? std::span<std::uint64_t>() : union_bits(slice), valid, far);
}

void Operation::staging_done(const std::optional<Failure>& failure) {
  if (failure) {
    const std::scoped_lock lock(failure_mutex_);
    if (!failure_) set_failure(*failure);
  }
  set_finished();  // last, because the operation may be deleted from here on
}

void Operation::set_finished() {
  CompletionBell* const its_bell = bell;
  if (its_bell == nullptr) return finished_.store(true, std::memory_order_release);
  finished_.store(true, std::memory_order_seq_cst);
  its_bell->finished();
}

void Operation::fail(const Failure& failure) {
  wait_for_scans();
  {
    const std::scoped_lock lock(failure_mutex_);
    if (finished() || exchanged()) return;
    if (!failure_) set_failure(failure);  // a rank may have refused a part of it before
  }
  if (staged) return exchanged_.store(true, std::memory_order_release);
  set_finished();  // last, because the operation may be deleted from here on
}

/// The input goes back to the caller. So no scan may start any more, and those that run must have ended. What
/// makes tiles is no scan: a source belongs to others, and all else is read by the lanes.
void Operation::wait_for_scans() noexcept {
  if (layout.tiled() || input_is_staged_) return;
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {
    std::uint8_t state = kUnscanned;
    while (!scan_[s].compare_exchange_weak(state, kScanned, std::memory_order_acq_rel) && state != kScanned) {
      if (state != kUnscanned) std::this_thread::yield();
      state = kUnscanned;
    }
  }
}

void Operation::release_regions() {
  if (released_.load(std::memory_order_relaxed)) return;
  if (!released_.exchange(true, std::memory_order_relaxed)) regions = {};
}

/// Precondition: `failure_mutex_` is locked.
void Operation::set_failure(Failure failure) {
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

std::optional<Failure> Operation::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const std::scoped_lock lock(failure_mutex_);
  return failure_;
}

void Operation::verify_input() {
  if (!input_check) return;
  std::call_once(verified_once_, [this] {
    if (failure()) return;
    const auto block = changed_input_block();
    if (!block) return;
    const std::scoped_lock lock(failure_mutex_);
    set_failure({ErrorCode::invalid_usage,
                 fmt::format("operation {}: block {} of {} changed while the operation used it, so ranks may "
                             "hold wrong results; write to a buffer only after wait() has returned",
                             epoch, *block, input.sparse ? "values" : "the input")});
  });
}

/// Returns the first block of the input that has changed where no result may lie.
std::optional<std::uint64_t> Operation::changed_input_block() {
  if (record.collective == wire::Collective::allgather)
    return input_check->first_change({});  // where the chunk belongs in the output, its copy is itself
  if (record.collective != wire::Collective::reduce_scatter)
    return input_check->first_change(in_place(0) ? union_bitmap() : std::span<const std::uint64_t>());
  const auto own = static_cast<std::uint32_t>(rank_);
  const std::byte* const own_chunk = input.base + layout.chunk_begin(own) * layout.element_bytes();
  if (output.base != own_chunk) return input_check->first_change({});
  return input_check->first_change(union_bitmap(), layout.blocks_before(own));
}

void Operation::complete_packed() {
  if (rest_.packed && !failure()) return rest_.packed->complete_packed();
  if (!output.packed || failure()) return;
  std::call_once(packed_once_, [this] {
    const std::uint64_t blocks = union_blocks.load(std::memory_order_relaxed);
    if (blocks > output.capacity) {
      grow_packed(blocks);
    } else if (!layout.tiled() && output.indices.data() != nullptr) {  // tiles have written theirs
      write_packed_indices(output.indices, packed_indices());
    }
  });
}

void Operation::grow_packed(std::uint64_t blocks) {
  // Most callers grow the very memory that holds the first part of the result, which may free it. So the
  // result is whole in this object's memory before they are asked.
  overflow_->keep_output({output.base, output.capacity * layout.block_bytes()});
  const std::span<const std::int64_t> indices = packed_indices();
  const PackedMemory memory = output.grow(blocks);
  if (memory.values == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("operation {}: packed_grow gave no memory for {} blocks", epoch, blocks));
  }
  if (const auto wrong = wrong_with_index_memory(memory.indices, layout.blocks())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("operation {}: the indices that packed_grow gave memory for: {}", epoch, *wrong));
  }
  overflow_->move_to(static_cast<std::byte*>(memory.values));
  if (memory.indices.data() != nullptr) write_packed_indices(memory.indices, indices);
}

std::span<const std::uint64_t> Operation::union_bitmap() {
  if (has_rest_) return rest_.packed ? rest_.packed->union_bitmap() : rest_.bits;
  if (tile_output_) {
    if (!output.packed) return tile_output_->union_bitmap();
    std::call_once(bitmap_once_, [this] {
      bitmap_.assign(words_for(layout.blocks()), 0);
      for (const std::int64_t block : packed_indices())
        set_bit(std::span(bitmap_), static_cast<std::uint64_t>(block));
    });
    return bitmap_;
  }
  // If slices have whole words of bits, the bitmaps of all slices together are that of the tensor.
  const bool plain = record.collective == wire::Collective::allreduce;
  if (plain && (layout.slices() == 1 || layout.slice_blocks() % 64 == 0)) {
    return {bits_of(Side::result, 0).data(), words_for(layout.blocks())};
  }
  std::call_once(bitmap_once_, [this] {
    bitmap_.resize(words_for(result_blocks()));
    for (std::uint64_t s = 0; s < layout.slices(); ++s) {
      if (!receives(s)) continue;
      copy_bits(bitmap_, first_block(Side::result, s), union_bits(s), 0, layout.blocks_of(s));
    }
  });
  return bitmap_;
}

/// The caller may have overwritten the indices where they were written. And a peer that changes what it has
/// sent while it is read can leave gaps between them.
void Operation::check_written_indices() const {
  const bool ascend = std::ranges::is_sorted(indices_, std::less_equal());
  const bool fit = indices_.empty() ||
                   (indices_.front() >= 0 && static_cast<std::uint64_t>(indices_.back()) < layout.blocks());
  if (ascend && fit) return;
  if (output.indices.data() == nullptr) {
    throw Error(ErrorCode::transport,
                fmt::format("operation {}: a rank has changed a result while it was read", epoch));
  }
  throw Error(
      ErrorCode::invalid_usage,
      fmt::format("operation {}: the memory for indices has been changed since the result was written "
                  "there: ask for the union before",
                  epoch));
}

std::span<const std::int64_t> Operation::packed_indices() {
  if (rest_.packed) return rest_.packed->packed_indices();
  if (!output.packed) return {};
  std::call_once(indices_once_, [this] {
    if (tile_output_) {
      indices_ = tile_output_->packed_indices();
      check_written_indices();
      return;
    }
    const auto bits = union_bitmap();
    indices_.reserve(union_blocks.load(std::memory_order_relaxed));
    for (auto b = next_set(bits, 0, layout.blocks()); b < layout.blocks();
         b = next_set(bits, b + 1, layout.blocks())) {
      indices_.push_back(static_cast<std::int64_t>(b));
    }
  });
  return indices_;
}

}  // namespace nzcl::engine

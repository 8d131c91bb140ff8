#include "runtime/switch/operation_tensor.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

#include "runtime/base/bitmap.h"
#include "runtime/base/siphash.h"
#include "runtime/kernels/fixed_point.h"
#include "runtime/kernels/narrow.h"
#include "runtime/switch/piece_size.h"

namespace nzcl::engine::slot_pool {
namespace {

std::uint32_t shape_of(const Operation& operation, std::uint32_t blocks_per_piece) {
  const wire::OperationRecord& r = operation.record;
  const std::uint64_t words[] = {operation.epoch, r.count,    r.block_elems,      r.type,          r.op,
                                 r.tag,           r.checksum, r.density().code(), blocks_per_piece};
  SipHash hash(SipKey{});  // a digest; that nobody forges it is what the packet's checksum is for
  hash.add(std::as_bytes(std::span(words)));
  return static_cast<std::uint32_t>(hash.finish());
}

}  // namespace

bool can_sum(const wire::OperationRecord& r) {
  if (r.collective != wire::Collective::allreduce || r.packed_result != 0 ||
      r.value_rule != wire::ValueRule::as_is)
    return false;
  const auto op = static_cast<ReduceOp>(r.op);
  switch (static_cast<DataType>(r.type)) {
    case DataType::float32:
    case DataType::float16:
    case DataType::bfloat16:
      return op == ReduceOp::sum || op == ReduceOp::avg;
    case DataType::int32:
      return op == ReduceOp::sum;
    case DataType::float64:
    case DataType::int64:
    case DataType::uint8:
      return false;
  }
  return false;
}

OperationTensor::OperationTensor(const Pool& pool)
    : piece_elements_(pool.piece_elements),
      whole_(pool.zeros),
      workers_(pool.workers),
      headroom_(std::bit_width(static_cast<unsigned>(pool.workers - 1))),
      positions_(pool.slots),
      floats_(pool.piece_elements) {}

void OperationTensor::bind(Operation& operation, std::uint32_t owner) {
  const SliceLayout& layout = operation.layout;
  operation_ = &operation;
  owner_ = owner;
  type_ = operation.type();
  element_bytes_ = static_cast<std::uint32_t>(layout.element_bytes());
  const std::uint64_t elements = layout.block_elements();
  parts_ = static_cast<std::uint32_t>((elements + piece_elements_ - 1) / piece_elements_);
  part_elements_ = static_cast<std::uint32_t>((elements + parts_ - 1) / parts_);
  const auto most =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(piece_elements_ / elements, 1, kMostBlocks));
  const auto bytes = elements * sizeof(std::int32_t);
  blocks_per_piece_ = whole_ ? blocks_of_piece(most, bytes, operation.record.density(), workers_) : most;
  shape_ = shape_of(operation, blocks_per_piece_);
  owned_ = layout.owned(owner);
  pieces_per_slice_ = pieces_in(layout.slice_blocks());
  const std::uint64_t last = layout.blocks_of(layout.owned_slice(owner, owned_ - 1));
  pieces_ = static_cast<std::uint32_t>((owned_ - 1) * pieces_per_slice_ + pieces_in(last));
  std::ranges::fill(positions_, 0);
  slices_done_ = 0;
  count_behind();
}

std::uint64_t OperationTensor::pieces_in(std::uint64_t blocks) const {
  return parts_ > 1 ? blocks * parts_ : (blocks + blocks_per_piece_ - 1) / blocks_per_piece_;
}

OperationTensor::Place OperationTensor::locate(std::uint32_t piece) const {
  const SliceLayout& layout = operation_->layout;
  const std::uint64_t k = piece / pieces_per_slice_, within = piece % pieces_per_slice_;
  Place p;
  p.slice = layout.owned_slice(owner_, k);
  if (parts_ == 1) {
    p.first_block = within * blocks_per_piece_;
    p.blocks = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(blocks_per_piece_, layout.blocks_of(p.slice) - p.first_block));
    p.offset = layout.offset_of(p.slice, p.first_block);
    p.elements =
        static_cast<std::uint32_t>(layout.bytes_of_blocks(p.slice, p.first_block, p.blocks) / element_bytes_);
    return p;
  }
  p.first_block = within / parts_;
  p.blocks = 1;
  const std::uint64_t begin = within % parts_ * std::uint64_t{part_elements_};
  const std::uint64_t in_block = layout.bytes_of_blocks(p.slice, p.first_block, 1) / element_bytes_;
  p.offset = layout.offset_of(p.slice, p.first_block) + begin * element_bytes_;
  // The tensor's last block may be so short that it ends before some of its parts.
  p.elements = static_cast<std::uint32_t>(
      begin < in_block ? std::min<std::uint64_t>(part_elements_, in_block - begin) : 0);
  return p;
}

bool OperationTensor::holds(const Place& place) const {
  const auto bits = operation_->input_slice(place.slice).bits();
  const std::uint64_t end = place.first_block + place.blocks;
  return place.elements > 0 && next_set(bits, place.first_block, end) < end;
}

std::uint32_t OperationTensor::block_elements(const Place& place, std::uint32_t i) const {
  if (parts_ > 1) return place.elements;
  const auto whole = static_cast<std::uint32_t>(operation_->layout.block_elements());
  return std::min(whole, place.elements - i * whole);
}

std::uint32_t OperationTensor::block_values(const Place& place) const {
  if (parts_ > 1) return place.elements;
  return std::min(static_cast<std::uint32_t>(operation_->layout.block_elements()), place.elements);
}

std::uint32_t OperationTensor::values(std::uint32_t piece, std::uint64_t blocks) const {
  const Place place = locate(piece);
  if (static_cast<std::uint32_t>(std::bit_width(blocks)) > place.blocks) return 0;
  if (whole_) return place.elements;
  return static_cast<std::uint32_t>(std::popcount(blocks)) * block_values(place);
}

bool OperationTensor::look_ahead(std::uint32_t from, std::uint32_t step, Ahead& ahead) {
  ahead = {};
  std::uint64_t scanned = ~std::uint64_t{0};
  for (std::uint64_t p = from; p < pieces_; p += step) {
    const Place place = locate(static_cast<std::uint32_t>(p));
    if (place.slice != scanned && !operation_->ensure_scanned(place.slice)) return false;
    scanned = place.slice;
    if (!holds(place)) continue;
    ahead = {static_cast<std::uint32_t>(p), exponent_of(place)};
    break;
  }
  return true;
}

std::uint8_t OperationTensor::exponent_of(const Place& place) {
  if (type_ == DataType::int32) return 0;
  const auto bits = operation_->input_slice(place.slice).bits();
  const std::byte* at = operation_->input.base + place.offset;
  std::uint8_t largest = 0;
  for (std::uint32_t i = 0; i < place.blocks; ++i) {
    const std::uint32_t n = block_elements(place, i);
    if (test_bit(bits, place.first_block + i)) {
      const auto values = as_floats(at, n);
      largest = std::max(largest, largest_exponent(values.data(), n));
    }
    at += std::size_t{n} * element_bytes_;
  }
  return largest;
}

std::span<const float> OperationTensor::as_floats(const std::byte* from, std::uint32_t count) {
  if (type_ == DataType::float32) return {reinterpret_cast<const float*>(from), count};
  widen(type_, reinterpret_cast<const std::uint16_t*>(from), count, floats_.data());
  return {floats_.data(), count};
}

int OperationTensor::shift_of(std::uint8_t exponent) const {
  return 156 - headroom_ - std::max<int>(exponent, 1);  // subnormal values have the exponent of the smallest
}

bool OperationTensor::to_integers(const std::byte* from, std::uint32_t count, std::uint8_t exponent,
                                  std::int32_t* to) {
  if (type_ == DataType::int32) {
    std::memcpy(to, from, std::size_t{count} * sizeof *to);
    return false;
  }
  if (exponent == kNotFinite) {
    std::fill_n(to, count, 0);
    return false;
  }
  const std::int32_t limit = std::int32_t{1} << (30 - headroom_);
  return to_fixed(as_floats(from, count).data(), count, shift_of(exponent), limit, to);
}

void OperationTensor::from_integers(const std::int32_t* from, std::uint32_t count, std::uint8_t exponent,
                                    std::byte* to) {
  if (type_ == DataType::int32) {
    std::memcpy(to, from, std::size_t{count} * sizeof *from);
    return;
  }
  float* const floats = type_ == DataType::float32 ? reinterpret_cast<float*>(to) : floats_.data();
  if (exponent == kNotFinite) {
    std::fill_n(floats, count, std::numeric_limits<float>::quiet_NaN());
  } else {
    const bool average = operation_->reduce_op() == ReduceOp::avg;
    from_fixed(from, count, shift_of(exponent), average ? static_cast<float>(workers_) : 1.0f, floats);
  }
  if (type_ != DataType::float32) narrow(type_, floats, count, reinterpret_cast<std::uint16_t*>(to));
}

Filled OperationTensor::fill(std::uint32_t piece, std::uint8_t exponent, std::span<std::int32_t> to) {
  const Place place = locate(piece);
  const auto bits = operation_->input_slice(place.slice).bits();
  const std::byte* at = operation_->input.base + place.offset;
  const std::uint32_t in_block = block_values(place);
  Filled filled;
  for (std::uint32_t i = 0; i < place.blocks; ++i) {
    const std::uint32_t n = block_elements(place, i), room = whole_ ? n : in_block;
    const bool held = test_bit(bits, place.first_block + i);
    if (held) {
      filled.clamped |= to_integers(at, n, exponent, &to[filled.values]);
      filled.blocks |= std::uint64_t{1} << i;
    }
    at += std::size_t{n} * element_bytes_;
    if (!held && !whole_) continue;
    const std::uint32_t written = held ? n : 0;
    std::fill_n(to.begin() + filled.values + written, room - written, 0);
    filled.values += room;
  }
  operation_->bytes_sent.fetch_add(filled.values * sizeof(std::int32_t), std::memory_order_relaxed);
  return filled;
}

void OperationTensor::store(std::uint32_t piece, std::uint8_t exponent, std::uint64_t blocks,
                            std::span<const std::int32_t> sums) {
  const Place place = locate(piece);
  const auto bits = operation_->union_bits(place.slice);
  std::byte* at = operation_->output.base + place.offset;
  const std::uint32_t in_block = block_values(place);
  const std::int32_t* from = sums.data();
  for (std::uint32_t i = 0; i < place.blocks; ++i) {
    const std::uint32_t n = block_elements(place, i);
    const bool there = blocks >> i & 1;
    if (there) {
      from_integers(from, n, exponent, at);
      set_bit(bits, place.first_block + i);
    }
    if (there || whole_) from += whole_ ? n : in_block;
    at += std::size_t{n} * element_bytes_;
  }
  operation_->bytes_received.fetch_add(sums.size_bytes(), std::memory_order_relaxed);
}

std::uint32_t OperationTensor::end_of_slice(std::uint64_t k) const {
  // The last one ends with the tensor, also if that has no pieces.
  return k + 1 == owned_ ? pieces_ + 1 : static_cast<std::uint32_t>((k + 1) * pieces_per_slice_);
}

void OperationTensor::count_behind() {
  const std::uint32_t end = end_of_slice(slices_done_);
  behind_ = static_cast<std::uint32_t>(
      std::ranges::count_if(positions_, [end](std::uint32_t position) { return position < end; }));
}

void OperationTensor::advanced(std::uint32_t slot, std::uint32_t position) {
  const std::uint32_t before = positions_[slot], end = end_of_slice(slices_done_);
  positions_[slot] = position == pieces_ ? pieces_ + 1 : position;
  if (before >= end || positions_[slot] < end) return;
  --behind_;
  while (behind_ == 0) {
    Operation& operation = *operation_;
    const std::uint64_t slice = operation.layout.owned_slice(owner_, slices_done_);
    operation.union_known(slice);
    operation.zero_absent(slice);
    const bool last = ++slices_done_ == owned_;
    if (!last) count_behind();
    operation.slice_done(slice);  // the operation may be gone after the last of these
    if (last) return;
  }
}

}  // namespace nzcl::engine::slot_pool

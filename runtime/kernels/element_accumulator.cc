#include "runtime/kernels/element_accumulator.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <new>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"
#include "runtime/kernels/offsets.h"

namespace nzcl {
namespace {

/// A rank that holds at most this many elements is counted element by element. For a rank with more, passing
/// over all words of the bitmaps is faster.
constexpr std::size_t kFew = 512;
/// To find what is in two ascending lists, they are walked side by side. If one is longer than the other by
/// more than this factor, a binary search in it for each element of the shorter one is faster.
constexpr std::size_t kLookedFor = 16;

}  // namespace

void ElementAccumulator::FreeLanes::operator()(std::byte* lanes) const { std::free(lanes); }

ElementAccumulator::ElementAccumulator(std::size_t most_elements)
    : most_words_(words_for(most_elements)),
      lanes_(static_cast<std::byte*>(std::aligned_alloc(
          kCacheLine, std::max<std::size_t>(most_words_, 1) * 64 * sizeof(std::uint64_t)))),
      any_(new std::uint64_t[most_words_]),
      all_(new std::uint64_t[most_words_]),
      scratch_(new std::uint64_t[most_words_]),
      in_all_(new std::uint16_t[kFew]) {
  assert(most_elements <= kMostSliceElements);
  if (!lanes_) throw std::bad_alloc();
}

void ElementAccumulator::start(DataType type, ReduceOp op, int ranks, std::size_t elements) {
  assert(ranks >= 2 && words_for(elements) <= most_words_);
  kernels_ = accumulate_kernels(type, op);
  if (!clear_ || type != type_ || op != op_) kernels_->clear(lanes_.get(), most_words_);
  clear_ = true;
  type_ = type, op_ = op, ranks_ = ranks, elements_ = elements, words_ = words_for(elements), held_ = 0;
  std::fill_n(any_.get(), words_, 0);
  few_ = true, common_ = 0;
}

/// Counts a rank that holds few elements. All ranks before it must have held few as well.
void ElementAccumulator::count_few(std::span<const std::uint16_t> offsets) {
  const std::span<std::uint64_t> any(any_.get(), words_);
  if (held_ == 0) {
    std::copy(offsets.begin(), offsets.end(), in_all_.get());
    common_ = offsets.size();
  } else if (held_ == 1) {
    common_ = keep_held(offsets);
  } else {
    common_ = keep_common(offsets);
  }
  for (const std::uint16_t offset : offsets) set_bit(any, offset);
  ++held_;
}

/// Lists what is also in the union, which is what the first rank holds. Returns how many these are. It takes
/// neither branches nor a walk along the other list.
std::size_t ElementAccumulator::keep_held(std::span<const std::uint16_t> offsets) {
  const std::span<const std::uint64_t> first(any_.get(), words_);
  std::size_t kept = 0;
  for (const std::uint16_t offset : offsets) {
    in_all_[kept] = offset;
    kept += test_bit(first, offset);
  }
  return kept;
}

/// Removes the elements that are not in `offsets` from the list of those that all ranks hold. Returns how
/// many are left.
std::size_t ElementAccumulator::keep_common(std::span<const std::uint16_t> offsets) {
  std::size_t kept = 0;
  if (common_ * kLookedFor < offsets.size()) {
    for (std::size_t i = 0; i < common_; ++i) {
      const std::uint16_t mine = in_all_[i];
      if (std::binary_search(offsets.begin(), offsets.end(), mine)) in_all_[kept++] = mine;
    }
    return kept;
  }
  // Both lists ascend: what is in both is found by walking them side by side.
  const std::uint16_t *a = in_all_.get(), *const a_end = a + common_;
  for (auto b = offsets.begin(); a != a_end && b != offsets.end();) {
    const std::uint16_t mine = *a, theirs = *b;
    if (mine == theirs) in_all_[kept++] = mine;
    a += mine <= theirs;
    b += theirs <= mine;
  }
  return kept;
}

/// Turns the list of the elements that all ranks hold into the bitmap all_.
void ElementAccumulator::end_few() {
  if (!few_) return;
  few_ = false;
  if (held_ == 0) {
    fill_ones({all_.get(), words_}, elements_);
  } else {
    bitmap_of({in_all_.get(), common_}, {all_.get(), words_});
  }
}

void ElementAccumulator::count_rank(std::span<const std::uint64_t> bitmap) {
  end_few();
  assert(bitmap.size() == words_);
  unite(bitmap, {any_.get(), words_}, {all_.get(), words_});
  ++held_;
}

void ElementAccumulator::hold_all() {
  end_few();
  fill_ones({any_.get(), words_}, elements_);
  ++held_;
}

void ElementAccumulator::hold_bitmap(std::span<const std::uint64_t> bitmap) { count_rank(bitmap); }

void ElementAccumulator::hold_offsets(std::span<const std::uint16_t> offsets) {
  if (few_ && offsets.size() <= kFew) return count_few(offsets);
  const std::span<std::uint64_t> scratch(scratch_.get(), words_);
  bitmap_of(offsets, scratch);
  count_rank(scratch);
}

void ElementAccumulator::add_all(std::span<const std::byte> values, std::size_t first) {
  clear_ = false;
  const std::size_t elements = values.size() / element_bytes(type_);
  assert(first + elements <= elements_);
  kernels_->add_all(lanes_.get() + first * kernels_->lane_bytes, values.data(), elements);
}

void ElementAccumulator::add_bitmap(std::span<const std::uint64_t> bitmap, std::span<const std::byte> values,
                                    std::size_t first) {
  clear_ = false;
  assert(first % 64 == 0 && first / 64 + bitmap.size() <= words_);
  assert(values.size() == count_bits(bitmap) * element_bytes(type_));
  kernels_->add_bitmap(lanes_.get() + first * kernels_->lane_bytes, bitmap, values);
}

void ElementAccumulator::add_offsets(std::span<const std::uint16_t> offsets,
                                     std::span<const std::byte> values) {
  clear_ = false;
  assert(values.size() == offsets.size() * element_bytes(type_));
  assert(are_offsets(offsets, elements_));
  kernels_->add_offsets(lanes_.get(), offsets, values.data());
}

std::size_t ElementAccumulator::union_count() const { return set_size(union_bitmap()); }

void ElementAccumulator::emit(std::span<std::byte> packed) {
  assert(held_ <= ranks_);
  assert(packed.size() >= union_count() * element_bytes(type_));
  prepare_all();
  kernels_->emit(lanes_.get(), union_bitmap(), all_.get(), ranks_, packed);
  clear_ = true;
}

void ElementAccumulator::emit(std::span<const std::uint16_t> union_offsets, std::span<std::byte> packed) {
  assert(held_ <= ranks_ && union_offsets.size() == union_count());
  assert(packed.size() >= union_offsets.size() * element_bytes(type_));
  prepare_all();
  kernels_->emit_offsets(lanes_.get(), union_offsets, all_.get(), ranks_, packed);
  clear_ = true;
}

/// Completes all_. It covers the ranks that were mentioned; if there are others, these hold nothing, so no
/// element is held by all ranks.
void ElementAccumulator::prepare_all() {
  end_few();
  if (held_ < ranks_) std::fill_n(all_.get(), words_, 0);
}

}  // namespace nzcl

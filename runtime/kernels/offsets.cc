#define HWY_WANT_AVX3_DL  // where the bits of a word are listed faster
#include "runtime/kernels/offsets.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "runtime/base/bitmap.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/offsets.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/offsets-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

std::size_t list_offsets(std::span<const std::uint64_t> bitmap, std::span<std::uint16_t> offsets) {
  PackedWriter<std::uint16_t> out(reinterpret_cast<std::byte*>(offsets.data()), offsets.size());
  std::size_t total = 0;
  for_each_nonzero_word(bitmap.data(), bitmap.size(), [&](std::size_t word) HWY_ATTR {
    const std::uint64_t bits = bitmap[word];
    const std::size_t count = popcount(bits);
    total += count;
    const bool fits = out.put(count, [&](std::uint16_t* to) HWY_ATTR { write_offsets(bits, word, to); });
    assert(fits);
    static_cast<void>(fits);
  });
  return total;
}

bool ascend(const std::uint16_t* p, std::size_t count) {
  const hn::ScalableTag<std::uint16_t> d;
  std::size_t i = 1;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto before = hn::LoadU(d, p + i - 1), here = hn::LoadU(d, p + i);
    // Few instruction sets can tell which of two unsigned 16-bit numbers is greater, but all have the maximum
    // of two: `before` is less if the maximum is `here` and the two differ.
    if (!hn::AllTrue(d, hn::And(hn::Eq(hn::Max(before, here), here), hn::Ne(before, here)))) return false;
  }
  for (; i < count; ++i) {
    if (p[i - 1] >= p[i]) return false;
  }
  return true;
}

/// Whether each of the entries `begin` .. `end` is greater than the one before it.
bool ascend_32(const std::uint32_t* p, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<std::uint32_t> d;
  std::size_t i = begin;
  for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
    if (!hn::AllTrue(d, hn::Lt(hn::LoadU(d, p + i - 1), hn::LoadU(d, p + i)))) return false;
  }
  for (; i < end; ++i) {
    if (p[i - 1] >= p[i]) return false;
  }
  return true;
}

/// Copies a piece of offsets, and then compares the copies in the piece before, which have reached the cache.
bool copy_32(const std::byte* from, std::size_t count, std::uint32_t more, std::uint32_t* to) {
  constexpr std::size_t kPiece = 256;
  [[maybe_unused]] const hn::ScalableTag<std::uint32_t> d;
  [[maybe_unused]] const auto base = hn::Set(d, more);
  std::size_t compared = 1;
  for (std::size_t i = 0; i < count;) {
    const std::size_t begin = i, end = std::min(count, i + kPiece);
#if HWY_TARGET != HWY_SCALAR  // which reads only what is aligned
    for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
      const auto offsets = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(from) + i);
      hn::StoreU(hn::Add(offsets, base), d, to + i);
    }
#endif
    for (; i < end; ++i) {
      std::uint32_t offset = 0;
      std::memcpy(&offset, from + i * sizeof offset, sizeof offset);
      to[i] = offset + more;
    }
    if (begin > compared && !ascend_32(to, compared, begin)) return false;
    compared = std::max(compared, begin);
  }
  return ascend_32(to, compared, count);
}

void widen_16(const std::uint16_t* from, std::size_t count, std::uint32_t first, std::uint32_t* to) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::Rebind<std::uint16_t, decltype(d)> half;
  const auto base = hn::Set(d, first);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
    hn::StoreU(hn::Add(hn::PromoteTo(d, hn::LoadU(half, from + i)), base), d, to + i);
  for (; i < count; ++i) to[i] = first + from[i];
}

void narrow_32(const std::uint32_t* from, std::size_t count, std::uint32_t first, std::uint16_t* to) {
  const hn::ScalableTag<std::uint32_t> d;
  const auto base = hn::Set(d, first), low = hn::Set(d, 0xffffu);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
    store_u16(d, hn::And(hn::Sub(hn::LoadU(d, from + i), base), low), to + i);
  for (; i < count; ++i) to[i] = static_cast<std::uint16_t>(from[i] - first);
}

void unite_words(const std::uint64_t* bits, std::uint64_t* any, std::uint64_t* all, std::size_t words) {
  const hn::ScalableTag<std::uint64_t> d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= words; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, bits + i);
    hn::StoreU(hn::Or(hn::LoadU(d, any + i), v), d, any + i);
    hn::StoreU(hn::And(hn::LoadU(d, all + i), v), d, all + i);
  }
  for (; i < words; ++i) any[i] |= bits[i], all[i] &= bits[i];
}

std::size_t count_all(const std::uint64_t* words, std::size_t count) {
  const hn::ScalableTag<std::uint64_t> d;
  auto sums = hn::Zero(d);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
    sums = hn::Add(sums, hn::PopulationCount(hn::LoadU(d, words + i)));
  std::size_t total = static_cast<std::size_t>(hn::GetLane(hn::SumOfLanes(d, sums)));
  for (; i < count; ++i) total += popcount(words[i]);
  return total;
}

/// A run begins where a bit is set and the one before it is not.
std::size_t count_beginnings(const std::uint64_t* words, std::size_t count) {
  if (count == 0) return 0;
  const hn::ScalableTag<std::uint64_t> d;
  auto sums = hn::Zero(d);
  std::size_t total = popcount(words[0] & ~(words[0] << 1));
  std::size_t i = 1;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto here = hn::LoadU(d, words + i), before = hn::LoadU(d, words + i - 1);
    const auto shifted = hn::Or(hn::ShiftLeft<1>(here), hn::ShiftRight<63>(before));
    sums = hn::Add(sums, hn::PopulationCount(hn::AndNot(shifted, here)));
  }
  total += static_cast<std::size_t>(hn::GetLane(hn::SumOfLanes(d, sums)));
  for (; i < count; ++i) total += popcount(words[i] & ~(words[i] << 1 | words[i - 1] >> 63));
  return total;
}

std::size_t count_gaps(const std::uint16_t* p, std::size_t count) {
  const hn::ScalableTag<std::uint16_t> d;
  const auto one = hn::Set(d, 1);
  std::size_t gaps = 0, i = 1;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto next = hn::Add(hn::LoadU(d, p + i - 1), one);
    gaps += hn::Lanes(d) - hn::CountTrue(d, hn::Eq(next, hn::LoadU(d, p + i)));
  }
  for (; i < count; ++i) gaps += p[i] != p[i - 1] + 1;
  return gaps;
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(list_offsets);
HWY_EXPORT(ascend);
HWY_EXPORT(copy_32);
HWY_EXPORT(widen_16);
HWY_EXPORT(narrow_32);
HWY_EXPORT(unite_words);
HWY_EXPORT(count_all);
HWY_EXPORT(count_beginnings);
HWY_EXPORT(count_gaps);

std::size_t set_size(std::span<const std::uint64_t> bitmap) noexcept {
  return HWY_DYNAMIC_DISPATCH(count_all)(bitmap.data(), bitmap.size());
}
std::size_t set_runs(std::span<const std::uint64_t> bitmap) noexcept {
  return HWY_DYNAMIC_DISPATCH(count_beginnings)(bitmap.data(), bitmap.size());
}
std::size_t set_runs(std::span<const std::uint16_t> offsets) noexcept {
  return offsets.empty() ? 0 : 1 + HWY_DYNAMIC_DISPATCH(count_gaps)(offsets.data(), offsets.size());
}

std::size_t offsets_of(std::span<const std::uint64_t> bitmap, std::span<std::uint16_t> offsets) noexcept {
  return HWY_DYNAMIC_DISPATCH(list_offsets)(bitmap, offsets);
}

void bitmap_of(std::span<const std::uint16_t> offsets, std::span<std::uint64_t> bitmap) noexcept {
  std::ranges::fill(bitmap, 0);
  // The four quarters of the list are entered in turn. Neighbours are most often in the same word, and each
  // would wait for the one before.
  const std::size_t quarter = offsets.size() / 4;
  const std::uint16_t* const p = offsets.data();
  for (std::size_t i = 0; i < quarter; ++i) {
    set_bit(bitmap, p[i]);
    set_bit(bitmap, p[i + quarter]);
    set_bit(bitmap, p[i + 2 * quarter]);
    set_bit(bitmap, p[i + 3 * quarter]);
  }
  for (const std::uint16_t offset : offsets.subspan(4 * quarter)) set_bit(bitmap, offset);
}

bool are_offsets(std::span<const std::uint16_t> offsets, std::size_t elements) noexcept {
  if (offsets.empty()) return true;
  return offsets.back() < elements && HWY_DYNAMIC_DISPATCH(ascend)(offsets.data(), offsets.size());
}

bool copy_offsets(std::span<const std::byte> list, std::uint32_t first, std::uint32_t base,
                  std::uint64_t elements, std::uint32_t* to) noexcept {
  const std::size_t count = list.size() / sizeof *to;
  return count == 0 || (HWY_DYNAMIC_DISPATCH(copy_32)(list.data(), count, base - first, to) &&
                        to[0] >= base && to[count - 1] - base < elements);
}

void widen_offsets(std::span<const std::uint16_t> offsets, std::uint32_t first, std::uint32_t* to) noexcept {
  HWY_DYNAMIC_DISPATCH(widen_16)(offsets.data(), offsets.size(), first, to);
}

void narrow_offsets(std::span<const std::uint32_t> offsets, std::uint32_t first, std::uint16_t* to) noexcept {
  HWY_DYNAMIC_DISPATCH(narrow_32)(offsets.data(), offsets.size(), first, to);
}

void unite(std::span<const std::uint64_t> bits, std::span<std::uint64_t> any,
           std::span<std::uint64_t> all) noexcept {
  assert(bits.size() == any.size() && bits.size() == all.size());
  HWY_DYNAMIC_DISPATCH(unite_words)(bits.data(), any.data(), all.data(), bits.size());
}

}  // namespace nzcl
#endif  // HWY_ONCE

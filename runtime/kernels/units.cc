#include "runtime/kernels/units.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"
#include "runtime/kernels/offsets.h"
#include "runtime/kernels/scan.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/units.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/pack-inl.h"
#include "runtime/kernels/words-inl.h"

#ifndef NZCL_UNITS_COMMON
#define NZCL_UNITS_COMMON
namespace nzcl {
namespace {

/// Bits of a word that stand for `kLog2`-th powers of two of elements each, as bits of the elements. What
/// lies above the lowest 64 >> kLog2 bits is not looked at.
template <int kLog2>
std::uint64_t spread_word(std::uint64_t units) {
  if constexpr (kLog2 == 0) {
    return units;
  } else if constexpr (kLog2 >= 3) {  // few units
    constexpr std::uint64_t kUnit = low_bits(std::uint64_t{1} << kLog2);
    std::uint64_t bits = 0;
    for (int i = 0; i < 64 >> kLog2; ++i) bits |= (units >> i & 1) * (kUnit << (i << kLog2) % 64);
    return bits;
  } else {  // moves bit i to bit 2 i (Warren, Hacker's Delight, section 7-2), and doubles it
    std::uint64_t x = units & 0xffffffff;
    x = (x | x << 16) & 0x0000ffff0000ffff;
    x = (x | x << 8) & 0x00ff00ff00ff00ff;
    x = (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
    x = (x | x << 2) & 0x3333333333333333;
    x = (x | x << 1) & 0x5555555555555555;
    const std::uint64_t twice = x | x << 1;
    return kLog2 == 1 ? twice : spread_word<kLog2 - 1>(twice);
  }
}

/// The inverse of spread_word(): which units have any of the bits.
template <int kLog2>
std::uint64_t fold_word(std::uint64_t bits) {
  if constexpr (kLog2 == 0) {
    return bits;
  } else {
    std::uint64_t x = (bits | bits >> 1) & 0x5555555555555555;
    x = (x | x >> 1) & 0x3333333333333333;
    x = (x | x >> 2) & 0x0f0f0f0f0f0f0f0f;
    x = (x | x >> 4) & 0x00ff00ff00ff00ff;
    x = (x | x >> 8) & 0x0000ffff0000ffff;
    return fold_word<kLog2 - 1>((x | x >> 16) & 0x00000000ffffffff);
  }
}

constexpr int kMostLog2 = 6;

/// Calls make.operator()<log2>() if units are such a power of two of elements that a word of 64 elements has
/// whole units, and otherwise returns false.
template <class Make>
bool by_log2(std::size_t unit_elements, Make make) {
  switch (unit_elements) {
    case 1:
      return make.template operator()<0>(), true;
    case 2:
      return make.template operator()<1>(), true;
    case 4:
      return make.template operator()<2>(), true;
    case 8:
      return make.template operator()<3>(), true;
    case 16:
      return make.template operator()<4>(), true;
    case 32:
      return make.template operator()<5>(), true;
    case 64:
      return make.template operator()<kMostLog2>(), true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace nzcl
#endif  // NZCL_UNITS_COMMON

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

/// Units of 2^kLog2 elements of kBytes, up to 64 elements.
template <std::size_t kBytes, int kLog2>
std::size_t scan_and_pack_words(std::span<const std::byte> dense, std::span<std::uint64_t> bitmap,
                                std::span<std::byte> values) {
  using Format = BitsOf<kBytes>;
  using Element = typename Format::Element;
  constexpr std::size_t kUnits = kWordElements >> kLog2;  // of a word
  const std::size_t elements = dense.size() / kBytes;
  PackedWriter<Element> out(values.data(), values.size() / kBytes);
  std::fill(bitmap.begin(), bitmap.end(), 0);
  std::size_t total = 0;
  const bool fits = for_each_word<Element>(dense, [&](std::size_t word, const Element* p) HWY_ATTR {
    const std::uint64_t bits = nonzero_bits(p);
    if (bits == 0) return true;
    const std::uint64_t units = fold_word<kLog2>(bits);
    const std::size_t first = word * kUnits;
    bitmap[first / 64] |= units << first % 64;
    const std::uint64_t whole = spread_word<kLog2>(units) & low_bits(elements - word * kWordElements);
    const std::size_t count = popcount(whole);
    total += count;
    return out.put(count, [&](Element* to) HWY_ATTR { pack_word<Format>(p, whole, to); });
  });
  return fits ? total : kTooDense;
}

template <std::size_t kBytes>
bool scan_and_pack_sized(std::span<const std::byte> dense, std::size_t unit_elements,
                         std::span<std::uint64_t> bitmap, std::span<std::byte> values, std::size_t& packed) {
  return by_log2(unit_elements,
                 [&]<int kLog2>() { packed = scan_and_pack_words<kBytes, kLog2>(dense, bitmap, values); });
}

/// Returns false if units do not fit words of 64 elements.
bool scan_and_pack_any(std::span<const std::byte> dense, std::size_t element_bytes, std::size_t unit_elements,
                       std::span<std::uint64_t> bitmap, std::span<std::byte> values, std::size_t& packed) {
  switch (element_bytes) {
    case 1:
      return scan_and_pack_sized<1>(dense, unit_elements, bitmap, values, packed);
    case 2:
      return scan_and_pack_sized<2>(dense, unit_elements, bitmap, values, packed);
    case 4:
      return scan_and_pack_sized<4>(dense, unit_elements, bitmap, values, packed);
    default:
      return scan_and_pack_sized<8>(dense, unit_elements, bitmap, values, packed);
  }
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(scan_and_pack_any);

namespace {

/// How many units of a list lie between the one that is written and the one whose memory is fetched.
constexpr std::size_t kUnitsAhead = 24;

bool are_long(std::size_t element_bytes, std::size_t unit_elements) {
  return element_bytes * unit_elements >= kLongUnitBytes;
}

/// Copies a unit of at least kLongUnitBytes in pieces of a fixed size, the last of which may overlap the one
/// before. The compiler makes vectors of these, where it would call a function for a size that it does not
/// know.
void copy_long(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t at = 0;
  for (; at + kLongUnitBytes <= bytes; at += kLongUnitBytes) std::memcpy(to + at, from + at, kLongUnitBytes);
  if (at < bytes) std::memcpy(to + bytes - kLongUnitBytes, from + bytes - kLongUnitBytes, kLongUnitBytes);
}

/// Copies a unit that may be the slice's last one, which may be short.
void copy_unit(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes >= kLongUnitBytes) {
    copy_long(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

/// Calls each(at, bytes) for every unit in a word of the bitmap, with its place in the slice.
template <class Each>
void for_each_unit_of(std::size_t word, std::uint64_t units, std::size_t unit_bytes, std::size_t slice_bytes,
                      Each each) {
  for (; units != 0; units &= units - 1) {
    const std::size_t at = (word * 64 + static_cast<std::size_t>(std::countr_zero(units))) * unit_bytes;
    each(at, std::min(unit_bytes, slice_bytes - at));
  }
}

/// The same for every word.
template <class Each>
void for_each_unit(std::span<const std::uint64_t> bitmap, std::size_t unit_bytes, std::size_t slice_bytes,
                   Each each) {
  for (std::size_t word = 0; word < words_for((slice_bytes + unit_bytes - 1) / unit_bytes); ++word)
    for_each_unit_of(word, bitmap[word], unit_bytes, slice_bytes, each);
}

std::span<const std::uint64_t> spread(std::span<const std::uint64_t> bitmap, std::size_t unit_elements,
                                      std::size_t elements, std::span<std::uint64_t> scratch) {
  if (unit_elements == 1) return bitmap;
  const auto bits = scratch.first(words_for(elements));
  spread_units(bitmap, unit_elements, elements, bits);
  return bits;
}

/// Units that do not fit words of 64 elements are first found and then packed, out of the cache.
std::size_t scan_then_pack(std::span<const std::byte> dense, std::size_t element_bytes,
                           std::size_t unit_elements, std::span<std::uint64_t> bitmap,
                           std::span<std::byte> values) {
  const std::size_t unit_bytes = element_bytes * unit_elements;
  if (dense.empty()) return 0;
  scan_blocks(dense.data(), dense.size(), unit_bytes, bitmap, 1);
  const std::size_t units = (dense.size() + unit_bytes - 1) / unit_bytes;
  const std::size_t missing =
      test_bit(bitmap, units - 1) ? units * unit_bytes - dense.size() : 0;  // of the last unit
  const std::size_t bytes = set_size(bitmap.first(words_for(units))) * unit_bytes - missing;
  if (bytes > values.size()) return kTooDense;
  std::byte* to = values.data();
  for_each_unit(bitmap, unit_bytes, dense.size(), [&](std::size_t at, std::size_t n) {
    copy_unit(to, dense.data() + at, n);
    to += n;
  });
  return bytes / element_bytes;
}

template <std::size_t kBytes>
void scatter_sized(std::span<const std::byte> values, std::span<const std::uint16_t> offsets,
                   std::span<std::byte> dense) {
  const std::byte* from = values.data();
  for (std::size_t i = 0; i < offsets.size(); ++i, from += kBytes) {
    const std::size_t ahead = offsets[std::min(i + kUnitsAhead, offsets.size() - 1)];
    __builtin_prefetch(dense.data() + ahead * kBytes, 1);
    const std::size_t at = offsets[i] * kBytes;
    if (at + kBytes <= dense.size()) {
      std::memcpy(dense.data() + at, from, kBytes);
    } else {
      std::memcpy(dense.data() + at, from, dense.size() - at);
    }
  }
}

}  // namespace

void spread_units(std::span<const std::uint64_t> units, std::size_t unit_elements, std::size_t elements,
                  std::span<std::uint64_t> bits) noexcept {
  assert(bits.size() == words_for(elements));
  const bool in_words = by_log2(unit_elements, [&]<int kLog2>() {
    constexpr std::size_t kUnits = 64 >> kLog2;  // of a word of elements
    for (std::size_t word = 0; word < bits.size(); ++word)
      bits[word] = spread_word<kLog2>(units[word * kUnits / 64] >> word * kUnits % 64);
  });
  if (!in_words) {
    std::fill(bits.begin(), bits.end(), 0);
    for_each_unit(units, unit_elements, elements, [&](std::size_t first, std::size_t count) {
      for (std::size_t at = first; at < first + count;) {
        const std::size_t n = std::min(first + count - at, 64 - at % 64);
        bits[at / 64] |= low_bits(n) << at % 64;
        at += n;
      }
    });
  }
  if (elements % 64 != 0) bits.back() &= low_bits(elements % 64);
}

std::size_t scan_and_pack_units(std::span<const std::byte> dense, std::size_t element_bytes,
                                std::size_t unit_elements, std::span<std::uint64_t> bitmap,
                                std::span<std::byte> values) noexcept {
  std::size_t packed = 0;
  if (HWY_DYNAMIC_DISPATCH(scan_and_pack_any)(dense, element_bytes, unit_elements, bitmap, values, packed))
    return packed;
  return scan_then_pack(dense, element_bytes, unit_elements, bitmap, values);
}

void pack_units(std::span<const std::byte> dense, std::size_t element_bytes, std::size_t unit_elements,
                std::span<const std::uint64_t> bitmap, std::span<std::byte> values,
                std::span<std::uint64_t> scratch) noexcept {
  if (!are_long(element_bytes, unit_elements))
    return pack(dense, element_bytes, spread(bitmap, unit_elements, dense.size() / element_bytes, scratch),
                values);
  std::byte* to = values.data();
  for_each_unit(bitmap, element_bytes * unit_elements, dense.size(), [&](std::size_t at, std::size_t n) {
    copy_unit(to, dense.data() + at, n);
    to += n;
  });
  assert(to == values.data() + values.size());
}

void expand_units(std::span<const std::byte> values, std::size_t element_bytes, std::size_t unit_elements,
                  std::span<const std::uint64_t> bitmap, std::span<std::byte> dense,
                  std::span<std::uint64_t> scratch, StoreTo where) noexcept {
  if (!are_long(element_bytes, unit_elements))
    return expand(values, element_bytes, spread(bitmap, unit_elements, dense.size() / element_bytes, scratch),
                  dense, where);
  const std::byte* from = values.data();
  std::size_t end = 0;  // of what has been written
  for_each_unit(bitmap, element_bytes * unit_elements, dense.size(), [&](std::size_t at, std::size_t n) {
    if (end < at) zero_cold(dense.data() + end, at - end);
    copy_unit(dense.data() + at, from, n);
    from += n;
    end = at + n;
  });
  zero_cold(dense.data() + end, dense.size() - end);
  assert(from == values.data() + values.size());
}

void fill_in_units(std::span<const std::byte> values, std::size_t element_bytes, std::size_t unit_elements,
                   std::span<const std::uint64_t> bitmap, std::span<std::byte> dense,
                   std::span<std::uint64_t> scratch) noexcept {
  if (!are_long(element_bytes, unit_elements))
    return expand_units(values, element_bytes, unit_elements, bitmap, dense, scratch, StoreTo::cache);
  const std::size_t unit_bytes = element_bytes * unit_elements;
  const std::byte* from = values.data();
  const std::size_t words = words_for((dense.size() + unit_bytes - 1) / unit_bytes);
  for (std::size_t word = 0; word < words; ++word) {
    if (word + 1 < words)
      for_each_unit_of(word + 1, bitmap[word + 1], unit_bytes, dense.size(),
                       [&](std::size_t at, std::size_t n) { prefetch_to_write(dense.data() + at, n); });
    for_each_unit_of(word, bitmap[word], unit_bytes, dense.size(), [&](std::size_t at, std::size_t n) {
      copy_unit(dense.data() + at, from, n);
      from += n;
    });
  }
  assert(from == values.data() + values.size());
}

void scatter_units(std::span<const std::byte> values, std::size_t unit_bytes,
                   std::span<const std::uint16_t> offsets, std::span<std::byte> dense) noexcept {
  switch (unit_bytes) {
    case 1:
      return scatter_sized<1>(values, offsets, dense);
    case 2:
      return scatter_sized<2>(values, offsets, dense);
    case 4:
      return scatter_sized<4>(values, offsets, dense);
    case 8:
      return scatter_sized<8>(values, offsets, dense);
    case 16:
      return scatter_sized<16>(values, offsets, dense);
    case 32:
      return scatter_sized<32>(values, offsets, dense);
    default:
      break;
  }
  const std::byte* from = values.data();
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::size_t ahead = offsets[std::min(i + kUnitsAhead, offsets.size() - 1)] * unit_bytes;
    prefetch_to_write(dense.data() + ahead, std::min(unit_bytes, dense.size() - ahead));
    const std::size_t at = offsets[i] * unit_bytes, n = std::min(unit_bytes, dense.size() - at);
    copy_unit(dense.data() + at, from, n);
    from += n;
  }
}

}  // namespace nzcl
#endif  // HWY_ONCE

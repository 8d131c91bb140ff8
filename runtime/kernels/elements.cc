#include "runtime/kernels/elements.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/elements.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/pack-inl.h"
#include "runtime/kernels/words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

template <std::size_t kBytes>
std::size_t scan_and_pack_sized(std::span<const std::byte> dense, std::uint64_t* bitmap,
                                std::span<std::byte> values) {
  using Format = BitsOf<kBytes>;
  using Element = typename Format::Element;
  PackedWriter<Element> out(values.data(), values.size() / kBytes);
  std::size_t total = 0;
  const bool fits = for_each_word<Element>(dense, [&](std::size_t word, const Element* p) HWY_ATTR {
    const std::uint64_t bits = nonzero_bits(p);
    bitmap[word] = bits;
    if (bits == 0) return true;
    const std::size_t count = popcount(bits);
    total += count;
    return out.put(count, [&](Element* to) HWY_ATTR { pack_word<Format>(p, bits, to); });
  });
  return fits ? total : kTooDense;
}

template <std::size_t kBytes>
void pack_sized(std::span<const std::byte> dense, const std::uint64_t* bitmap, std::span<std::byte> values) {
  using Format = BitsOf<kBytes>;
  using Element = typename Format::Element;
  PackedWriter<Element> out(values.data(), values.size() / kBytes);
  for_each_word<Element>(dense, [&](std::size_t word, const Element* p) HWY_ATTR {
    const std::uint64_t bits = bitmap[word];
    if (bits == 0) return true;
    const bool fits = out.put(popcount(bits), [&](Element* to) HWY_ATTR { pack_word<Format>(p, bits, to); });
    assert(fits);
    return fits;
  });
}

/// Writes words of a dense slice.
template <std::size_t kBytes>
struct DenseWords {
  using Format = BitsOf<kBytes>;
  using Element = typename Format::Element;
  static HWY_INLINE void zero(Element* p) {
    const hn::CappedTag<Element, kCacheLine / kBytes> d;
    for (std::size_t i = 0; i < kWordElements; i += hn::Lanes(d)) hn::StoreU(hn::Zero(d), d, p + i);
  }
  static HWY_INLINE void expand(const Element* from, std::uint64_t bits, Element* p) {
    expand_word<Format>(from, bits, [&](std::size_t lane, auto v) HWY_ATTR {
      Format::store(PackTag<typename Format::Lane>(), v, p + lane);
    });
  }
  static HWY_INLINE void prefetch(Element* p) {
    prefetch_to_write(reinterpret_cast<std::byte*>(p) + kPrefetchBytes, kWordElements * kBytes);
  }
};

/// Writes words of a dense slice past the caches, to where a cache line begins.
template <std::size_t kBytes>
struct StreamedWords {
  using Words = DenseWords<kBytes>;
  using Element = typename Words::Element;
  using Lane = typename Words::Format::Lane;
  static HWY_INLINE void zero(Element* p) {
    const hn::CappedTag<Element, kCacheLine / kBytes> d;
    for (std::size_t i = 0; i < kWordElements; i += hn::Lanes(d)) hn::Stream(hn::Zero(d), d, p + i);
  }
  static HWY_INLINE void expand(const Element* from, std::uint64_t bits, Element* p) {
    if constexpr (std::is_same_v<Element, Lane>) {
      const PackTag<Lane> d;
      expand_word<typename Words::Format>(
          from, bits, [&](std::size_t lane, auto v) HWY_ATTR { hn::Stream(v, d, p + lane); });
    } else {  // lanes are longer than elements
      const hn::CappedTag<Element, kCacheLine / kBytes> d;
      alignas(kCacheLine) Element word[kWordElements];
      Words::expand(from, bits, word);
      for (std::size_t i = 0; i < kWordElements; i += hn::Lanes(d))
        hn::Stream(hn::Load(d, word + i), d, p + i);
    }
  }
};

/// Bits `first` to `first + count` of a bitmap that has them, up to 64.
HWY_INLINE std::uint64_t bits_from(const std::uint64_t* bitmap, std::size_t first, std::size_t count) {
  const std::size_t word = first / 64, shift = first % 64;
  std::uint64_t bits = bitmap[word] >> shift;
  if (shift + count > 64) bits |= bitmap[word + 1] << (64 - shift);
  return bits & low_bits(count);
}

/// Writes fewer elements than a word has.
template <std::size_t kBytes, class Element>
void expand_some(PackedReader<Element>& in, std::uint64_t bits, Element* to, std::size_t elements) {
  Element word[kWordElements];
  DenseWords<kBytes>::expand(in.take(popcount(bits)), bits, word);
  std::memcpy(to, word, elements * kBytes);
}

/// Memory seldom begins where a cache line does, and then the words that are written have bits of two words
/// of the bitmap. Precondition: `to` is where an element may lie.
template <std::size_t kBytes, class Element>
void expand_to_memory(PackedReader<Element>& in, const std::uint64_t* bitmap, Element* to,
                      std::size_t elements) {
  using Words = StreamedWords<kBytes>;
  const std::size_t behind = reinterpret_cast<std::uintptr_t>(to) % kCacheLine;
  std::size_t at = std::min(elements, behind == 0 ? 0 : (kCacheLine - behind) / kBytes);
  if (at > 0) expand_some<kBytes>(in, bits_from(bitmap, 0, at), to, at);
  for (; at + kWordElements <= elements; at += kWordElements) {
    const std::uint64_t bits = bits_from(bitmap, at, kWordElements);
    if (bits == 0) {
      Words::zero(to + at);
    } else {
      Words::expand(in.take(popcount(bits)), bits, to + at);
    }
  }
  if (at < elements) expand_some<kBytes>(in, bits_from(bitmap, at, elements - at), to + at, elements - at);
  hwy::FlushStream();
}

/// What is written is in no cache yet, but shall be in one.
template <std::size_t kBytes, class Element>
void expand_to_cache(PackedReader<Element>& in, const std::uint64_t* bitmap, Element* to,
                     std::size_t elements) {
  using Words = DenseWords<kBytes>;
  const std::size_t whole = elements / kWordElements;
  for (const std::uint64_t bits : std::span(bitmap, whole)) {
    Words::prefetch(to);
    if (bits == 0) {
      Words::zero(to);
    } else {
      Words::expand(in.take(popcount(bits)), bits, to);
    }
    to += kWordElements;
  }
  if (elements % kWordElements != 0) expand_some<kBytes>(in, bitmap[whole], to, elements % kWordElements);
}

template <std::size_t kBytes>
void expand_sized(std::span<const std::byte> values, const std::uint64_t* bitmap, std::span<std::byte> dense,
                  StoreTo where) {
  using Element = typename DenseWords<kBytes>::Element;
  PackedReader<Element> in(values.data(), values.size() / kBytes);
  auto* const to = reinterpret_cast<Element*>(dense.data());
  const std::size_t elements = dense.size() / kBytes;
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % kBytes == 0;
  if (where == StoreTo::memory && aligned) {
    expand_to_memory<kBytes>(in, bitmap, to, elements);
  } else {
    expand_to_cache<kBytes>(in, bitmap, to, elements);
  }
}

// Calls KERNEL<element_bytes>(arguments).
#define NZCL_BY_SIZE(KERNEL, ...)    \
  switch (element_bytes) {           \
    case 1:                          \
      return KERNEL<1>(__VA_ARGS__); \
    case 2:                          \
      return KERNEL<2>(__VA_ARGS__); \
    case 4:                          \
      return KERNEL<4>(__VA_ARGS__); \
    default:                         \
      return KERNEL<8>(__VA_ARGS__); \
  }

std::size_t scan_and_pack_any(std::span<const std::byte> dense, std::size_t element_bytes,
                              std::uint64_t* bitmap, std::span<std::byte> values) {
  NZCL_BY_SIZE(scan_and_pack_sized, dense, bitmap, values)
}
void pack_any(std::span<const std::byte> dense, std::size_t element_bytes, const std::uint64_t* bitmap,
              std::span<std::byte> values) {
  NZCL_BY_SIZE(pack_sized, dense, bitmap, values)
}
void expand_any(std::span<const std::byte> values, std::size_t element_bytes, const std::uint64_t* bitmap,
                std::span<std::byte> dense, StoreTo where) {
  NZCL_BY_SIZE(expand_sized, values, bitmap, dense, where)
}

#undef NZCL_BY_SIZE

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(scan_and_pack_any);
HWY_EXPORT(pack_any);
HWY_EXPORT(expand_any);

std::size_t scan_and_pack(std::span<const std::byte> dense, std::size_t element_bytes,
                          std::span<std::uint64_t> bitmap, std::span<std::byte> values) noexcept {
  assert(bitmap.size() >= words_for(dense.size() / element_bytes));
  return HWY_DYNAMIC_DISPATCH(scan_and_pack_any)(dense, element_bytes, bitmap.data(), values);
}

void pack(std::span<const std::byte> dense, std::size_t element_bytes, std::span<const std::uint64_t> bitmap,
          std::span<std::byte> values) noexcept {
  assert(bitmap.size() >= words_for(dense.size() / element_bytes));
  HWY_DYNAMIC_DISPATCH(pack_any)(dense, element_bytes, bitmap.data(), values);
}

void expand(std::span<const std::byte> values, std::size_t element_bytes,
            std::span<const std::uint64_t> bitmap, std::span<std::byte> dense, StoreTo where) noexcept {
  assert(bitmap.size() >= words_for(dense.size() / element_bytes));
  assert(values.size() / element_bytes == count_bits(bitmap.first(words_for(dense.size() / element_bytes))));
  HWY_DYNAMIC_DISPATCH(expand_any)(values, element_bytes, bitmap.data(), dense, where);
}

}  // namespace nzcl
#endif  // HWY_ONCE

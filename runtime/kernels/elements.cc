#include "runtime/kernels/elements.h"

#include <cassert>
#include <cstring>

#include <hwy/cache_control.h>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/elements.cc"
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

/// Writes words of a dense slice through the caches.
template <std::size_t kBytes>
struct CachedWords {
  using Format = BitsOf<kBytes>;
  using Element = typename Format::Element;
  static HWY_INLINE void zero(Element* p) { std::memset(p, 0, kWordElements * kBytes); }
  static HWY_INLINE void expand(const Element* from, std::uint64_t bits, Element* p) {
    expand_word<Format>(from, bits, [&](std::size_t lane, auto v) HWY_ATTR {
      Format::store(PackTag<typename Format::Lane>(), v, p + lane);
    });
  }
  static HWY_INLINE void prefetch(Element* p) {
    prefetch_to_write(reinterpret_cast<std::byte*>(p) + kPrefetchBytes, kWordElements * kBytes);
  }
};

/// Writes words past the caches. Each of them must begin where a cache line begins.
template <std::size_t kBytes>
struct StreamedWords {
  using Element = typename BitsOf<kBytes>::Element;
  using D = hn::CappedTag<Element, kCacheLine / kBytes>;
  static HWY_INLINE void zero(Element* p) {
    for (std::size_t i = 0; i < kWordElements; i += hn::Lanes(D())) hn::Stream(hn::Zero(D()), D(), p + i);
  }
  static HWY_INLINE void expand(const Element* from, std::uint64_t bits, Element* p) {
    alignas(kCacheLine) Element word[kWordElements];
    CachedWords<kBytes>::expand(from, bits, word);
    for (std::size_t i = 0; i < kWordElements; i += hn::Lanes(D()))
      hn::Stream(hn::Load(D(), word + i), D(), p + i);
  }
  static HWY_INLINE void prefetch(Element*) {}
};

template <std::size_t kBytes, class Words>
HWY_INLINE void expand_words(std::span<const std::byte> values, const std::uint64_t* bitmap,
                             std::span<std::byte> dense) {
  using Element = typename BitsOf<kBytes>::Element;
  PackedReader<Element> in(values.data(), values.size() / kBytes);
  auto* to = reinterpret_cast<Element*>(dense.data());
  const std::size_t elements = dense.size() / kBytes, whole = elements / kWordElements;
  for (std::size_t word = 0; word < whole; ++word, to += kWordElements) {
    Words::prefetch(to);
    const std::uint64_t bits = bitmap[word];
    if (bits == 0) {
      Words::zero(to);
    } else {
      Words::expand(in.take(popcount(bits)), bits, to);
    }
  }
  if (elements % kWordElements == 0) return;
  Element last[kWordElements];
  CachedWords<kBytes>::expand(in.take(popcount(bitmap[whole])), bitmap[whole], last);
  std::memcpy(to, last, elements % kWordElements * kBytes);
}

template <std::size_t kBytes>
void expand_sized(std::span<const std::byte> values, const std::uint64_t* bitmap, std::span<std::byte> dense,
                  StoreTo where) {
  if (where == StoreTo::memory && reinterpret_cast<std::uintptr_t>(dense.data()) % kCacheLine == 0) {
    expand_words<kBytes, StreamedWords<kBytes>>(values, bitmap, dense);
    hwy::FlushStream();
  } else {
    expand_words<kBytes, CachedWords<kBytes>>(values, bitmap, dense);
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

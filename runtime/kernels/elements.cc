#include "runtime/kernels/elements.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/base/cold_memory.h"
#include "runtime/kernels/stream_copy.h"

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

/// What is stored past the caches is made in parts of so many bytes.
constexpr std::size_t kPartBytes = 16 << 10;

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

/// Writes whole words, from `to` on. `kCold`: `to` is in no cache.
template <std::size_t kBytes, bool kCold, class Element>
HWY_INLINE void expand_words(PackedReader<Element>& in, std::span<const std::uint64_t> bitmap, Element* to) {
  using Words = DenseWords<kBytes>;
  for (const std::uint64_t bits : bitmap) {
    if constexpr (kCold) Words::prefetch(to);
    if (bits == 0) {
      Words::zero(to);
    } else {
      Words::expand(in.take(popcount(bits)), bits, to);
    }
    to += kWordElements;
  }
}

template <std::size_t kBytes>
void expand_sized(std::span<const std::byte> values, const std::uint64_t* bitmap, std::span<std::byte> dense,
                  StoreTo where) {
  using Element = typename DenseWords<kBytes>::Element;
  PackedReader<Element> in(values.data(), values.size() / kBytes);
  auto* to = reinterpret_cast<Element*>(dense.data());
  const std::size_t elements = dense.size() / kBytes, whole = elements / kWordElements;
  const std::span words(bitmap, whole);
  if (where == StoreTo::memory) {
    // In parts that stay in the nearest cache, because memory seldom begins where a cache line does.
    constexpr std::size_t kPartWords = kPartBytes / (kWordElements * kBytes);
    alignas(kCacheLine) Element part[kPartWords * kWordElements];
    for (std::size_t word = 0; word < whole; word += kPartWords) {
      const auto some = words.subspan(word, std::min(kPartWords, whole - word));
      expand_words<kBytes, false>(in, some, part);
      copy_past_caches(reinterpret_cast<std::byte*>(to + word * kWordElements),
                       reinterpret_cast<const std::byte*>(part), some.size() * kWordElements * kBytes);
    }
  } else {
    expand_words<kBytes, true>(in, words, to);
  }
  if (elements % kWordElements == 0) return;
  Element last[kWordElements];
  DenseWords<kBytes>::expand(in.take(popcount(bitmap[whole])), bitmap[whole], last);
  std::memcpy(to + whole * kWordElements, last, elements % kWordElements * kBytes);
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

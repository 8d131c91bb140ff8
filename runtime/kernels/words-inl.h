// The words of 64 elements of a dense slice, one by one. Included once per instruction set.

#if defined(NZCL_KERNELS_WORDS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NZCL_KERNELS_WORDS_INL_H
#undef NZCL_KERNELS_WORDS_INL_H
#else
#define NZCL_KERNELS_WORDS_INL_H
#endif

#include <cstddef>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "runtime/base/cold_memory.h"
#include "runtime/kernels/packed_words.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

/// Prefetches what lies behind a slice, since it is most often the slice that comes next: a line of each of
/// its quarters at a time. The prefetchers of a CPU follow a single stream of loads only to the end of its
/// page. With several streams, some of them are always within a page.
class NextSlice {
 public:
  explicit NextSlice(std::span<const std::byte> slice)
      : begin_(slice.data() + slice.size()), quarter_(slice.size() / kQuarters) {}

  /// Prefetches as many bytes as the slice's word number `word` has. Precondition: the slice has that word.
  template <typename T>
  HWY_INLINE void prefetch(std::size_t word) const {
    constexpr std::size_t kOfQuarter = kWordElements * sizeof(T) / kQuarters;
    for (std::size_t q = 0; q < kQuarters; ++q)
      prefetch_to_read(begin_ + q * quarter_ + word * kOfQuarter, kOfQuarter);
  }

 private:
  static constexpr std::size_t kQuarters = 4;
  const std::byte* begin_;
  std::size_t quarter_;
};

/// Calls each(word, p) for every word of the slice, with a pointer to its 64 elements. If the last word is
/// not whole, its elements come in a copy that is filled up with zeros. If `each` returns false, this stops
/// there and returns false.
template <typename T, class Each>
HWY_INLINE bool for_each_word(std::span<const std::byte> dense, Each each) {
  const std::byte* p = dense.data();
  const std::size_t elements = dense.size() / sizeof(T), whole = elements / kWordElements;
  const NextSlice next(dense);
  for (std::size_t word = 0; word < whole; ++word, p += kWordElements * sizeof(T)) {
    next.prefetch<T>(word);
    if (!each(word, reinterpret_cast<const T*>(p))) return false;
  }
  if (elements % kWordElements == 0) return true;
  T last[kWordElements] = {};
  std::memcpy(last, p, elements % kWordElements * sizeof(T));
  return each(whole, last);
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NZCL_KERNELS_WORDS_INL_H

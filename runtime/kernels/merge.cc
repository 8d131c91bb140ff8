#include "runtime/kernels/merge.h"

#include "runtime/base/bitmap.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/merge.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

template <class Format, ReduceOp op>
struct Merge {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  using D = PackTag<Lane>;

  /// Calls each(lane, v) for the vectors of the source's next word. It holds the elements in `bits`; the
  /// others come as zeros, because that is what a missing element counts as.
  template <class Each>
  static HWY_INLINE void take(MergeSource& source, std::uint64_t bits, Each each) {
    const std::size_t used = popcount(bits);
    const Element* from = reinterpret_cast<const Element*>(source.values);
    Element last[kWordElements];
    if (source.count < kWordElements) {  // vectors would read beyond the end
      std::memset(last, 0, sizeof last);
      std::memcpy(last, from, used * sizeof(Element));
      from = last;
    }
    expand_word<Format>(from, bits, each);
    source.values += used * sizeof(Element);
    source.count -= used;
  }

  static HWY_INLINE std::uint64_t bits_of(const MergeSource& source, std::size_t word, std::uint64_t all) {
    return source.bitmap == nullptr ? all : source.bitmap[word];
  }

  /// Sums one word over all sources. A source that holds none of it is a source of zeros.
  static HWY_INLINE void sum(std::span<MergeSource> sources, std::size_t word, std::uint64_t all,
                             Lane* lanes) {
    const D d;
    take(sources[0], bits_of(sources[0], word, all),
         [&](std::size_t lane, auto v) HWY_ATTR { hn::Store(v, d, lanes + lane); });
    for (MergeSource& source : sources.subspan(1)) {
      take(source, bits_of(source, word, all), [&](std::size_t lane, auto v) HWY_ATTR {
        hn::Store(combine<op>(d, hn::Load(d, lanes + lane), v), d, lanes + lane);
      });
    }
  }

  static std::size_t run(std::span<MergeSource> sources, std::size_t elements, std::uint64_t* any, int ranks,
                         std::span<std::byte> packed) noexcept {
    Finisher<Format, op> out(ranks, packed);
    const bool all_ranks = sources.size() == static_cast<std::size_t>(ranks);
    std::size_t total = 0;
    for (std::size_t word = 0; word < words_for(elements); ++word) {
      const std::uint64_t all = low_bits(elements - word * kWordElements);
      std::uint64_t united = 0;
      for (const MergeSource& source : sources) united |= bits_of(source, word, all);
      total += popcount(united);
      if (united != 0) {
        alignas(kCacheLine) Lane lanes[kWordElements];
        sum(sources, word, all, lanes);
        out.put(united, all_ranks ? 0 : united, lanes);
      }
      any[word] = united;  // which may be where a source has its bits
    }
    return total;
  }
};

MergeFn select_merge(DataType type, ReduceOp op) {
  return by_type_and_op(type, op,
                        []<class Format, ReduceOp kOp>() -> MergeFn { return &Merge<Format, kOp>::run; });
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(select_merge);

MergeFn merge_kernel(DataType type, ReduceOp op) noexcept {
  return HWY_DYNAMIC_DISPATCH(select_merge)(type, op);
}

}  // namespace nzcl
#endif  // HWY_ONCE

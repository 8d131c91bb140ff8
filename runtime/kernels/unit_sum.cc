#include "runtime/kernels/unit_sum.h"

#include <array>
#include <bit>
#include <cassert>

#include "runtime/base/bitmap.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/unit_sum.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

/// Sums units with vectors of type `D`.
template <class Format, ReduceOp op, class D>
class UnitSum {
 public:
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;

  UnitSum(std::span<MergeSource> sources, const UnitSlice& slice, std::span<std::byte> packed)
      : slice_(slice),
        sources_(sources.size()),
        to_(reinterpret_cast<Element*>(packed.data())),
        room_(packed.size() / sizeof(Element)) {
    for (std::size_t s = 0; s < sources_; ++s) {
      bitmaps_[s] = sources[s].bitmap;
      next_[s] = reinterpret_cast<const Element*>(sources[s].values);
      ends_[s] = next_[s] + sources[s].count;
    }
  }

  HWY_INLINE void run() {
    const std::size_t words = slice_.any.size();
    for (std::size_t word = 0; word < words; ++word) {
      const std::uint64_t any = slice_.any[word];
      if (any == 0) continue;
      load_bits(word);
      if (word + 1 < words && has_room(popcount(any))) {
        for_each_unit(any, [&](unsigned) HWY_ATTR { sum<true>(slice_.unit_elements); });
      } else {
        sum_last(word, any);
      }
    }
  }

 private:
  void load_bits(std::size_t word) {
    for (std::size_t s = 0; s < sources_; ++s)
      bits_[s] = bitmaps_[s] == nullptr ? ~std::uint64_t{0} : bitmaps_[s][word];
  }

  /// Whether vectors that reach beyond each of a word's units stay within all sources and the output.
  bool has_room(std::size_t units) const {
    const std::size_t beyond = hn::Lanes(D()) - 1;
    bool room = room_ >= units * slice_.unit_elements + beyond;
    for (std::size_t s = 0; s < sources_; ++s) {
      const auto left = static_cast<std::size_t>(ends_[s] - next_[s]);
      room &= bits_[s] == 0 || left >= popcount(bits_[s]) * slice_.unit_elements + beyond;
    }
    return room;
  }

  /// Units near the end, where vectors must not reach beyond them. The slice's last unit may be shorter.
  void sum_last(std::size_t word, std::uint64_t any) {
    const std::size_t last = (slice_.elements - 1) / slice_.unit_elements;
    for_each_unit(any, [&](unsigned bit) HWY_ATTR {
      const std::size_t unit = word * 64 + bit;
      sum<false>(unit == last ? slice_.elements - unit * slice_.unit_elements : slice_.unit_elements);
    });
  }

  /// Calls each() for every unit in `any`, with holders_ and pointers_ set to the sources that hold it.
  template <class Each>
  HWY_INLINE void for_each_unit(std::uint64_t any, Each each) {
    for (; any != 0; any &= any - 1) {
      const auto bit = static_cast<unsigned>(std::countr_zero(any));
      // Which sources hold a unit cannot be predicted, so that is found out without branches.
      holders_ = 0;
      for (std::size_t s = 0; s < sources_; ++s) {
        held_by_[holders_] = s;
        holders_ += bits_[s] >> bit & 1;
      }
      each(bit);
    }
  }

  /// Sums the next unit of the holders. With `beyond`, whole vectors are read and written, also behind the
  /// unit's end: what is written there is written again with the next unit.
  template <bool beyond>
  HWY_INLINE void sum(std::size_t elements) {
    const D d;
    std::size_t at = 0;
    for (; beyond ? at < elements : at + hn::Lanes(d) <= elements; at += hn::Lanes(d)) sum_at(d, at);
    if constexpr (!beyond) {
      for (; at < elements; ++at) sum_at(hn::CappedTag<Lane, 1>(), at);
    }
    for (std::size_t i = 0; i < holders_; ++i) next_[held_by_[i]] += elements;
    to_ += elements;
    room_ -= elements;
  }

  template <class Tag>
  HWY_INLINE void sum_at(Tag d, std::size_t at) {
    auto v = Format::load(d, next_[held_by_[0]] + at);
    for (std::size_t i = 1; i < holders_; ++i)
      v = combine<op>(d, v, Format::load(d, next_[held_by_[i]] + at));
    if constexpr (kZeroMatters<op, Lane>) {
      if (holders_ < static_cast<std::size_t>(slice_.ranks)) v = combine<op>(d, v, hn::Zero(d));
    }
    Format::store(d, settle<op>(d, v, slice_.ranks), to_ + at);
  }

  const UnitSlice& slice_;
  const std::size_t sources_;
  std::array<const std::uint64_t*, kMostUnitSources> bitmaps_;
  std::array<std::uint64_t, kMostUnitSources> bits_;  // of the present word
  std::array<const Element*, kMostUnitSources> next_, ends_;
  std::array<std::size_t, kMostUnitSources + 1> held_by_;
  std::size_t holders_ = 0;
  Element* to_;
  std::size_t room_;
};

template <class Format, ReduceOp op>
void sum_units(std::span<MergeSource> sources, const UnitSlice& slice, std::span<std::byte> packed) noexcept {
  using Lane = typename Format::Lane;
  constexpr std::size_t kFew = 4;  // what is faster with short vectors
  if (slice.unit_elements <= kFew) {
    UnitSum<Format, op, hn::CappedTag<Lane, kFew>>(sources, slice, packed).run();
  } else {
    UnitSum<Format, op, PackTag<Lane>>(sources, slice, packed).run();
  }
}

UnitSumFn select_unit_sum(DataType type, ReduceOp op) {
  return by_type_and_op(type, op,
                        []<class Format, ReduceOp kOp>() -> UnitSumFn { return &sum_units<Format, kOp>; });
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(select_unit_sum);

UnitSumFn unit_sum_kernel(DataType type, ReduceOp op) noexcept {
  return HWY_DYNAMIC_DISPATCH(select_unit_sum)(type, op);
}

}  // namespace nzcl
#endif  // HWY_ONCE

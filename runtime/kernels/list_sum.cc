#include "runtime/kernels/list_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <type_traits>
#include <utility>

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/list_sum.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

using Key = std::uint64_t;
constexpr int kOffsetShift = 32;
/// Whether a key has another offset than one that has been combined with it by XOR.
HWY_INLINE bool same_offset(Key differ) { return differ >> kOffsetShift == 0; }

/// Returns how many keys have another offset than the one before.
std::size_t count_offsets(const Key* keys, std::size_t count) {
  if (count == 0) return 0;
  const hn::ScalableTag<Key> d;
  std::size_t same = 0, i = 1;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto differ =
        hn::ShiftRight<kOffsetShift>(hn::Xor(hn::LoadU(d, keys + i - 1), hn::LoadU(d, keys + i)));
    same += hn::CountTrue(d, hn::Eq(differ, hn::Zero(d)));
  }
  for (; i < count; ++i) same += same_offset(keys[i - 1] ^ keys[i]);
  return count - same;
}

/// Whether the key of an earlier list comes before that of a later one: also if they have the same offset.
HWY_INLINE bool comes_first(Key earlier, Key later) { return earlier <= (later | 0xffffffffu); }

/// One of several merges whose steps alternate. Which list has the next key cannot be predicted, so a step
/// has no branch. But it must wait for the result of the step before it; while it waits, the CPU executes the
/// steps of the other merges. All have made as many steps, so each only knows how many keys of `a` it has
/// taken: the fewer numbers a loop changes, the more of them stay in registers.
struct SideMerge {
  const Key *a, *b;
  std::size_t a_size, b_size;
  Key* out;
  std::size_t taken = 0;  // of a

  std::size_t certain_steps(std::size_t steps) const {
    return std::min(a_size - taken, b_size + taken - steps);
  }
  void finish(std::size_t steps) {
    while (certain_steps(steps) > 0) {
      const bool takes_a = comes_first(a[taken], b[steps - taken]);
      out[steps] = takes_a ? a[taken] : b[steps - taken];
      taken += takes_a, ++steps;
    }
    const std::size_t left = a_size - taken;
    std::copy_n(a + taken, left, out + steps);
    std::copy_n(b + (steps - taken), b_size + taken - steps, out + steps + left);
  }
};

HWY_INLINE void merge_step(const Key* a, const Key* b, std::size_t step, std::size_t& taken, Key* out) {
  const Key x = a[taken], y = b[step - taken];
  const bool takes_a = comes_first(x, y);
  out[step] = takes_a ? x : y;
  taken += takes_a;
}

/// Merges two ascending lists of keys. `out` overlaps neither.
void merge_keys(std::span<const Key> a, std::span<const Key> b, Key* out) {
  constexpr std::size_t kSides = 4;
  std::array<SideMerge, kSides> sides;
  std::size_t a_begin = 0, b_begin = 0;
  for (std::size_t i = 0; i < kSides; ++i) {
    // The keys are divided among the sides so that each has the same number of those in `a`.
    const std::size_t a_end = a.size() * (i + 1) / kSides;
    const auto b_at = a_end == a.size()
                          ? b.end()
                          : std::lower_bound(b.begin(), b.end(), a[a_end] >> kOffsetShift << kOffsetShift);
    const auto b_end = static_cast<std::size_t>(b_at - b.begin());
    sides[i] = {a.data() + a_begin, b.data() + b_begin, a_end - a_begin, b_end - b_begin,
                out + a_begin + b_begin};
    a_begin = a_end, b_begin = b_end;
  }
  auto& [s0, s1, s2, s3] = sides;
  std::size_t step = 0;
  for (;;) {
    std::size_t certain = s0.certain_steps(step);
    for (const SideMerge& side : sides) certain = std::min(certain, side.certain_steps(step));
    if (certain == 0) break;
    std::size_t t0 = s0.taken, t1 = s1.taken, t2 = s2.taken, t3 = s3.taken;
    for (const std::size_t end = step + certain; step < end; ++step) {
      merge_step(s0.a, s0.b, step, t0, s0.out);
      merge_step(s1.a, s1.b, step, t1, s1.out);
      merge_step(s2.a, s2.b, step, t2, s2.out);
      merge_step(s3.a, s3.b, step, t3, s3.out);
    }
    s0.taken = t0, s1.taken = t1, s2.taken = t2, s3.taken = t3;
  }
  for (SideMerge& side : sides) side.finish(step);
}

template <class Format, ReduceOp op>
struct Lists {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  static constexpr ReduceOp kCombined = op == ReduceOp::avg ? ReduceOp::sum : op;

  /// Whether a lane fits a key, in which it then stands in place of its number.
  static constexpr bool kInKey = sizeof(Lane) == sizeof(std::uint32_t);
  using One = hn::CappedTag<Lane, 1>;
  /// Whether lanes are results once they are settled.
  static constexpr bool kInPlace = std::is_same_v<Element, Lane>;

  static void enter(const ElementList& list, std::size_t before, std::byte* lanes, Key* keys) noexcept {
    const auto* const values = reinterpret_cast<const Element*>(list.values);
    if constexpr (kInKey) {
      enter_lanes(list.offsets, values, keys);
    } else {
      static_assert(std::is_same_v<Element, Lane>);
      std::memcpy(lanes + before * sizeof(Lane), values, list.offsets.size() * sizeof(Lane));
      for (std::size_t i = 0; i < list.offsets.size(); ++i)
        keys[i] = Key{list.offsets[i]} << kOffsetShift | (before + i);
    }
  }

  static void enter_lanes(std::span<const std::uint32_t> offsets, const Element* values, Key* keys) {
    const hn::ScalableTag<Key> d;
    const hn::Rebind<std::uint32_t, decltype(d)> half;
    const hn::Rebind<Lane, decltype(d)> lane;
    const std::size_t step = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + step <= offsets.size(); i += step) {
      const auto high = hn::ShiftLeft<kOffsetShift>(hn::PromoteTo(d, hn::LoadU(half, offsets.data() + i)));
      const auto low = hn::PromoteTo(d, hn::BitCast(half, Format::load(lane, values + i)));
      hn::StoreU(hn::Or(high, low), d, keys + i);
    }
    for (; i < offsets.size(); ++i) {
      Lane value;
      hn::StoreU(Format::load(One(), values + i), One(), &value);
      keys[i] = Key{offsets[i]} << kOffsetShift | std::bit_cast<std::uint32_t>(value);
    }
  }

  static void combine(std::span<const Key> keys, const std::byte* lanes, int ranks, std::byte* spare,
                      std::uint32_t* offsets, std::byte* packed) noexcept {
    auto* const sums = reinterpret_cast<Lane*>(kInPlace ? packed : spare);
    const std::size_t count = combine_lanes(keys, reinterpret_cast<const Lane*>(lanes), ranks, offsets, sums);
    if (!kInPlace) finish(sums, count, ranks, packed);
  }

  /// Few offsets are there more than once, so most keys come in whole vectors without such an offset.
  static std::size_t combine_lanes(std::span<const Key> keys, const Lane* lanes, int ranks,
                                   std::uint32_t* offsets, Lane* to) {
    const std::size_t step = hn::Lanes(hn::ScalableTag<Key>());
    std::size_t count = 0;
    for (std::size_t i = 0; i < keys.size();) {
      if (i + step < keys.size() && put_singles(keys.data() + i, ranks, offsets + count, to + count)) {
        i += step, count += step;
        continue;
      }
      for (const std::size_t end = std::min(i + step, keys.size()); i < end; ++count) {
        offsets[count] = static_cast<std::uint32_t>(keys[i] >> kOffsetShift);
        i += put_one(keys.subspan(i), lanes, ranks, to + count);
      }
    }
    return count;
  }

  /// Puts as many elements as a vector has keys, if only one rank has each of them. Reads a key more.
  static HWY_INLINE bool put_singles(const Key* keys, int ranks, std::uint32_t* offsets, Lane* to) {
    if constexpr (!kInKey) {
      return false;
    } else {
      const hn::ScalableTag<Key> d;
      const hn::Rebind<std::uint32_t, decltype(d)> half;
      const hn::Rebind<Lane, decltype(d)> lane;
      const auto here = hn::LoadU(d, keys), differ = hn::Xor(here, hn::LoadU(d, keys + 1));
      if (!hn::AllFalse(d, hn::Eq(hn::ShiftRight<kOffsetShift>(differ), hn::Zero(d)))) return false;
      hn::StoreU(hn::TruncateTo(half, hn::ShiftRight<kOffsetShift>(here)), half, offsets);
      const auto values = hn::BitCast(lane, hn::TruncateTo(half, here));
      put(lane, ranks > 1 ? combine_two(lane, values, hn::Zero(lane)) : values, ranks, to);
      return true;
    }
  }

  template <class D>
  static HWY_INLINE void put(D d, hn::Vec<D> sum, int ranks, Lane* to) {
    hn::StoreU(kInPlace ? settle<op>(d, sum, ranks) : sum, d, to);
  }

  static HWY_INLINE hn::Vec<One> value_of(Key key, [[maybe_unused]] const Lane* lanes) {
    if constexpr (kInKey) {
      return hn::Set(One(), std::bit_cast<Lane>(static_cast<std::uint32_t>(key)));
    } else {
      return hn::LoadU(One(), lanes + static_cast<std::uint32_t>(key));
    }
  }

  /// Puts the first key's element, and returns how many ranks have it.
  static HWY_INLINE std::size_t put_one(std::span<const Key> keys, const Lane* lanes, int ranks, Lane* to) {
    auto sum = value_of(keys[0], lanes);
    std::size_t held = 1;
    for (; held < keys.size() && same_offset(keys[held] ^ keys[0]); ++held)
      sum = combine_two(One(), sum, value_of(keys[held], lanes));
    if (held < static_cast<std::size_t>(ranks)) sum = combine_two(One(), sum, hn::Zero(One()));
    put(One(), sum, ranks, to);
    return held;
  }

  template <class D, class V>
  static HWY_INLINE V combine_two(D d, V a, V b) {
    return nzcl::HWY_NAMESPACE::combine<kCombined>(d, a, b);
  }

  static void finish(const Lane* from, std::size_t count, int ranks, std::byte* packed) {
    const PackTag<Lane> d;
    const std::size_t n = hn::Lanes(d);
    auto* to = reinterpret_cast<Element*>(packed);
    for (; count >= n; count -= n, from += n, to += n)
      Format::store(d, finish_lanes<op>(d, hn::LoadU(d, from), bits_at(d, 0, 0), ranks), to);
    if (count == 0) return;
    HWY_ALIGN_MAX Lane last[kWordElements] = {};
    HWY_ALIGN_MAX Element finished[kWordElements];
    std::memcpy(last, from, count * sizeof(Lane));
    Format::store(d, finish_lanes<op>(d, hn::LoadU(d, last), bits_at(d, 0, 0), ranks), finished);
    std::memcpy(to, finished, count * sizeof(Element));
  }
};

template <class Format, ReduceOp op>
const ListKernels* kernels_of() {
  using Kernels = Lists<Format, op>;
  static constexpr ListKernels kKernels{.enter = &Kernels::enter, .combine = &Kernels::combine};
  return &kKernels;
}

const ListKernels* select_lists(DataType type, ReduceOp op) {
  return by_type_and_op(type, op, []<class Format, ReduceOp kOp>() { return kernels_of<Format, kOp>(); });
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(select_lists);
HWY_EXPORT(merge_keys);
HWY_EXPORT(count_offsets);

const ListKernels* list_kernels(DataType type, ReduceOp op) noexcept {
  return HWY_DYNAMIC_DISPATCH(select_lists)(type, op);
}

ListSum::ListSum()
    : keys_(new std::uint64_t[kMostListed]),
      next_(new std::uint64_t[kMostListed]),
      merged_(new std::uint64_t[kMostListed]),
      lanes_(new std::byte[kMostListed * kMostLaneBytes]),
      spare_(new std::byte[kMostListed * kMostLaneBytes]) {}

void ListSum::start(DataType type, ReduceOp op, int ranks) {
  kernels_ = list_kernels(type, op);
  ranks_ = ranks;
  count_ = 0;
}

void ListSum::add(const ElementList& list) {
  const std::size_t more = list.offsets.size();
  assert(count_ + more <= kMostListed);
  std::uint64_t* const to = count_ == 0 ? keys_.get() : next_.get();
  kernels_->enter(list, count_, lanes_.get(), to);
  if (count_ > 0) {
    HWY_DYNAMIC_DISPATCH(merge_keys)
    (std::span<const std::uint64_t>(keys_.get(), count_), std::span<const std::uint64_t>(to, more),
     merged_.get());
    std::swap(keys_, merged_);
  }
  count_ += more;
}

std::size_t ListSum::unite() const { return HWY_DYNAMIC_DISPATCH(count_offsets)(keys_.get(), count_); }

void ListSum::emit(std::span<std::byte> packed, std::uint32_t* offsets) {
  if (count_ == 0) return;
  kernels_->combine({keys_.get(), count_}, lanes_.get(), ranks_, spare_.get(), offsets, packed.data());
}

}  // namespace nzcl
#endif  // HWY_ONCE

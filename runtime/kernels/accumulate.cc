#include "runtime/kernels/accumulate.h"

#include "runtime/base/bitmap.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/accumulate.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/kernels/finish-inl.h"
#include "runtime/kernels/offsets-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

template <class Format, ReduceOp op>
struct Accumulate {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  using D = PackTag<Lane>;
  using One = hn::CappedTag<Lane, 1>;

  static Lane* lanes_of(std::byte* lanes) { return reinterpret_cast<Lane*>(lanes); }
  static HWY_INLINE void clear_word(Lane* lanes) {
    const auto v = hn::Set(D(), identity<op, Lane>());
    for (std::size_t i = 0; i < kWordElements; i += hn::Lanes(D())) hn::Store(v, D(), lanes + i);
  }

  static void clear(std::byte* lanes, std::size_t words) noexcept {
    for (std::size_t word = 0; word < words; ++word) clear_word(lanes_of(lanes) + word * kWordElements);
  }

  static void add_all(std::byte* lanes, const std::byte* values, std::size_t elements) noexcept {
    Lane* const to = lanes_of(lanes);
    const auto* const from = reinterpret_cast<const Element*>(values);
    std::size_t i = 0;
    for (const D d; elements - i >= hn::Lanes(d); i += hn::Lanes(d)) {
      prefetch_to_read(reinterpret_cast<const std::byte*>(from + i) + kPrefetchBytes,
                       sizeof(Element) * hn::Lanes(d));
      hn::StoreU(combine<op>(d, hn::LoadU(d, to + i), Format::load(d, from + i)), d, to + i);
    }
    for (; i < elements; ++i) add_one(to + i, from + i);
  }

  static HWY_INLINE void add_one(Lane* to, const Element* from) {
    const One d;
    hn::StoreU(combine<op>(d, hn::LoadU(d, to), Format::load(d, from)), d, to);
  }

  static void add_bitmap(std::byte* lanes, std::span<const std::uint64_t> bitmap,
                         std::span<const std::byte> values) noexcept {
    PackedReader<Element> in(values.data(), values.size() / sizeof(Element));
    for_each_nonzero_word(bitmap.data(), bitmap.size(), [&](std::size_t word) HWY_ATTR {
      const std::uint64_t bits = bitmap[word];
      Lane* const to = lanes_of(lanes) + word * kWordElements;
      expand_word<Format>(in.take(popcount(bits)), bits, [&](std::size_t lane, auto v) HWY_ATTR {
        const D d;
        const auto before = hn::Load(d, to + lane);
        // Lanes whose bits are not set keep their value. Combining them with a zero would change those that
        // still hold the operation's identity.
        const auto after =
            hn::IfThenElse(to_mask(d, bits_at(d, bits, lane)), combine<op>(d, before, v), before);
        hn::Store(after, d, to + lane);
      });
    });
  }

  static void add_offsets(std::byte* lanes, std::span<const std::uint16_t> offsets,
                          const std::byte* values) noexcept {
    Lane* const to = lanes_of(lanes);
    const auto* const from = reinterpret_cast<const Element*>(values);
    for (std::size_t i = 0; i < offsets.size(); ++i) add_one(to + offsets[i], from + i);
  }
};

template <class Format, ReduceOp op>
struct Emit {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  using Adds = Accumulate<Format, op == ReduceOp::avg ? ReduceOp::sum : op>;

  static constexpr Lane kIdentity = identity<op, Lane>();

  static void words(std::byte* lanes, std::span<const std::uint64_t> any, const std::uint64_t* all, int ranks,
                    std::span<std::byte> packed) noexcept {
    Finisher<Format, op> out(ranks, packed);
    for_each_nonzero_word(any.data(), any.size(), [&](std::size_t word) HWY_ATTR {
      Lane* const from = reinterpret_cast<Lane*>(lanes) + word * kWordElements;
      out.put(any[word], any[word] & ~all[word], from);
      Adds::clear_word(from);
    });
  }

  /// Fetches the lanes of up to 64 offsets and clears them.
  static HWY_INLINE void fetch(Lane* lanes, const std::uint64_t* all, const std::uint16_t* offsets,
                               std::size_t count, Lane* to) {
    const typename Adds::One d;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t offset = offsets[i];
      auto v = hn::LoadU(d, lanes + offset);
      hn::StoreU(hn::Set(d, kIdentity), d, lanes + offset);
      if constexpr (kZeroMatters<op, Lane>) {
        const bool skipped = (all[offset / 64] >> offset % 64 & 1) == 0;
        v = hn::IfThenElse(to_mask(d, skipped), combine<op>(d, v, hn::Zero(d)), v);
      }
      hn::StoreU(v, d, to + i);
    }
  }

  /// The same as words() for callers that have the union as a list.
  static void listed(std::byte* lanes, std::span<const std::uint16_t> offsets, const std::uint64_t* all,
                     int ranks, std::span<std::byte> packed) noexcept {
    PackedWriter<Element> out(packed.data(), packed.size() / sizeof(Element));
    for (std::size_t i = 0; i < offsets.size(); i += kWordElements) {
      put(reinterpret_cast<Lane*>(lanes), all, offsets.data() + i,
          std::min(kWordElements, offsets.size() - i), ranks, out);
    }
  }

  static HWY_INLINE void put(Lane* lanes, const std::uint64_t* all, const std::uint16_t* offsets,
                             std::size_t count, int ranks, PackedWriter<Element>& out) {
    Lane fetched[kWordElements];
    fetch(lanes, all, offsets, count, fetched);
    out.put(count, [&](Element* packed) HWY_ATTR {
      const PackTag<Lane> d;
      for (std::size_t i = 0; i < count; i += hn::Lanes(d))
        Format::store(d, settle<op>(d, hn::LoadU(d, fetched + i), ranks), packed + i);
    });
  }
};

template <class Format, ReduceOp op>
const AccumulateKernels* kernels() {
  using Adds = typename Emit<Format, op>::Adds;
  static constexpr AccumulateKernels kKernels{
      .lane_bytes = sizeof(typename Format::Lane),
      .clear = &Adds::clear,
      .add_all = &Adds::add_all,
      .add_bitmap = &Adds::add_bitmap,
      .add_offsets = &Adds::add_offsets,
      .emit = &Emit<Format, op>::words,
      .emit_offsets = &Emit<Format, op>::listed,
  };
  return &kKernels;
}

const AccumulateKernels* select_accumulate(DataType type, ReduceOp op) {
  return by_type_and_op(type, op, []<class Format, ReduceOp kOp>() { return kernels<Format, kOp>(); });
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(select_accumulate);

const AccumulateKernels* accumulate_kernels(DataType type, ReduceOp op) noexcept {
  return HWY_DYNAMIC_DISPATCH(select_accumulate)(type, op);
}

}  // namespace nzcl
#endif  // HWY_ONCE

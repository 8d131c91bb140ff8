// The kernel that sums what several GPUs have, over slices of which each GPU sums a share; see bodies.h.
// Every element gets the bits that runtime/kernels/reduce.h gives it on the host: these are its plain loops.
#pragma once

#include "runtime/gpu/kernels/bodies.h"

namespace nzcl::gpu {

// ---- Formats: how elements come from memory into the type they are summed in, and back.

template <typename To, typename From>
NZCL_ON_GPU inline To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

template <unsigned kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using Type = std::uint8_t;
};
template <>
struct UnsignedOf<2> {
  using Type = std::uint16_t;
};
template <>
struct UnsignedOf<4> {
  using Type = std::uint32_t;
};
template <>
struct UnsignedOf<8> {
  using Type = std::uint64_t;
};
template <typename T>
using UnsignedLike = typename UnsignedOf<sizeof(T)>::Type;

template <typename T>
struct PlainFormat {
  using Element = T;
  using Lane = T;
  static constexpr bool kFloating = T(0.5) != T(0);
  NZCL_ON_GPU static Lane widen(Element e) { return e; }
  NZCL_ON_GPU static Element narrow(Lane v) { return v; }
};

struct WideByteFormat {
  using Element = std::uint8_t;
  using Lane = std::int32_t;
  static constexpr bool kFloating = false;
  NZCL_ON_GPU static Lane widen(Element e) { return e; }
  NZCL_ON_GPU static Element narrow(Lane v) { return static_cast<Element>(v); }
};

struct BfloatFormat {
  using Element = std::uint16_t;
  using Lane = float;
  static constexpr bool kFloating = true;
  NZCL_ON_GPU static Lane widen(Element e) { return bits_as<float>(std::uint32_t{e} << 16); }
  /// To nearest even. A NaN is the one that settle() makes, whose lower half is 0.
  NZCL_ON_GPU static Element narrow(Lane v) {
    const auto bits = bits_as<std::uint32_t>(v);
    return static_cast<Element>((bits + (bits >> 16 & 1) + 0x7fff) >> 16);
  }
};

struct HalfFormat {
  using Element = std::uint16_t;
  using Lane = float;
  static constexpr bool kFloating = true;
  NZCL_ON_GPU static Lane widen(Element e) {
    const std::uint32_t magnitude = (e & 0x7fffU) << 13, exponent = e & 0x7c00U, sign = (e & 0x8000U) << 16;
    constexpr std::uint32_t kBias = std::uint32_t{127 - 15} << 23, kOne = std::uint32_t{127 - 14} << 23;
    std::uint32_t bits = magnitude + kBias;
    if (exponent == 0x7c00) bits += kBias;  // infinity and NaN
    // A subnormal number gets the leading 1 of 2^-14, which is then subtracted exactly.
    if (exponent == 0) bits = bits_as<std::uint32_t>(bits_as<float>(magnitude + kOne) - bits_as<float>(kOne));
    return bits_as<float>(bits | sign);
  }
  /// To nearest even.
  NZCL_ON_GPU static Element narrow(Lane v) {
    const auto all = bits_as<std::uint32_t>(v);
    const std::uint32_t magnitude = all & 0x7fffffff, sign = all >> 16 & 0x8000;
    std::uint32_t bits = 0;
    if (magnitude >= std::uint32_t{127 + 16} << 23) {
      bits = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    } else if (magnitude < std::uint32_t{127 - 14} << 23) {
      // Next to 0.5, float32 has the spacing 2^-24 of float16's subnormals, so that adding 0.5 rounds.
      bits = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5F) - bits_as<std::uint32_t>(0.5F);
    } else {
      bits = (magnitude - ((std::uint32_t{127 - 15} << 23) - 0xfff) + (magnitude >> 13 & 1)) >> 13;
    }
    return static_cast<Element>(bits | sign);
  }
};

// ---- Operations.

template <typename Format, SumOp kOp>
NZCL_ON_GPU inline typename Format::Lane combine(typename Format::Lane so_far, typename Format::Lane next) {
  using Lane = typename Format::Lane;
  using Bits = UnsignedLike<Lane>;
  if constexpr (kOp == SumOp::sum || kOp == SumOp::avg) {
    if constexpr (Format::kFloating) return so_far + next;
    return bits_as<Lane>(static_cast<Bits>(bits_as<Bits>(so_far) + bits_as<Bits>(next)));
  } else {
    const bool better = kOp == SumOp::min ? next < so_far : so_far < next;
    if constexpr (Format::kFloating) {
      // Equal values have the same bits, but for the sign of zero: min takes a minus from either, max keeps
      // it only if both have it.
      if (next == so_far)
        return bits_as<Lane>(kOp == SumOp::min ? bits_as<Bits>(next) | bits_as<Bits>(so_far)
                                               : bits_as<Bits>(next) & bits_as<Bits>(so_far));
      return better || next != next ? next : so_far;
    }
    return better ? next : so_far;
  }
}

/// The zero of the ranks that skipped the block, the division, and the one form of NaN.
template <typename Format, SumOp kOp>
NZCL_ON_GPU inline typename Format::Element finish(typename Format::Lane v, bool with_zero, int ranks) {
  using Lane = typename Format::Lane;
  constexpr bool kExtreme = kOp == SumOp::min || kOp == SumOp::max;
  if constexpr (kExtreme || Format::kFloating) {
    if (with_zero) v = combine<Format, kOp>(v, Lane(0));
  }
  if constexpr (kOp == SumOp::avg) v = static_cast<Lane>(v / static_cast<Lane>(ranks));
  if constexpr (Format::kFloating) {
    constexpr auto kNan =
        static_cast<UnsignedLike<Lane>>(sizeof(Lane) == 4 ? 0x7fc00000 : 0x7ff8000000000000);
    if (v != v) v = bits_as<Lane>(kNan);
  }
  return Format::narrow(v);
}

// ---- The kernel.

/// The elements of sixteen bytes, or a single one.
template <typename Element, unsigned kElements>
struct Row {
  static constexpr unsigned kInWord = 8 / sizeof(Element);
  using Unit = Unit16;
  NZCL_ON_GPU static Element element(const Unit& unit, unsigned i) {
    return bits_as<Element>(
        static_cast<UnsignedLike<Element>>(unit.pair[i / kInWord] >> 8 * sizeof(Element) * (i % kInWord)));
  }
  NZCL_ON_GPU static void put(Unit& unit, unsigned i, Element e) {
    unit.pair[i / kInWord] |= std::uint64_t{bits_as<UnsignedLike<Element>>(e)}
                              << 8 * sizeof(Element) * (i % kInWord);
  }
};
template <typename Element>
struct Row<Element, 1> {
  using Unit = Element;
  NZCL_ON_GPU static Element element(const Unit& unit, unsigned) { return unit; }
  NZCL_ON_GPU static void put(Unit& unit, unsigned, Element e) { unit = e; }
};

/// What holds a block: `from` has the addresses of all contributions, and `holders` a bit for each rank that
/// has the block.
struct Holders {
  const std::uint64_t* from = nullptr;
  std::uint32_t ranks = 0, holders = 0;
  NZCL_ON_GPU bool has(std::uint32_t rank) const { return rank < ranks && (holders >> rank & 1) != 0; }
  NZCL_ON_GPU bool all() const { return holders + 1 == 1U << ranks; }
};

template <typename Format, SumOp kOp, unsigned kElements>
NZCL_ON_GPU inline void sum_row(const Holders& h, std::uint64_t position, std::byte* to) {
  using R = Row<typename Format::Element, kElements>;
  using Unit = typename R::Unit;
  constexpr std::uint32_t kAtOnce = 4;  // memory of other GPUs answers late
  typename Format::Lane sum[kElements] = {};
  bool first = true;
  for (std::uint32_t rank = 0; rank < h.ranks; rank += kAtOnce) {
    Unit units[kAtOnce] = {};
    NZCL_UNROLL for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      if (h.has(rank + i))
        units[i] = load<Unit>(reinterpret_cast<const std::byte*>(h.from[rank + i]) + position);
    }
    NZCL_UNROLL for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      if (!h.has(rank + i)) continue;
      NZCL_UNROLL for (unsigned e = 0; e < kElements; ++e) {
        const auto next = Format::widen(R::element(units[i], e));
        sum[e] = first ? next : combine<Format, kOp>(sum[e], next);
      }
      first = false;
    }
  }
  Unit result{};
  NZCL_UNROLL for (unsigned e = 0; e < kElements; ++e)
      R::put(result, e, finish<Format, kOp>(sum[e], !h.all(), static_cast<int>(h.ranks)));
  store<Unit>(to, result);
}

template <typename Format, SumOp kOp, typename Warp>
NZCL_ON_GPU inline void sum_piece(Warp& warp, const Holders& h, const Piece& piece, bool wide,
                                  std::byte* to) {
  using Element = typename Format::Element;
  constexpr std::uint32_t kWide = sizeof(Unit16), kOne = sizeof(Element);
  const std::uint32_t whole = wide ? piece.bytes / kWide * kWide : 0;
  warp.each_lane([&](unsigned lane) NZCL_INLINE {
    for (std::uint32_t at = lane * kWide; at < whole; at += kLanes * kWide)
      sum_row<Format, kOp, kWide / kOne>(h, piece.position + at, to + at);
    for (std::uint32_t at = whole + lane * kOne; at < piece.bytes; at += kLanes * kOne)
      sum_row<Format, kOp, 1>(h, piece.position + at, to + at);
  });
}

/// `AvgFormat` is that in which averages are summed.
template <typename Format, typename AvgFormat, typename Block>
NZCL_ON_GPU inline void sum_slice(Block& block, const SumJob& job) {
  if (!goes(job.go, job.go_value)) return;
  const std::uint64_t slice = block.index();
  const Pieces pieces(job.shape, slice);
  const std::uint32_t words = (pieces.blocks() + 63) / 64, ranks = job.ranks;
  // Addresses are in pinned memory, and bits on other GPUs: each is read once.
  std::uint64_t* const from = block.words();
  std::uint64_t* const from_bits = from + ranks;
  std::uint64_t* const bits = from_bits + ranks;
  const auto word = [](const auto* at)
                        NZCL_INLINE { return load<std::uint64_t>(reinterpret_cast<const std::byte*>(at)); };
  block.each(ranks, [&](std::uint32_t rank) NZCL_INLINE {
    from[rank] = word(&job.peers->contribution[rank]);
    from_bits[rank] = word(&job.peers->bits[rank]);
  });
  const std::uint64_t first_word = slice * job.shape.words_per_slice();
  block.each(ranks * words, [&](std::uint32_t i) NZCL_INLINE {
    bits[i] = word(reinterpret_cast<const std::uint64_t*>(from_bits[i / words]) + first_word + i % words);
  });
  block.each(words, [&](std::uint32_t w) NZCL_INLINE {
    std::uint64_t any = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) any |= bits[rank * words + w];
    job.union_bits[first_word + w] = any;
  });
  if (slice / job.slices_each != job.rank) return;
  std::byte* const result = job.result - share_begin(job.shape, job.slices_each, job.rank);
  const bool wide = job.shape.block_bytes % sizeof(Unit16) == 0;
  block.each_warp([&](auto& warp) NZCL_INLINE {
    for (std::uint32_t i = warp.index(); i < pieces.count(); i += warp.count()) {
      const Piece piece = pieces.at(i);
      Holders h{.from = from, .ranks = ranks};
      for (std::uint32_t rank = 0; rank < ranks && piece.bytes > 0; ++rank)
        h.holders |= static_cast<std::uint32_t>(bits[rank * words + piece.block / 64] >> piece.block % 64 & 1)
                     << rank;
      if (h.holders == 0) continue;
      std::byte* const to = result + piece.position;
      switch (job.op) {
        case SumOp::sum:
          sum_piece<Format, SumOp::sum>(warp, h, piece, wide, to);
          break;
        case SumOp::avg:
          sum_piece<AvgFormat, SumOp::avg>(warp, h, piece, wide, to);
          break;
        case SumOp::min:
          sum_piece<Format, SumOp::min>(warp, h, piece, wide, to);
          break;
        case SumOp::max:
          sum_piece<Format, SumOp::max>(warp, h, piece, wide, to);
          break;
      }
    }
  });
}

/// One block of threads of a job whose elements are of one type.
template <SumType kType, typename Block>
NZCL_ON_GPU inline void sum_typed(Block& block, const SumJob& job) {
  if constexpr (kType == SumType::float32) {
    sum_slice<PlainFormat<float>, PlainFormat<float>>(block, job);
  } else if constexpr (kType == SumType::float64) {
    sum_slice<PlainFormat<double>, PlainFormat<double>>(block, job);
  } else if constexpr (kType == SumType::float16) {
    sum_slice<HalfFormat, HalfFormat>(block, job);
  } else if constexpr (kType == SumType::bfloat16) {
    sum_slice<BfloatFormat, BfloatFormat>(block, job);
  } else if constexpr (kType == SumType::int32) {
    sum_slice<PlainFormat<std::int32_t>, PlainFormat<std::int32_t>>(block, job);
  } else if constexpr (kType == SumType::int64) {
    sum_slice<PlainFormat<std::int64_t>, PlainFormat<std::int64_t>>(block, job);
  } else {
    sum_slice<PlainFormat<std::uint8_t>, WideByteFormat>(block, job);
  }
}

}  // namespace nzcl::gpu

// Selection fused with error feedback: one pass over a slice of gradient and residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::compress {

/// One slice of a tensor. All pointers are to its first element, and need only the alignment of a float.
///
/// x = factor * gradient + momentum * velocity (without velocity: factor * gradient), and G = residual + x.
struct SliceData {
  const float* gradient = nullptr;
  float* residual = nullptr;
  float* velocity = nullptr;  // nullptr: no momentum
  std::size_t elements = 0;   // at most kMostSliceElements
  float factor = 1;
  float momentum = 0;
};

/// The bits of a magnitude: float32 numbers that are not negative have the order of their bits.
using MagnitudeBits = std::uint32_t;
inline constexpr MagnitudeBits kInfinityBits = 0x7f800000;

/// Bins of a slice: bin i ends before the element ends[i], and the last one ends with the slice.
struct Bins {
  std::span<const std::uint32_t> ends;
};

/// Which elements are selected. Whatever the rule says, a G that is NaN or infinite is selected.
struct Rule {
  enum class Kind : std::uint8_t {
    threshold,      ///< |G| >= threshold, and G is not 0
    bin_threshold,  ///< the same with the threshold of the element's bin
    adacomp,        ///< |G + x| >= the threshold of the bin, and G is not 0
    random          ///< hash(key, element) < draw_below, zeros too
  };
  Kind kind = Kind::threshold;
  MagnitudeBits threshold = 1;  // threshold; at least 1
  /// threshold: also count what reaches this lower one, without selecting it; 0: do not.
  MagnitudeBits lower_threshold = 0;
  Bins bins = {};                                      // bin_threshold, adacomp
  std::span<const MagnitudeBits> bin_thresholds = {};  // one for each bin
  std::uint64_t key = 0;                               // random
  std::uint64_t draw_below = 0;                        // random: of 2^32
};

struct Selected {
  std::size_t count = 0;        // elements that were selected
  std::size_t count_lower = 0;  // elements that reach lower_threshold
};

/// Selects among the elements of the words [first_word, last_word) of the slice, a word being 64 elements;
/// the last word of a slice may be partial. Writes the words of the bitmap, and the selected G to `values`,
/// packed. The residual becomes G, or 0 where an element was selected, and the velocity x, or 0.
///
/// `bitmap` is that of the whole slice. `values` has room for all elements of these words. Nothing is
/// written behind it, and what lies behind the last value within it is arbitrary.
Selected select(const SliceData& slice, const Rule& rule, std::size_t first_word, std::size_t last_word,
                std::span<std::uint64_t> bitmap, std::span<float> values) noexcept;

/// Writes max |G| of each of the bins [first, last), without those G that are not finite, and changes
/// nothing else.
void bin_maxima(const SliceData& slice, const Bins& bins, std::size_t first, std::size_t last,
                std::span<MagnitudeBits> maxima) noexcept;

/// Writes |G| of each element as bits, and changes nothing else.
void magnitudes(const SliceData& slice, std::span<MagnitudeBits> to) noexcept;

/// The sum of squares in float64, in an order that depends on nothing but the number of values.
double sum_of_squares(std::span<const float> values) noexcept;

/// The first value that is NaN or infinite, or the number of values.
std::size_t find_non_finite(std::span<const float> values) noexcept;

/// residual[offsets[i]] = before[i] - sent[i], or 0 where sent[i] is not finite. Returns the number of those.
std::size_t feed_back(std::span<const std::uint16_t> offsets, std::span<const float> before,
                      std::span<const float> sent, float* residual) noexcept;

}  // namespace nzcl::compress

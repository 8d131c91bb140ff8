// Selection fused with error feedback: one pass over a slice of gradient and residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/compress/values.h"

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

/// Bins of a slice: bin i ends before the element ends[i], and the last one ends with the slice.
struct Bins {
  std::span<const std::uint32_t> ends;
};

/// Which elements are selected. Whatever the rule says, a G that is NaN or infinite is selected.
struct Rule {
  enum class Kind : std::uint8_t {
    threshold,      ///< |G| >= threshold, and G is not 0
    bin_threshold,  ///< the same with the threshold of the element's bin
    random          ///< hash(key, element) < draw_below, zeros too
  };
  Kind kind = Kind::threshold;
  // For Kind::threshold:
  MagnitudeBits threshold = 1;  // at least 1, so that zeros are not selected
  /// Elements that reach this lower threshold are counted as well, but not selected. 0: they are not counted.
  MagnitudeBits lower_threshold = 0;
  // For Kind::bin_threshold:
  Bins bins = {};
  std::span<const MagnitudeBits> bin_thresholds = {};  // one for each bin
  // For Kind::random:
  std::uint64_t key = 0;
  std::uint64_t draw_below = 0;  // an element is selected if its 32-bit hash is below this
};

/// What a selection has counted.
struct Selected {
  std::size_t count = 0;        // elements that were selected
  std::size_t count_lower = 0;  // elements that reach lower_threshold
};

/// Selects among the elements of the words [first_word, last_word) of the slice. A word is 64 elements, and
/// the last word of a slice may be partial. Writes the offsets of the selected elements in the slice and
/// their G, one behind the other. Where an element is selected, its residual and velocity become 0; elsewhere
/// the residual becomes G and the velocity becomes x.
///
/// `offsets` and `values` have room for all elements of these words. Nothing is written behind that room, and
/// its content behind the last offset and value is arbitrary.
Selected select(const SliceData& slice, const Rule& rule, std::size_t first_word, std::size_t last_word,
                std::span<std::uint16_t> offsets, std::span<float> values) noexcept;

/// AdaComp's selection in all of the slice: an element is selected if G is not 0 and |G + x| is at least the
/// largest |G| of its bin. Writes these to `maxima`, which has one for each bin; a G that is not finite is
/// left out of them. Else as select().
Selected select_adacomp(const SliceData& slice, const Bins& bins, std::span<MagnitudeBits> maxima,
                        std::span<std::uint16_t> offsets, std::span<float> values) noexcept;

/// Writes the largest |G| of each bin in the same way, and changes nothing else.
void bin_maxima(const SliceData& slice, const Bins& bins, std::span<MagnitudeBits> maxima) noexcept;

/// Writes |G| of each element as bits, and changes nothing else.
void magnitudes(const SliceData& slice, std::span<MagnitudeBits> to) noexcept;

/// Writes those of these magnitudes that are at least `least`, which is not 0, one behind the other, and
/// returns how many. `to` has room for all elements; its content behind the last one is arbitrary.
std::size_t magnitudes_from(const SliceData& slice, MagnitudeBits least,
                            std::span<MagnitudeBits> to) noexcept;

/// What a value that was sent coarsely has lost; nothing if it was not finite.
inline float lost(float before, float sent) {
  const float difference = before - sent;
  return is_finite(sent) ? difference : 0.0f;
}

/// Keeps the rounding errors of the sent values: residual[offsets[i]] = lost(before[i], sent[i]).
void feed_back(std::span<const std::uint16_t> offsets, std::span<const float> before,
               std::span<const float> sent, float* residual) noexcept;

}  // namespace nzcl::compress

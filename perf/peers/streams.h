// Streams of (index, value) pairs, and the loops that the peers of scripts/compare's bed "elements" share:
// merging, and going from pairs to a dense vector and back. The pairs of a stream have ascending indices,
// each at most once. Nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace perf::peers {

struct Pair {
  std::uint32_t index;
  float value;
  friend bool operator==(const Pair&, const Pair&) = default;
};
static_assert(sizeof(Pair) == 8);

using Stream = std::span<const Pair>;

/// A vector in one of two forms. It does not own its memory.
struct Vector {
  Stream pairs;
  std::span<const float> values;  // all elements, if it is dense; otherwise empty

  bool dense() const { return !values.empty(); }
};

/// SparCML's delta (section 5.1 of arXiv 1802.08021): a stream with more pairs than this has more bytes than
/// the dense vector, and is kept and sent as one.
constexpr std::size_t most_pairs(std::size_t elements) { return elements * sizeof(float) / sizeof(Pair); }

/// The sum of two streams. `out` has room for the pairs of both, and overlaps neither. Returns the number of
/// pairs.
std::size_t merge(Stream a, Stream b, Pair* out);

/// The sum of any number of streams, by a tree of merges. `out` and `scratch` each have room for the pairs of
/// all parts, and neither overlaps a part or the other. What is returned lies in `out`, or is the only part.
Stream sum_of(std::span<const Stream> parts, Pair* out, Pair* scratch);

/// dense[p.index] += p.value for each pair p.
void add_to(float* dense, Stream stream);

/// Makes a dense vector of the sum of streams. dense[0] has the index `first`, and no pair lies beyond the
/// last element. Goes over the memory once, window by window. `parts` are empty afterwards.
void sum_densely(std::span<Stream> parts, std::span<float> dense, std::uint32_t first = 0);

/// Writes the elements that are not zero to `out`, and returns their number. dense[0] has the index `first`.
std::size_t collect(std::span<const float> dense, std::uint32_t first, Pair* out);

/// The pairs whose indices are not below `first`, and below `end`.
Stream cut(Stream stream, std::uint64_t first, std::uint64_t end);

}  // namespace perf::peers

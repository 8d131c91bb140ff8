// Slices of single elements: found and packed, and expanded again. README.md says which function is for what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace nzcl {

/// The largest number of elements in one slice. Offsets of its elements fit 16 bits.
inline constexpr std::size_t kMostSliceElements = std::size_t{1} << 16;

/// What scan_and_pack() returns for a slice that does not fit.
inline constexpr std::size_t kTooDense = std::numeric_limits<std::size_t>::max();

/// Reads a dense slice once. Bit i of `bitmap` becomes 1 if element i is not zero, and these elements are
/// written to `values`, one behind the other. An element counts as zero only if all of its bits are 0, so
/// -0.0 does not. Returns the number of elements that are not zero.
///
/// `dense` is a whole number of elements of `element_bytes` (1, 2, 4 or 8). `bitmap` has words_for(elements)
/// words; unused bits become 0. `values` may be too small for all elements that are not zero:
/// then kTooDense is returned as soon as that is seen, and both outputs are arbitrary. The content of
/// `values` behind the last value is arbitrary too. Pointers need only the alignment of the element, and the
/// outputs do not overlap the input.
std::size_t scan_and_pack(std::span<const std::byte> dense, std::size_t element_bytes,
                          std::span<std::uint64_t> bitmap, std::span<std::byte> values) noexcept;

/// Writes the elements of a dense slice that are in `bitmap` to `values`, one behind the other, including
/// those that are zero. `values` has room for all of them. Sizes are those of scan_and_pack(), and unused
/// bits of `bitmap` are 0.
void pack(std::span<const std::byte> dense, std::size_t element_bytes, std::span<const std::uint64_t> bitmap,
          std::span<std::byte> values) noexcept;

/// How an output is written: through the caches, because it is read or written again soon, or past them
/// directly to memory. The latter saves memory traffic, because a cache would first read every line that is
/// written, although all of it is overwritten.
enum class StoreTo : bool { cache, memory };

/// The inverse of pack(): writes a whole dense slice, with the packed `values` at the elements in `bitmap`
/// and zeros elsewhere. `values` holds exactly as many elements as `bitmap` has bits. Stores to memory are
/// complete when this returns, so that the caller may tell another thread.
void expand(std::span<const std::byte> values, std::size_t element_bytes,
            std::span<const std::uint64_t> bitmap, std::span<std::byte> dense, StoreTo where) noexcept;

}  // namespace nzcl

// Slices of single elements: found and packed, and expanded again. README.md says which function is for what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace nzcl {

/// No more elements than this are in one slice, so that offsets fit 16 bits.
inline constexpr std::size_t kMostSliceElements = std::size_t{1} << 16;

/// What scan_and_pack() returns for a slice that does not fit.
inline constexpr std::size_t kTooDense = std::numeric_limits<std::size_t>::max();

/// Reads a dense slice once. Bit i of `bitmap` becomes 1 if element i has any bit set, so for -0.0 too, and
/// these elements are written to `values`, packed. Returns their number.
///
/// `dense` is a whole number of elements of `element_bytes` (1, 2, 4 or 8). `bitmap` has words_for(elements)
/// words; unused bits become 0. `values` need not hold all elements: if there are more than it holds,
/// kTooDense is returned as soon as that is seen, and both outputs are arbitrary. What lies behind the last
/// value within `values` is arbitrary too. Pointers need only the alignment of the element, and the outputs
/// do not overlap the input.
std::size_t scan_and_pack(std::span<const std::byte> dense, std::size_t element_bytes,
                          std::span<std::uint64_t> bitmap, std::span<std::byte> values) noexcept;

/// Writes the elements of a dense slice that are in `bitmap` to `values`, packed, zeros among them too.
/// `values` has room for all of them. Sizes are those of scan_and_pack(), and unused bits of `bitmap` are 0.
void pack(std::span<const std::byte> dense, std::size_t element_bytes, std::span<const std::uint64_t> bitmap,
          std::span<std::byte> values) noexcept;

/// Where a dense output is written to: through the caches, because it is read or written again soon, or past
/// them to memory, which spares memory the reading of lines that are overwritten as a whole.
enum class StoreTo : bool { cache, memory };

/// The other way: writes a whole dense slice, with the packed `values` at the elements in `bitmap` and zeros
/// elsewhere. `values` holds exactly as many elements as `bitmap` has bits. Slices that do not begin at a
/// cache line are always written through the caches. Stores to memory are complete when this returns, so that
/// the caller may tell another thread.
void expand(std::span<const std::byte> values, std::size_t element_bytes,
            std::span<const std::uint64_t> bitmap, std::span<std::byte> dense, StoreTo where) noexcept;

}  // namespace nzcl

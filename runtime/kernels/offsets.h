// The two forms of an index set in memory: a bitmap, and a list of ascending 16-bit offsets. Lists of several
// slices in a row have offsets of 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl {

/// Writes the numbers of the set bits, ascending, and returns how many there are. `bitmap` has at most 1024
/// words (kMostSliceElements), and `offsets` has room for all set bits. The content of `offsets` behind the
/// last offset is arbitrary.
std::size_t offsets_of(std::span<const std::uint64_t> bitmap, std::span<std::uint16_t> offsets) noexcept;

/// Sets the bits of the offsets and clears all others. Every offset is below 64 * bitmap.size().
void bitmap_of(std::span<const std::uint16_t> offsets, std::span<std::uint64_t> bitmap) noexcept;

/// Returns true if the offsets ascend without duplicates and all of them are below `elements`.
bool are_offsets(std::span<const std::uint16_t> offsets, std::size_t elements) noexcept;

/// Copies the offsets of a list, which have 32 bits each and may be a peer's: each is counted from `first` on
/// in the list, and from `base` on in the copy. Returns true if the copies ascend without duplicates, and all
/// of them are in the `elements` elements from `base` on. Precondition: base + elements <= 2^32.
bool copy_offsets(std::span<const std::byte> list, std::uint32_t first, std::uint32_t base,
                  std::uint64_t elements, std::uint32_t* to) noexcept;

/// Writes first + offset for each offset, and the other way round: offset - first, which fits 16 bits.
void widen_offsets(std::span<const std::uint16_t> offsets, std::uint32_t first, std::uint32_t* to) noexcept;
void narrow_offsets(std::span<const std::uint32_t> offsets, std::uint32_t first, std::uint16_t* to) noexcept;

/// set_size() counts the elements of a set, and set_runs() the runs of neighbours among them. They use
/// vectors; for small bitmaps, count_bits() and count_runs() of runtime/base/bitmap.h will do.
std::size_t set_size(std::span<const std::uint64_t> bitmap) noexcept;
std::size_t set_runs(std::span<const std::uint64_t> bitmap) noexcept;
std::size_t set_runs(std::span<const std::uint16_t> offsets) noexcept;

/// any |= bits and all &= bits, word by word. The three spans have the same length.
void unite(std::span<const std::uint64_t> bits, std::span<std::uint64_t> any,
           std::span<std::uint64_t> all) noexcept;

}  // namespace nzcl

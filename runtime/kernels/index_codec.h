// Index sets of slices of single elements as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl {

/// An index set of `count` elements of a slice of `elements` is coded in one of these ways, all
/// little-endian:
/// - bitmap: words_for(elements) words of 64 bits.
/// - offsets: each offset in 16 bits.
/// - gaps: for each element a byte g below 255, the number of elements before it that are left out, counted
///   from the one before; before that byte, 0xff for every 255 more that are left out.
/// - runs: for each run of neighbours its first offset and its length less 1, in 16 bits each.
///
/// A set has exactly one encoding in each code, and decoders refuse every other. They return false where the
/// bytes are not that encoding of `count` elements of the slice; the output is arbitrary then. They read and
/// write nothing beyond their spans, whatever the bytes are.

constexpr std::size_t bitmap_bytes(std::size_t elements) { return (elements + 63) / 64 * 8; }
constexpr std::size_t offsets_bytes(std::size_t count) { return 2 * count; }
std::size_t gaps_bytes(std::span<const std::uint16_t> offsets) noexcept;
/// The same, without looking at the offsets: no set of this size needs more. It is close where sets are so
/// dense that gaps are the shortest code.
constexpr std::size_t most_gaps_bytes(std::size_t elements, std::size_t count) {
  return count + (elements - count) / 255;
}
std::size_t runs_bytes(std::span<const std::uint64_t> bitmap) noexcept;

/// Each writes exactly as many bytes as the function above says, which is the size of `bytes`.
void encode_bitmap(std::span<const std::uint64_t> bitmap, std::span<std::byte> bytes) noexcept;
void encode_offsets(std::span<const std::uint16_t> offsets, std::span<std::byte> bytes) noexcept;
void encode_gaps(std::span<const std::uint16_t> offsets, std::span<std::byte> bytes) noexcept;
void encode_runs(std::span<const std::uint64_t> bitmap, std::size_t elements,
                 std::span<std::byte> bytes) noexcept;

/// Bitmaps have words_for(elements) words, and as many offsets are written as `offsets` has room for: its
/// size is the count.
[[nodiscard]] bool decode_bitmap(std::span<const std::byte> bytes, std::size_t elements, std::size_t count,
                                 std::span<std::uint64_t> bitmap) noexcept;
[[nodiscard]] bool decode_offsets(std::span<const std::byte> bytes, std::size_t elements,
                                  std::span<std::uint16_t> offsets) noexcept;
[[nodiscard]] bool decode_gaps(std::span<const std::byte> bytes, std::size_t elements,
                               std::span<std::uint16_t> offsets) noexcept;
[[nodiscard]] bool decode_runs(std::span<const std::byte> bytes, std::size_t elements, std::size_t count,
                               std::span<std::uint64_t> bitmap) noexcept;

}  // namespace nzcl

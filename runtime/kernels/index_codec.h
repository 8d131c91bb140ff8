// Codes for index sets: which elements of a slice are there, as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl {

/// An index set of `count` elements of a slice of `elements` is coded in one of these ways, all
/// little-endian:
/// - bitmap: words_for(elements) words of 64 bits.
/// - offsets: each offset in 16 bits.
/// - gaps: for each element, the number of elements that are left out between it and the one before.
///   The number is written as one byte 0xff for every 255 of them, and a byte below 255 for the rest.
/// - runs: for each run of neighbours its first offset and its length minus 1, in 16 bits each.
/// - rice (Rice, JPL Publication 79-22): for each element, the number g of elements that are left out between
///   it and the one before, as g >> k zeros, a one, and the k lowest bits of g. Bits fill bytes from the
///   lowest up, and unused bits of the last byte are 0. 2^k is the greatest power of two up to
///   (elements - count) / count, or 1. The code comes within few per cent of the entropy of random sets.
///
/// A set has exactly one encoding in each code. Decoders return false if the bytes are not the encoding of
/// `count` elements of the slice; the output is then arbitrary. Whatever the bytes are, decoders read and
/// write nothing beyond their spans.

constexpr std::size_t bitmap_bytes(std::size_t elements) { return (elements + 63) / 64 * 8; }
constexpr std::size_t offsets_bytes(std::size_t count) { return 2 * count; }
std::size_t gaps_bytes(std::span<const std::uint16_t> offsets) noexcept;
/// An upper bound of gaps_bytes() for all sets of `count` elements, without looking at the offsets. It is
/// close to the truth for sets that are so dense that gaps are the shortest code.
constexpr std::size_t most_gaps_bytes(std::size_t elements, std::size_t count) {
  return count + (elements - count) / 255;
}
std::size_t runs_bytes(std::span<const std::uint64_t> bitmap) noexcept;
std::size_t rice_bytes(std::span<const std::uint16_t> offsets, std::size_t elements) noexcept;

/// Encoders. Each writes exactly as many bytes as the function above says; `bytes` has that size.
void encode_bitmap(std::span<const std::uint64_t> bitmap, std::span<std::byte> bytes) noexcept;
void encode_offsets(std::span<const std::uint16_t> offsets, std::span<std::byte> bytes) noexcept;
void encode_gaps(std::span<const std::uint16_t> offsets, std::span<std::byte> bytes) noexcept;
void encode_runs(std::span<const std::uint64_t> bitmap, std::size_t elements,
                 std::span<std::byte> bytes) noexcept;
void encode_rice(std::span<const std::uint16_t> offsets, std::size_t elements,
                 std::span<std::byte> bytes) noexcept;

/// Decoders. Bitmaps have words_for(elements) words. The size of `offsets` says how many elements the set
/// should have.
[[nodiscard]] bool decode_bitmap(std::span<const std::byte> bytes, std::size_t elements, std::size_t count,
                                 std::span<std::uint64_t> bitmap) noexcept;
[[nodiscard]] bool decode_offsets(std::span<const std::byte> bytes, std::size_t elements,
                                  std::span<std::uint16_t> offsets) noexcept;
[[nodiscard]] bool decode_gaps(std::span<const std::byte> bytes, std::size_t elements,
                               std::span<std::uint16_t> offsets) noexcept;
[[nodiscard]] bool decode_runs(std::span<const std::byte> bytes, std::size_t elements, std::size_t count,
                               std::span<std::uint64_t> bitmap) noexcept;
[[nodiscard]] bool decode_rice(std::span<const std::byte> bytes, std::size_t elements,
                               std::span<std::uint16_t> offsets) noexcept;

}  // namespace nzcl

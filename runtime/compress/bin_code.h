// AdaComp's own code for ternary values: each value is its place in its bin and a sign, in one byte or two.
// Pure functions. Chen et al. (AAAI 2018, section "Compression") give 8 bits for bins of less than 64
// elements and 16 bits above. The paper does not say how a decoder finds the bin of an entry; here the last
// entry of each bin is marked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::compress {

/// The code of a slice is a sequence of entries. An entry has one byte if all bins of the slice have at most
/// 63 elements, and else two bytes (little-endian). No bin has more than 16,383 elements.
///
///   bit 0       the sign; 1 is minus
///   bit 1       1 on the last entry of a bin
///   bits above  the place in the bin
///
/// No bin is so large that a place could have all bits set. An entry with such a place stands for empty bins,
/// and its two lowest bits plus 1 are their number. Empty bins behind the last value are not written.

/// What is coded: ascending offsets of a slice and their signs.
struct SignedOffsets {
  std::span<const std::uint16_t> offsets;
  std::span<const float> values;  // only their signs matter
};

inline constexpr std::uint32_t kLargestBin = 16383;

/// Writes the entries and returns how many bytes they take, or 0 if `bytes` has no room for them. `ends` says
/// where the slice's bins end, as in Bins; every element is in a bin.
std::size_t encode_bins(std::span<const std::uint32_t> ends, const SignedOffsets& entries,
                        std::span<std::byte> bytes) noexcept;
/// How many bytes encode_bins() would write. `bitmap` has one bit for each element of the slice, and `count`
/// of them are set.
std::size_t bin_code_bytes(std::span<const std::uint32_t> ends, std::span<const std::uint64_t> bitmap,
                           std::size_t count) noexcept;

/// Decodes: writes the offsets, and +scale or -scale for each. Both outputs have the size of the number of
/// values. Returns false if the bytes are not the code of that many values in these bins.
[[nodiscard]] bool decode_bins(std::span<const std::uint32_t> ends, std::span<const std::byte> bytes,
                               float scale, std::span<std::uint16_t> offsets,
                               std::span<float> values) noexcept;

}  // namespace nzcl::compress

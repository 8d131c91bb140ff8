// AdaComp's own code for ternary values: places in bins with signs, a byte or two for each entry. Pure
// functions. (Chen et al., AAAI 2018, section "Compression": 8 bits for bins of less than 64, 16 above. The
// paper does not say how an entry finds its bin; here the last entry of a bin is marked.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::compress {

/// A slice's ternary values as entries of one byte, if all of its bins have less than 64 elements, or else of
/// two (little-endian). The two lowest bits of an entry are the sign (bit 0; 1: minus) and whether it is the
/// last of its bin (bit 1). The bits above are the place in the bin. A place of all ones, which no bin has,
/// stands for 1 to 4 empty bins, as the two lowest bits say. Behind the last entry there are no empty bins.
///
/// Bins that are all of 1 to 63 elements have entries of a byte; no bin has more than 16,383.

/// What is coded: ascending offsets of a slice and their signs.
struct SignedOffsets {
  std::span<const std::uint16_t> offsets;
  std::span<const float> values;  // only their signs matter
};

inline constexpr std::uint32_t kLargestBin = 16383;

/// `ends` are those of the slice's bins, as in Bins. Writes the entries, and returns their bytes, or 0 if
/// `bytes` has no room. Every element is in a bin.
std::size_t encode_bins(std::span<const std::uint32_t> ends, const SignedOffsets& entries,
                        std::span<std::byte> bytes) noexcept;
/// The number of bytes, without writing them. `bitmap` has the `count` offsets as bits.
std::size_t bin_code_bytes(std::span<const std::uint32_t> ends, std::span<const std::uint64_t> bitmap,
                           std::size_t count) noexcept;

/// The other way: writes offsets, and +scale or -scale for each. Both outputs have the same size, which is
/// the number of entries. Returns false where the bytes are not a coding of so many entries in these bins.
[[nodiscard]] bool decode_bins(std::span<const std::uint32_t> ends, std::span<const std::byte> bytes,
                               float scale, std::span<std::uint16_t> offsets,
                               std::span<float> values) noexcept;

}  // namespace nzcl::compress

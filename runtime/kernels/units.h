// Slices whose index sets count units of several elements each, which are whole blocks. README.md says which
// function is for what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/kernels/elements.h"

namespace nzcl {

/// Units have `unit_elements` elements, 1 or more, of `element_bytes`. The last unit of a slice may be
/// shorter, and so are its packed values. Units of at least this many bytes are copied one by one. For
/// shorter ones the index set is spread to one of single elements, because the kernels for these handle 64
/// elements in a few vectors, however many units they are.
inline constexpr std::size_t kLongUnitBytes = 32;

/// Turns a bitmap of units into one of the slice's `elements` elements. `bits` has words_for(elements) words.
void spread_units(std::span<const std::uint64_t> units, std::size_t unit_elements, std::size_t elements,
                  std::span<std::uint64_t> bits) noexcept;

/// scan_and_pack() for units: a unit is there if any bit of it is set, and is packed as a whole. Returns the
/// number of elements that were packed, or kTooDense. `bitmap` has one bit for each unit.
std::size_t scan_and_pack_units(std::span<const std::byte> dense, std::size_t element_bytes,
                                std::size_t unit_elements, std::span<std::uint64_t> bitmap,
                                std::span<std::byte> values) noexcept;

/// pack() and expand() for units, and the same as expand() for a slice that is zero wherever no unit is: it
/// may leave the rest as it is. `values` has exactly the bytes of the units in `bitmap`. `scratch` has
/// words_for(elements) words.
void pack_units(std::span<const std::byte> dense, std::size_t element_bytes, std::size_t unit_elements,
                std::span<const std::uint64_t> bitmap, std::span<std::byte> values,
                std::span<std::uint64_t> scratch) noexcept;
void expand_units(std::span<const std::byte> values, std::size_t element_bytes, std::size_t unit_elements,
                  std::span<const std::uint64_t> bitmap, std::span<std::byte> dense,
                  std::span<std::uint64_t> scratch, StoreTo where) noexcept;
void fill_in_units(std::span<const std::byte> values, std::size_t element_bytes, std::size_t unit_elements,
                   std::span<const std::uint64_t> bitmap, std::span<std::byte> dense,
                   std::span<std::uint64_t> scratch) noexcept;

/// Writes the units of a list, and nothing else.
void scatter_units(std::span<const std::byte> values, std::size_t unit_bytes,
                   std::span<const std::uint16_t> offsets, std::span<std::byte> dense) noexcept;

}  // namespace nzcl

// Writes the values and the indices of a packed result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nzcl/indices.h"
#include "runtime/kernels/elements.h"

namespace nzcl {

/// Copies bytes. Short copies are stored through the caches even if they go to memory. The stores are
/// complete when this returns. `from` and `to` do not overlap, and need no alignment.
void write_values(std::span<const std::byte> from, std::byte* to, StoreTo where) noexcept;

/// Writes first + offset for each offset to `to`, from position `at` on, in the same way. The caller makes
/// sure that all of them fit the type.
void write_indices(std::span<const std::uint16_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at, StoreTo where) noexcept;
void write_indices(std::span<const std::uint32_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at, StoreTo where) noexcept;

}  // namespace nzcl

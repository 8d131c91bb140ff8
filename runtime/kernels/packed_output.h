// Writes the values and the indices of a packed result to memory, past the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nzcl/indices.h"

namespace nzcl {

/// Copies bytes that are not read again soon. Long copies are stored past the caches: a cache would first
/// read every line that is written, although all of it is overwritten. The stores are complete when this
/// returns. `from` and `to` do not overlap, and need no alignment.
void copy_to_memory(std::span<const std::byte> from, std::byte* to) noexcept;

/// Writes first + offset for each offset to `to`, from position `at` on, in the same way. The caller makes
/// sure that all of them fit the type.
void write_indices(std::span<const std::uint16_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at) noexcept;
void write_indices(std::span<const std::uint32_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at) noexcept;

}  // namespace nzcl

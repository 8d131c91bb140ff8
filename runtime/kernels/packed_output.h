// Writes what a packed result consists of, values and indices, past the caches to memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nzcl/indices.h"

namespace nzcl {

/// Copies bytes that are not read again soon. Long copies are stored past the caches, which spares memory the
/// reading of lines that are overwritten as a whole; they are complete when this returns. `from` and `to` do
/// not overlap, and need no alignment.
void copy_to_memory(std::span<const std::byte> from, std::byte* to) noexcept;

/// Writes first + offset for each offset to `to`, from position `at` on, in the same way. All of them fit the
/// type.
void write_indices(std::span<const std::uint16_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at) noexcept;

}  // namespace nzcl

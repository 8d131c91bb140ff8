// Several tiles in a row as one list: 32 bits for each unit that is there, counted from the first tile on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "nzcl/types.h"
#include "runtime/kernels/list_sum.h"
#include "runtime/tile/tile_part.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// Returns the size of a list of `count` units of so many elements that begins `at` bytes into the payload.
constexpr std::uint64_t list_bytes(std::uint64_t at, std::uint64_t element_bytes, std::uint64_t unit_elements,
                                   std::uint64_t count) {
  const std::uint64_t values_end =
      wire::list_values_at(at, element_bytes) + count * unit_elements * element_bytes;
  return wire::list_offsets_at(values_end) + count * sizeof(std::uint32_t) - at;
}

/// Where the values of a list go that begins at `to`, which is `at` bytes into the payload.
inline std::byte* list_values(std::byte* to, std::uint64_t at, std::uint64_t element_bytes) {
  return to + (wire::list_values_at(at, element_bytes) - at);
}
/// Writes the beginning of a list, fills what lies between its parts, and returns where its offsets go.
/// Preconditions: there are tiles and units, and list_bytes() bytes of room.
std::uint32_t* begin_list(std::byte* to, std::uint64_t at, std::uint64_t element_bytes,
                          std::uint64_t unit_elements, std::uint64_t tiles, std::size_t count);

/// Returns how many of the list's units are below this number. They are looked for as if they ascended,
/// which has not been checked.
std::size_t listed_below(const wire::Tile& list, std::uint64_t number);

/// Copies the first `count` offsets, counted from `base` on instead of from `first`. Returns false if the
/// copies do not ascend, or are not in the `units` units from `base` on. What is checked is the copy, because
/// a peer may still write to the list. Precondition: base + units <= 2^32.
[[nodiscard]] bool read_list(const wire::Tile& list, std::size_t count, std::uint64_t first,
                             std::uint64_t units, std::uint32_t* to, std::uint32_t base = 0);

/// The same for the tile that begins at number `first` alone, as a part whose offsets are in the scratch.
/// `count` is how many of the first units are in the tile, which has no shorter one.
std::optional<TilePart> read_listed_tile(const wire::Tile& list, std::size_t count, std::uint64_t first,
                                         const wire::TileShape& shape, TileScratch& scratch);

/// Returns what a tile of single elements has, as a list. The offsets are written to `to`.
ElementList as_list(const TilePart& part, TileScratch& scratch, std::uint32_t* to);
/// Returns those units of a list, of so many elements each, that are in the tile which begins at number
/// `first`, as a part. Its offsets are written to `to`.
TilePart listed_part(std::span<const std::uint32_t> offsets, std::uint64_t first, std::uint64_t unit_elements,
                     const std::byte* values, std::span<std::uint16_t> to);

}  // namespace nzcl::engine

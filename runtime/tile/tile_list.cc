#include "runtime/tile/tile_list.h"

#include <algorithm>
#include <cstring>
#include <ranges>

#include "runtime/kernels/offsets.h"
#include "runtime/tile/tile_codec.h"

namespace nzcl::engine {

std::uint32_t* begin_list(std::byte* to, std::uint64_t at, std::uint64_t element_bytes,
                          std::uint64_t unit_elements, std::uint64_t tiles, std::size_t count) {
  const std::uint64_t values = wire::list_values_at(at, element_bytes) - at,
                      values_end = values + count * unit_elements * element_bytes,
                      offsets = wire::list_offsets_at(at + values_end) - at;
  const std::uint32_t head[] = {wire::TileDescriptor{.count = static_cast<std::uint32_t>(tiles - 1),
                                                     .parameter = wire::TileDescriptor::kListed}
                                    .encode(),
                                static_cast<std::uint32_t>(count)};
  std::memcpy(to, head, sizeof head);
  std::memset(to + sizeof head, 0, values - sizeof head);
  std::memset(to + values_end, 0, offsets - values_end);
  return reinterpret_cast<std::uint32_t*>(to + offsets);
}

std::size_t listed_below(const wire::Tile& list, std::uint64_t number) {
  const auto below = [&](std::size_t i) {
    std::uint32_t value = 0;
    std::memcpy(&value, list.index.data() + i * sizeof value, sizeof value);
    return value < number;
  };
  if (list.count > 0 && below(list.count - 1)) return list.count;
  return *std::ranges::partition_point(std::views::iota(std::size_t{0}, std::size_t{list.count}), below);
}

bool read_list(const wire::Tile& list, std::size_t count, std::uint64_t first, std::uint64_t units,
               std::uint32_t* to, std::uint32_t base) {
  return copy_offsets(list.index.first(count * sizeof *to), static_cast<std::uint32_t>(first), base, units,
                      to);
}

std::optional<TilePart> read_listed_tile(const wire::Tile& list, std::size_t count, std::uint64_t first,
                                         const wire::TileShape& shape, TileScratch& scratch) {
  std::uint32_t* const offsets = scratch.list().data();
  if (count > shape.units() || !read_list(list, count, first, shape.units(), offsets)) return std::nullopt;
  if (count == shape.units()) {
    return TilePart{.form = TilePart::Form::all,
                    .units = count,
                    .count = shape.elements,
                    .bitmap = {},
                    .offsets = {},
                    .values = list.values.data()};
  }
  return listed_part({offsets, count}, 0, shape.unit, list.values.data(), scratch.offsets());
}

ElementList as_list(const TilePart& part, TileScratch& scratch, std::uint32_t* to) {
  const auto offsets = as_offsets(part, scratch.offsets());
  widen_offsets(offsets, 0, to);
  return {.offsets = {to, offsets.size()}, .values = part.values};
}

TilePart listed_part(std::span<const std::uint32_t> offsets, std::uint64_t first, std::uint64_t unit_elements,
                     const std::byte* values, std::span<std::uint16_t> to) {
  if (offsets.empty()) return {};
  narrow_offsets(offsets, static_cast<std::uint32_t>(first), to.data());
  return {.form = TilePart::Form::offsets,
          .units = offsets.size(),
          .count = offsets.size() * unit_elements,
          .bitmap = {},
          .offsets = to.first(offsets.size()),
          .values = values};
}

}  // namespace nzcl::engine

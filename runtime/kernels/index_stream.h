// Lists of indices into a whole tensor, as callers give them: int32, uint32 or int64.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl {

template <typename T>
concept StreamIndex =
    std::same_as<T, std::int32_t> || std::same_as<T, std::uint32_t> || std::same_as<T, std::int64_t>;

/// What is wrong with a list: for each kind of fault the first position that has it, or the list's size if
/// none has.
struct IndexCheck {
  std::size_t descent;    // smaller than the index before
  std::size_t duplicate;  // equal to the index before; not looked for behind the first descent
  std::size_t outside;    // negative, or not below the limit
  bool operator==(const IndexCheck&) const = default;
};

/// Reads the list once, or twice if it does not ascend. `limit` is the number of the tensor's elements.
IndexCheck check_indices(std::span<const std::int32_t> indices, std::uint64_t limit) noexcept;
IndexCheck check_indices(std::span<const std::uint32_t> indices, std::uint64_t limit) noexcept;
IndexCheck check_indices(std::span<const std::int64_t> indices, std::uint64_t limit) noexcept;

/// Turns indices into offsets in a slice that begins with element `first`. All of them are in the slice, and
/// `offsets` has room for as many.
void offsets_in_slice(std::span<const std::int32_t> indices, std::uint64_t first,
                      std::uint16_t* offsets) noexcept;
void offsets_in_slice(std::span<const std::uint32_t> indices, std::uint64_t first,
                      std::uint16_t* offsets) noexcept;
void offsets_in_slice(std::span<const std::int64_t> indices, std::uint64_t first,
                      std::uint16_t* offsets) noexcept;

/// Indices, or numbers that were made of them.
template <typename T>
concept StreamNumber = StreamIndex<T> || std::same_as<T, std::uint64_t>;

/// Returns the first position from `from` on whose index is at least `value`, or the list's size. The indices
/// ascend and are not negative. The search begins near `from`, so that it costs little to find the ends of
/// all slices one after the other.
template <StreamNumber T>
std::size_t find_index(std::span<const T> indices, std::size_t from, std::uint64_t value) noexcept {
  const auto below = [&](std::size_t at) { return static_cast<std::uint64_t>(indices[at]) < value; };
  // All positions before `low` are below the value, and those from `high` on are not.
  std::size_t low = from, high = indices.size();
  for (std::size_t step = 1; step < high - low; step *= 2) {
    if (!below(low + step)) {
      high = low + step;
      break;
    }
    low += step + 1;
  }
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (below(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace nzcl

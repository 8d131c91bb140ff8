// The units that a caller's sparse stream has, in ascending order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/plan/slice_layout.h"

namespace nzcl::engine {

/// A copy of the caller's list, with a directory by which the units of any tile are found. How it is kept
/// depends on what is in it. Where tiles hold too many units to be told in lists, it is cut into tiles: 16
/// bits for each unit, and an entry for every tile. Otherwise nothing is done for a tile: it has 32 bits for
/// each unit, or 64 of tensors with more than 2^32, and an entry for every few hundred units. So time and
/// memory follow the list and not the tensor. Any number of threads may read it.
class StreamUnits {
 public:
  StreamUnits() = default;
  /// Room for `most` units. Throws std::bad_alloc.
  StreamUnits(std::size_t most, const SliceLayout& layout);

  /// Appends units, which ascend, also behind those before them. There is room for them.
  void append(std::span<const std::int32_t> units);
  void append(std::span<const std::uint32_t> units);
  void append(std::span<const std::int64_t> units);
  /// Called once, when all units are there.
  void end();

  /// Units in a row.
  struct Range {
    std::size_t place = 0, count = 0;  // how many lie before them, and how many they are
  };

  std::size_t size() const { return size_; }
  /// Returns how many units lie before a tile. `tile` may be the number of tiles.
  std::size_t before(std::uint64_t tile) const;
  Range of_tiles(std::uint64_t tile, std::uint64_t tiles) const {
    const std::size_t place = before(tile);
    return {place, before(tile + tiles) - place};
  }
  /// Returns the first tile from this one on that has any units. Precondition: there is one.
  std::uint64_t tile_from(std::uint64_t tile) const;
  /// Returns the units of a tile, of which there are `count` from `place` on, counted from its first one.
  /// They may be written to `to`.
  std::span<const std::uint16_t> of_tile(std::uint64_t tile, std::size_t place,
                                         std::span<std::uint16_t> to) const;
  /// All units, if they are kept in 32 bits each, so that no list of them has to be made; otherwise nullptr.
  const std::uint32_t* whole() const { return kept_ == Kept::narrow ? units<std::uint32_t>() : nullptr; }
  /// Writes the units of these tiles, which are of_tiles(), counted from the first one of the first tile.
  void list(std::uint64_t tile, std::uint64_t tiles, Range units, std::uint32_t* to) const;

 private:
  enum class Kept : std::uint8_t { in_tiles, narrow, wide };
  template <typename T>
  void append_as(std::span<const T> units);
  template <typename T>
  void cut(std::span<const T> units);
  template <typename T>
  T* units() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  std::uint64_t at(std::size_t place) const {
    return kept_ == Kept::wide ? units<std::uint64_t>()[place] : units<std::uint32_t>()[place];
  }
  void begin_groups(std::uint64_t before);

  Kept kept_ = Kept::narrow;
  std::unique_ptr<std::byte[]> memory_;  // units in the form that they are kept in
  std::size_t size_ = 0;
  std::uint64_t tiles_ = 0, tile_units_ = 1;
  /// For every group of 2^shift_ tiles the number of units before it, and at the end that of all.
  std::vector<std::size_t> groups_;
  std::uint64_t begun_ = 0;  // groups of which that is known
  unsigned shift_ = 0;
};

}  // namespace nzcl::engine

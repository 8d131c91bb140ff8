// Which tiles of a contribution travel together as one list, and how that is written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/channel/lane_context.h"
#include "runtime/operation/operation.h"

namespace nzcl::engine {

/// Tiles in a row that this rank tells in one list.
struct OwnList {
  std::uint64_t tile = 0, tiles = 0;  // the first one, and how many: 0 if they are not to be told in a list
  StreamUnits::Range units;

  /// Returns the size of the list if it begins `at` bytes into a payload.
  std::uint64_t bytes(const SliceLayout& layout, std::uint64_t at) const;
  /// Writes the list to `to`, where there is room for it, and counts what it has as this rank's input.
  void write(Operation& operation, std::uint64_t at, std::byte* to) const;
};

/// Tiles in a row that hold few units are told in one list, among few ranks of one host, so that nothing is
/// done for each of them. Lists have no short code, so they are for where bytes cost little. For one thread.
class ListRule {
 public:
  /// For messages of this priority.
  ListRule(const LaneContext& context, wire::Priority priority);

  /// Returns which of a slice's tiles, from number `place` on, are best told in one list, if any. Ranks with
  /// about as many units begin and end their lists with the same tiles, because these are a power of two that
  /// divides the number of those before.
  OwnList list(const Operation& operation, std::uint64_t slice, std::uint64_t place) const;
  /// The most units of so many elements that a message has room for as a list, whatever lies before it.
  std::size_t most_units(std::uint64_t element_bytes, std::uint64_t unit_elements) const;

 private:
  bool pays(const SliceLayout& layout, const OwnList& list) const;

  const bool possible_;
  const std::uint64_t ranks_;
  const std::uint64_t slot_bytes_;
  const std::uint64_t most_bytes_;  // of a list of several tiles
};

}  // namespace nzcl::engine

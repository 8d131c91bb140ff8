// Sums the contributions to a tiled slice, tile by tile, in rank order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/exchange/contributions/intake.h"
#include "runtime/exchange/contributions/list_rule.h"
#include "runtime/tile/part_sum.h"
#include "runtime/tile/tile_codec.h"
#include "runtime/tile/tile_list.h"

namespace nzcl::engine {

/// Sums one tile at a time, when every rank's tile is here, in the order of the ranks, so that every sum is
/// reproducible to the last bit. Owned by an exchange and used by one thread.
///
/// What a tile needs stays in a core's cache; contributions are read once, where they lie: in slots, and in
/// the input of this member's own rank.
class TileSum {
 public:
  TileSum(LaneContext& context, wire::Priority priority, Intake& intake);

  /// Begins with slice `s`, which the intake keeps until the sum is done.
  void start(IncomingSlice& s);
  bool done() const { return summed_ == tiles_; }
  /// How many tiles of the slice have been summed.
  std::uint64_t summed() const { return summed_; }

  /// Returns true if the next tile can be summed: every rank's is here, and is well-formed. Where all ranks
  /// say that several tiles in a row are empty, or tell them in lists, all of these are summed at once.
  /// Precondition: !done().
  bool ready();
  /// Returns the most that the next tile's result may take if it begins `at` bytes into a payload.
  /// Precondition: ready().
  std::uint64_t bytes(std::uint64_t at) const {
    return listed_ > 0 ? list_bytes(at, element_bytes(type()), shape_.unit, result_.part.units)
                       : result_.bytes(at);
  }
  /// Writes the next tile's result to `to`, which is `at` bytes into the payload and has room for the most
  /// that it may take. Returns what it takes. Precondition: ready().
  std::uint64_t sum_into(std::byte* to, std::uint64_t at);
  /// Drops what has arrived, because a rank has refused the operation. Returns true when that was all.
  bool drop();

  /// The ranks whose tiles the sum takes next, or waits for.
  std::span<const int> holders() const { return ranks_; }

 private:
  bool read_arrived();
  std::uint64_t empty_tiles() const;
  std::uint64_t listed_tiles() const;
  bool lists_pay(std::uint64_t tiles) const;
  std::size_t most_listed() const { return lists_.most_units(element_bytes(type()), shape_.unit); }
  std::size_t listed_of(int rank, std::uint64_t tiles) const;
  bool unite_lists(std::uint64_t tiles);
  bool unite_parts();
  std::optional<TilePart> part_of(int rank, TileScratch& scratch);
  TilePart own_part(TileScratch& scratch);
  void round(TilePart& part, TileScratch& scratch);
  void write_values(std::byte* to);
  void write_list(std::byte* to, std::uint64_t at);
  const wire::Tile& arrived(int rank) const { return arrived_[static_cast<std::size_t>(rank)]; }
  std::size_t& taken(int rank) { return taken_[static_cast<std::size_t>(rank)]; }
  DataType type() const { return static_cast<DataType>(slice_->record.type); }
  wire::ValueRule rule() const { return slice_->record.value_rule; }
  /// The code of the result's values, and the one in which this rank's own values are rounded, as the other
  /// ranks have rounded theirs.
  wire::ValueCode code() const { return wire::result_code(rule()); }
  ReduceOp op() const { return static_cast<ReduceOp>(slice_->record.op); }

  LaneContext& context_;
  Intake& intake_;
  const CodeRules rules_;
  const ListRule lists_;
  std::vector<int> ranks_;  // 0, 1, 2 ...
  IncomingSlice* slice_ = nullptr;
  std::uint64_t summed_ = 0, tiles_ = 0;
  ResultCoder* coder_ = nullptr;  // of a slice whose results are coded with what this rank keeps
  // What is known of the next tile:
  bool ready_ = false;
  std::size_t here_ = 0;  // the next tiles of so many of ranks_ are here
  std::uint64_t number_ = 0;
  std::uint64_t empty_ = 0;   // how many tiles from it on are empty on all ranks, as far as they say so
  std::uint64_t listed_ = 0;  // how many tiles from it on are summed as lists, all at once
  wire::TileShape shape_;
  std::vector<wire::Tile> arrived_;  // the parts of the remote ranks, by rank
  std::vector<std::size_t> taken_;   // how many units of their lists are summed now, by rank
  bool all_drawn_ = false;           // whether every rank has sent what all ranks draw
  CodedTile result_;                 // sum_into() writes its values; of lists only the most units are known
  // Memory.
  PartSum sum_;
  const std::uint64_t most_bytes_;  // of a message
  const std::unique_ptr<std::byte[]> spare_;
};

}  // namespace nzcl::engine

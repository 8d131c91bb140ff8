// One of the ranks that this one exchanges messages of partial sums with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "runtime/channel/lane_context.h"
#include "runtime/exchange/contributions/list_rule.h"
#include "runtime/exchange/merging/partial_sender.h"
#include "runtime/exchange/merging/tile_queue.h"
#include "runtime/exchange/merging/tile_walk.h"
#include "runtime/plan/merging_steps.h"
#include "runtime/plan/partial_type.h"
#include "runtime/tile/part_sum.h"

namespace nzcl::engine {

/// A step of merging has two sides: what this rank has summed so far, which its partner gets, and what the
/// partner sends. It checks what comes, and brings both sides together, tile by tile. Owned by the exchange
/// and used by one thread.
class MergingStep {
 public:
  static constexpr wire::Priority kPriority = wire::Priority::merging;
  using Next = TileQueue::Next;

  /// `exchanges`: the partner gets this rank's own partial sum, which is kept for the merge, if it `merges`.
  MergingStep(LaneContext& context, const MergingPlan& plan, int partner, bool exchanges, bool merges,
              const MergedOperations& operations);

  std::uint16_t partner() const { return partner_; }
  /// Whether the partner sends the sum of several ranks.
  bool their_partial() const { return their_partial_; }

  /// Takes the messages that have arrived. Returns true if there were any.
  bool receive();
  /// Whether a message of the partner waits to be merged.
  bool has_messages() const { return !theirs_.empty(); }

  /// Looks at what either side has of the next tile. A refusal comes in the place of a whole slice, so from
  /// then on there is nothing to look for. Next::wrong is a failure.
  Next look_own(const Operation& op);
  Next look_theirs(Operation& op);
  /// How many tiles from the next one on are known to be empty in what this rank has summed so far.
  std::uint64_t own_empty_tiles(const Operation& op);
  const wire::Tile& their_tile() const { return theirs_.tile(); }
  /// How many tiles from the next one on what has been found stands for.
  std::uint64_t own_tiles(const Operation& op) {
    return sender ? sender->kept().tile().tiles : std::max<std::uint64_t>(1, own_empty_tiles(op));
  }
  /// Unites the partial sums of both sides, those of the lower ranks first. Returns nullptr after a failure.
  const TilePart* unite(Operation& op, PartSum& sum);
  /// How many tiles from the next one on both sides tell in lists, or say to be empty, so that all of these
  /// are best merged at once; 0 if there are none.
  std::uint64_t listed_tiles(const Operation& op);
  /// Merges the lists of so many tiles, of which there are as many as listed_tiles() has said. Returns their
  /// sum, which lies in the scratch of `sum`; or nothing after a failure.
  std::optional<ElementList> sum_lists(Operation& op, std::uint64_t tiles, PartSum& sum);
  /// Goes on behind so many tiles of either side, or what look_own() or look_theirs() have found otherwise.
  void advance_own(std::uint64_t tiles = 1);
  void advance_theirs(Operation& op, std::uint64_t tiles = 1);
  /// Returns who has refused the slice that the walk is in, and forgets it: of two the lower rank, so that
  /// all ranks tell the same.
  wire::Refusal take_refusal();

  /// Fails because what the partner sent of the next tile is `wrong`. Returns false.
  bool refuse(const char* wrong);

  std::optional<PartialSender> sender;  // sends this rank's partial sum, if it is exchanged
  TileWalk merged;                      // how far the two sides have been merged

 private:
  bool take(const wire::Section& section);
  bool malformed(const char* wrong);
  std::optional<TilePart> own_part(Operation& op, TileScratch& scratch);
  std::optional<TilePart> their_part(const Operation& op, TileScratch& scratch);
  std::optional<TilePart> read(const wire::Tile& tile, TileScratch& scratch);
  bool can_merge_lists(const Operation& op, std::uint64_t tiles);
  template <class Sum>
  std::optional<ElementList> sum_by(Sum& lists, Operation& op, std::uint64_t tiles, PartSum& sum);
  ElementList own_list(const Operation& op, std::uint64_t tiles, std::span<std::uint32_t> offsets);
  std::size_t their_listed(const Operation& op, std::uint64_t tiles) const;
  /// Where the next tile begins in their list, in units.
  std::uint64_t list_begin(const Operation& op) const {
    return theirs_.tiles_before() * op.layout.tile_units();
  }

  LaneContext& context_;
  const std::uint16_t partner_;
  const bool partner_first_;                // the partner's ranks are the lower ones
  const bool own_partial_, their_partial_;  // the sum has more than one rank's contribution
  const ListRule rule_;
  const bool lists_;  // tiles may be told in lists
  TileQueue theirs_;
  std::size_t their_listed_ = 0;  // units of their list that are in the tiles which are merged now
  std::optional<wire::Refusal> own_refusal_, their_refusal_;
  std::unique_ptr<std::byte[]> own_wide_, their_wide_;
};

/// Whether tiles may be told in lists. They are only merged where both sides are contributions and their sum
/// is the result: between two ranks.
inline bool merges_lists(const EngineConfig& config) { return config.members.workers == 2; }
/// The type of an operation's partial sums.
inline DataType partial_type(const Operation& op) { return partial_type(op.type(), op.reduce_op()); }
/// Returns what this rank itself holds of a tile, which is the first time that anybody asks if it `counts`.
TilePart input_part(Operation& op, std::uint64_t tile, TileScratch& scratch, bool counts);

}  // namespace nzcl::engine

// Merging: in log2 N rounds two ranks at a time exchange their partial sums and merge them, tile by tile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exchange/exchange.h"
#include "runtime/exchange/merging/partial_sender.h"
#include "runtime/exchange/merging/tile_queue.h"
#include "runtime/plan/merging_steps.h"
#include "runtime/tile/part_sum.h"

namespace nzcl::engine {

/// For allreduces whose slices are cut into tiles, of any size and any number of ranks. Steps, invariants,
/// bytes and the order of sums: runtime/exchange/merging/README.md.
class MergingExchange final : public Exchange {
 public:
  explicit MergingExchange(LaneContext& context);

  void submit(Operation& operation) override;
  bool step() override;
  void direct_arrived(std::uint16_t member, std::uint16_t sequence) override;
  bool idle() const override;
  Stall waiting_for() const override;

 private:
  /// How far a part of this exchange has come: in how many operations, and in the next one.
  struct Cursor {
    std::uint64_t operation = 0;
    bool begun = false;  // `place` is in that operation
    TilePlace place;
  };
  /// One of the ranks that this one exchanges messages with, in the order of the steps.
  struct Step {
    std::uint16_t partner = 0;
    bool exchanges = true;                            // the partner gets this rank's own partial sum
    bool partner_first = false;                       // the partner's ranks are the lower ones
    bool own_partial = false, their_partial = false;  // the sum has more than one rank's contribution
    std::optional<PartialSender> sender;              // sends this rank's partial sum, if it is exchanged
    std::optional<TileQueue> theirs;
    Cursor merged;
    // Who has refused the slice that `merged` is in: on this rank's side, and on the partner's.
    std::optional<wire::Refusal> own_refusal, their_refusal;
  };
  using Next = TileQueue::Next;

  // Positions.
  Operation* at(Cursor& cursor) const;
  void begin_slice(Cursor& cursor, const Operation& op, std::uint64_t slice) const;
  bool next_tile(Cursor& cursor, const Operation& op, std::uint64_t tiles = 1) const;
  void next_slice(Cursor& cursor, const Operation& op) const;
  std::uint64_t slice_from(const Operation& op, std::uint64_t slice) const;
  std::uint64_t number_of(const Operation& op, const TilePlace& place) const {
    return op.layout.tile_number(place.slice, place.tile);
  }

  // Messages arrive.
  bool receive();
  bool take(const Step& step, const ReceiveChannel::Received& message);
  bool take_section(const Step& step, const wire::Section& section);
  bool refuse(const Step& step, const TilePlace& place, const char* wrong);
  bool malformed(const Step& step, const char* wrong);

  // Contributions leave, and partial sums are merged.
  bool contribute();
  void contribute_tile(Operation& op, PartialSender& sender);
  TilePart input_part(Operation& op, const TilePlace& place, TileScratch& scratch, bool counts);
  bool merge(std::size_t step);
  bool merge_tile(std::size_t step);
  Next look_own(std::size_t step, const Operation& op);
  Next look_theirs(Step& step, Operation& op);
  bool drop_tiles(std::size_t step, Operation& op, bool own_tile, bool their_tile);
  std::uint64_t own_empty_tiles(Step& step, const Operation& op) const;
  void merge_empty(std::size_t step, Operation& op, std::uint64_t tiles);
  const TilePart* unite(std::size_t step, Operation& op, PartSum& sum);
  std::optional<TilePart> own_part(std::size_t step, Operation& op, TileScratch& scratch);
  std::optional<TilePart> read(const Step& step, const wire::Tile& tile, TileScratch& scratch);
  void pass_on(std::size_t step, Operation& op, const TilePlace& place, const TilePart& sum);
  void finish_tile(Operation& op, const TilePlace& place, const TilePart& sum);
  CodedTile coded(const TilePart& part, DataType type, const TilePlace& place, TileScratch& scratch) const;
  void advance_own(std::size_t step, std::uint64_t tiles = 1);
  void advance_theirs(Step& step, Operation& op, std::uint64_t tiles = 1);
  void go_on(std::size_t step, Operation& op, std::uint64_t tiles = 1);
  PartialSender* out_of(std::size_t step);
  bool is_last(std::size_t step) const { return step + 1 == steps_.size(); }

  // Results.
  bool place_held();
  bool place_received();
  bool contributed(const TilePlace& place, Next next, std::uint64_t tiles) const;
  void end_slice(Step& step, Operation& op);
  bool send();
  void return_credits();
  bool has_begun(const Step& step) const;

  LaneContext& context_;
  const MergingPlan plan_;
  const int self_, ranks_;
  const bool gives_;  // this rank's contribution is handed to another one, which sends it the result
  const CodeRules rules_;
  std::vector<Step> steps_;
  std::optional<PartialSender> result_;  // to the rank that gave its contribution to this one
  Cursor contributed_;
  std::array<Operation*, kMaxOperations> operations_{};  // by number, modulo that
  std::uint64_t submitted_ = 0, finished_ = 0;
  /// The last step's result, as long as it cannot be placed.
  std::optional<TilePart> held_;
  // Memory.
  TileScratch scratch_;
  PartSum partial_sum_, result_sum_;
  std::unique_ptr<std::byte[]> own_wide_, their_wide_, result_values_;
};

}  // namespace nzcl::engine

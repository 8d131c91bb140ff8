// Merging: in log2 N rounds two ranks at a time exchange their partial sums and merge them, tile by tile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/exchange/exchange.h"
#include "runtime/exchange/merging/merging_step.h"

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
  using Next = TileQueue::Next;

  // Contributions leave, and partial sums are merged.
  void admit();
  bool contribute();
  void contribute_tile(Operation& op, PartialSender& sender);
  bool merge(MergingStep& step);
  bool merge_tile(MergingStep& step);
  bool drop_tiles(MergingStep& step, Operation& op, bool own_tile, bool their_tile);
  bool merge_lists(MergingStep& step, Operation& op, std::uint64_t tiles);
  void merge_empty(MergingStep& step, Operation& op, std::uint64_t tiles);
  void pass_on(Operation& op, const TilePlace& place, const TilePart& sum, PartialSender& out);
  void finish_tile(Operation& op, const MergingStep& step, const TilePart& sum);
  CodedTile coded(const TilePart& part, DataType type, const TilePlace& place, TileScratch& scratch) const;
  void go_on(MergingStep& step, Operation& op, std::uint64_t tiles = 1);
  PartialSender* out_of(const MergingStep& step);
  bool is_last(const MergingStep& step) const { return &step == &steps_.back(); }

  // Results.
  bool place_held(MergingStep& step, Operation& op);
  bool place_received(MergingStep& step);
  bool contributed(const TilePlace& place, Next next, std::uint64_t tiles) const;
  void end_slice(MergingStep& step, Operation& op);
  bool send();

  LaneContext& context_;
  const int self_;
  const bool gives_;  // this rank's contribution is handed to another one, which sends it the result
  const CodeRules rules_;
  const ListRule list_rule_;
  MergedOperations operations_;
  /// Operations by number, modulo kMaxOperations. Those from operations_.submitted on have not been admitted.
  std::array<Operation*, kMaxOperations> waiting_{};
  std::uint64_t waited_ = 0;
  std::vector<MergingStep> steps_;       // in their order
  std::optional<PartialSender> result_;  // to the rank that gave its contribution to this one
  TileWalk contributed_;
  std::uint64_t finished_ = 0;  // operations
  /// The last step's result, as long as it cannot be placed.
  std::optional<TilePart> held_;
  // Memory.
  TileScratch scratch_;
  PartSum partial_sum_, result_sum_;
  std::unique_ptr<std::byte[]> result_values_;
};

}  // namespace nzcl::engine

// A sum in two levels with a dense result, piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/comm/communicator/levels.h"
#include "runtime/comm/communicator/two_level_sum.h"

namespace nzcl::comm {

class DenseTwoLevelSum final : public TwoLevelSum {
 public:
  DenseTwoLevelSum(Levels& levels, TwoLevelRequest request);
  void announce() override;
  void begin() override;
  void refuse(const Failure& failure) override;

 protected:
  void take_list(const HostList& list) override;

 private:
  struct PieceState {
    engine::Piece cut;
    std::uint64_t up = 0, across = 0, down = 0;  // numbers of its steps
    std::vector<std::uint64_t> bits;             // of this rank's share: which blocks any rank has
    std::optional<Failure> failure;
  };
  using Operation = engine::Operation;

  void place_values();
  void sum_host(PieceState& piece);
  void host_summed(PieceState& piece);
  void sum_hosts(PieceState& piece);
  void hosts_summed(PieceState& piece);
  void give_to_host(PieceState& piece);
  void piece_over(const PieceState& piece, Operation* last);
  void divide_share(const PieceState& piece);
  std::byte* share_of(const PieceState& piece) const;
  std::uint64_t share_elements(const PieceState& piece) const;
  /// Elements of the piece's shares by the places of this host's ranks.
  std::vector<std::uint64_t> counts(const engine::Piece& piece) const;

  Levels& levels_;
  TwoLevelRequest request_;
  std::vector<std::byte> sorted_values_;  // of a list from a GPU
  std::vector<PieceState> pieces_;

  std::mutex mutex_;  // of all below
  std::size_t pieces_left_ = 0;
  std::vector<std::uint64_t> union_bits_;
  std::uint64_t union_blocks_ = 0;
  std::optional<Failure> failure_;  // of the first piece that has failed
};

}  // namespace nzcl::comm

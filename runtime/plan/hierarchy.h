// Who sums with whom where sums are made in two levels: first within each host, and then between hosts. Every
// rank computes it from what all know. The idea is that of hierarchical allreduce (for example Jia et al.,
// "Highly Scalable Deep Learning Training System with Mixed-Precision", arXiv:1807.11205, section 3.3), here
// for sparse sums.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/plan/membership.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {

/// The hosts of the ranks. On each host the first `columns` ranks divide the tensor among them: each sums its
/// share of what the ranks of its host have, exchanges that with the ranks that have the same place on other
/// hosts, its *column*, and gives the result to its host. Hosts may have different numbers of ranks, so there
/// are as many columns as ranks on the smallest host.
class HierarchyPlan {
 public:
  /// Returns nothing if two levels make no sense: there is one host only, or one rank on each.
  /// `host_ranks` is the option: so many ranks in a row count as one host, and if it is 0 those that share
  /// one. A rank that says of no other one that it shares its host has one of its own.
  static std::optional<HierarchyPlan> of(const Membership& membership, int host_ranks);

  int ranks() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int columns() const { return columns_; }
  int most_ranks() const { return most_; }  // of one host
  /// The ranks of a host, in ascending order. Hosts are numbered by their lowest rank.
  const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  /// The rank's place among those of its host. It has a column if this is less than columns().
  int place_of(int rank) const { return place_of_[static_cast<std::size_t>(rank)]; }
  /// The ranks of a column, by host.
  std::vector<int> ranks_of_column(int column) const;

 private:
  explicit HierarchyPlan(const std::vector<int>& host_of);

  std::vector<std::vector<int>> ranks_;
  std::vector<int> host_of_, place_of_;
  int columns_ = 0, most_ = 0;
};

/// A part of a tensor that is summed on its own, so that the two levels work on different parts at the same
/// time. It consists of whole blocks, and so does the share of each column.
struct Piece {
  std::uint64_t begin = 0;             // element of the tensor
  std::vector<std::uint64_t> columns;  // elements of each column's share, one behind the other
  std::uint64_t elements() const;
  /// Elements of the piece before the share of this column.
  std::uint64_t before(int column) const;
};

/// Into about how many pieces a tensor of so many bytes is cut.
std::uint64_t pieces_of(std::uint64_t bytes, std::uint64_t least_piece_bytes = kLeastPieceBytes);
/// Cuts a tensor into pieces of about `least_piece_bytes` or more.
std::vector<Piece> cut_into_pieces(std::uint64_t count, std::uint64_t block_elems,
                                   std::uint64_t element_bytes, int columns,
                                   std::uint64_t least_piece_bytes = kLeastPieceBytes);

}  // namespace nzcl::engine

#include "runtime/plan/hierarchy.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/divide.h"

namespace nzcl::engine {
namespace {

/// A share of many blocks is cut to whole words of their bitmap.
std::uint64_t whole_words(std::uint64_t blocks) { return blocks < 64 ? blocks : ceil_div(blocks, 64) * 64; }

/// The host of each rank, numbered by its lowest rank.
std::vector<int> hosts_of(const Membership& m, int host_ranks) {
  const auto workers = static_cast<std::size_t>(m.members.workers);
  std::vector<int> host_of(workers);
  if (host_ranks > 0) {
    for (std::size_t r = 0; r < workers; ++r) host_of[r] = static_cast<int>(r) / host_ranks;
    return host_of;
  }
  const std::vector<int>& groups = m.hosts.numbers();
  std::vector<int> host_of_group(groups.size(), -1);
  int hosts = 0;
  for (std::size_t r = 0; r < workers; ++r) {
    const int group = groups[r];
    int& host = group < 0 ? host_of[r] : host_of_group[static_cast<std::size_t>(group)];
    if (group < 0 || host < 0) host = hosts++;
    host_of[r] = host;
  }
  return host_of;
}

}  // namespace

HierarchyPlan::HierarchyPlan(const std::vector<int>& host_of) : host_of_(host_of) {
  for (std::size_t r = 0; r < host_of.size(); ++r) {
    const auto host = static_cast<std::size_t>(host_of[r]);
    if (host == ranks_.size()) ranks_.emplace_back();
    place_of_.push_back(static_cast<int>(ranks_[host].size()));
    ranks_[host].push_back(static_cast<int>(r));
  }
  const auto [least, most] = std::minmax_element(
      ranks_.begin(), ranks_.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  columns_ = static_cast<int>(least->size());
  most_ = static_cast<int>(most->size());
}

std::optional<HierarchyPlan> HierarchyPlan::of(const Membership& membership, int host_ranks) {
  if (membership.members.dedicated > 0) return std::nullopt;
  if (host_ranks == 0 && membership.hosts.numbers().empty()) return std::nullopt;
  HierarchyPlan plan(hosts_of(membership, host_ranks));
  if (plan.hosts() == 1 || plan.most_ranks() == 1) return std::nullopt;
  return plan;
}

std::vector<int> HierarchyPlan::ranks_of_column(int column) const {
  std::vector<int> ranks;
  for (const auto& of_host : ranks_) ranks.push_back(of_host[static_cast<std::size_t>(column)]);
  return ranks;
}

std::uint64_t Piece::elements() const {
  return std::accumulate(columns.begin(), columns.end(), std::uint64_t{0});
}

std::uint64_t Piece::before(int column) const {
  return std::accumulate(columns.begin(), columns.begin() + column, std::uint64_t{0});
}

std::uint64_t pieces_of(std::uint64_t bytes, std::uint64_t least_piece_bytes) {
  return std::clamp<std::uint64_t>(bytes / least_piece_bytes, 1, kMostPieces);
}

std::vector<Piece> cut_into_pieces(std::uint64_t count, std::uint64_t block_elems,
                                   std::uint64_t element_bytes, int columns,
                                   std::uint64_t least_piece_bytes) {
  const std::uint64_t blocks = ceil_div(count, block_elems);
  const std::uint64_t wanted = pieces_of(count * element_bytes, least_piece_bytes);
  const auto shares = static_cast<std::uint64_t>(columns);
  const std::uint64_t share = std::max<std::uint64_t>(1, whole_words(ceil_div(blocks, wanted * shares)));
  std::vector<Piece> pieces;
  for (std::uint64_t begin = 0; begin < blocks;) {
    Piece piece{.begin = begin * block_elems, .columns = {}};
    for (int column = 0; column < columns; ++column) {
      const std::uint64_t end = std::min(begin + share, blocks);
      piece.columns.push_back(std::min(end * block_elems, count) - std::min(begin * block_elems, count));
      begin = end;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace nzcl::engine

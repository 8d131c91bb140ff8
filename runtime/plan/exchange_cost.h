// How long the ways of exchanging an allreduce take, predicted from what all ranks know. The engine chooses
// by it, and `nzcl_info --explain` shows it.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/plan/tuning.h"

namespace nzcl::engine {

/// Returns the costs of a transport, by its name: those of shared memory, of the kernel's sockets, or for all
/// other names those of RDMA. `one_network` says that no network link separates the members; `gbps` is the
/// speed of the links, if there are any.
LinkCosts link_costs(std::string_view transport, bool one_network, double gbps);

/// An allreduce whose exchange is to be chosen.
struct ExchangeCase {
  int ranks = 1;
  int owners = 1;             // members that sum
  double ranks_per_core = 1;  // on the cores that most ranks share
  bool one_hop = false;       // push takes one hop instead of two (EngineConfig::one_hop)
  std::uint64_t elements = 0;
  std::uint64_t element_bytes = 4;
  std::uint64_t block_elems = 256;
  double density = 1;               // share of each rank's blocks that are not zero; ranks draw independently
  std::uint64_t slices = 1;         // that push cuts the tensor into
  bool tiled = false;               // these are cut into tiles of small blocks
  std::uint64_t partial_bytes = 4;  // of a value in a partial sum
  bool short_codes = false;         // EngineConfig::short_codes
  /// Inputs are streams of values and indices, so that nobody looks for what is not zero.
  bool streams = false;

  std::uint64_t tensor_bytes() const { return elements * element_bytes; }
  std::uint64_t blocks() const { return (elements + block_elems - 1) / block_elems; }
  /// Share of the blocks that any of so many ranks holds, or any rank at all.
  double union_density(double of_ranks) const;
  double union_density() const { return union_density(ranks); }
};

/// What an exchange is predicted to cost. Times are in seconds.
struct Prediction {
  int steps = 0;          // messages of which each is sent only when the one before has arrived
  double messages = 0;    // messages that the busiest rank sends and receives
  double sent_bytes = 0;  // bytes sent by the rank that sends most
  double latency = 0;     // time that the steps take
  double handling = 0;    // time to handle the messages
  double link = 0;        // time of the bytes on the link
  double processing = 0;  // time to scan, move and sum the bytes
  /// Links and processors work at the same time, so the slower one counts.
  double seconds() const { return latency + handling + (link > processing ? link : processing); }
};

/// Predicts push: contributions go to owners, and results come back.
Prediction predict_push(const ExchangeCase& c, const LinkCosts& costs);
/// Predicts doubling: contributions are gathered in ceil(log2 ranks) rounds, and every rank sums all of them.
Prediction predict_doubling(const ExchangeCase& c, const LinkCosts& costs);

/// Predicts merging: partial sums are exchanged and merged in log2 ranks rounds.
Prediction predict_merging(const ExchangeCase& c, const LinkCosts& costs);

/// How an exchange in two levels is divided.
struct HierarchyCase {
  int hosts = 1, ranks = 1, columns = 1;  // ranks of a host, and those of them that exchange with other hosts
  std::uint64_t pieces = 1;
  bool tiled = false;  // between hosts
};
/// Predicts a hierarchy: each host pushes among its ranks, and the hosts push what they have together.
Prediction predict_hierarchy(const ExchangeCase& c, const HierarchyCase& levels, const LinkCosts& within,
                             const LinkCosts& between);

/// Returns how many bytes a contribution or result takes on the wire if it has the share `density` of all
/// blocks: its values and its index set, in the shortest code that there is for such blocks, without headers.
double coded_bytes(const ExchangeCase& c, double density);
/// Returns the least number of bytes for blocks that are drawn independently: their values, and the entropy
/// of where they are.
double entropy_bytes(const ExchangeCase& c, double density);

}  // namespace nzcl::engine

// How long the ways of exchanging an allreduce take, predicted from what all ranks know. The engine chooses
// by it, and `nzcl_info --explain` shows it.
#pragma once

#include <cstdint>
#include <string_view>

namespace nzcl::engine {

/// What sending costs over one kind of link, in seconds. These are round figures of a kind of link, not
/// measurements of this machine, because all ranks must come to the same choice.
struct LinkCosts {
  /// From the post of a small message until its receiver has noticed it.
  double latency = 0;
  double message = 0;  // processor time of one message at both ends together
  /// What one message takes in addition where ranks share cores, because the receiver has to be woken or to
  /// get its turn.
  double turn = 0;
  double wire_byte = 0;   // a byte on a rank's link; 0 within a host
  double moved_byte = 0;  // processor time of a byte at both ends together
};

/// Returns the costs of a transport, by its name; those of RDMA for names that are neither of one host nor of
/// the kernel's sockets. `one_network`: no
/// network link separates the members.
LinkCosts link_costs(std::string_view transport, bool one_network);

/// An allreduce whose exchange is to be chosen.
struct ExchangeCase {
  int ranks = 1;
  int owners = 1;             // members that sum
  double ranks_per_core = 1;  // where they are most crowded
  bool one_hop = false;       // push takes one hop instead of two (EngineConfig::one_hop)
  std::uint64_t elements = 0;
  std::uint64_t element_bytes = 4;
  std::uint64_t block_elems = 256;
  double density = 1;        // share of each rank's blocks that are not zero; ranks draw independently
  std::uint64_t slices = 1;  // that push cuts the tensor into
  bool tiled = false;        // these are cut into tiles of small blocks
  bool short_codes = false;  // EngineConfig::short_codes

  std::uint64_t tensor_bytes() const { return elements * element_bytes; }
  std::uint64_t blocks() const { return (elements + block_elems - 1) / block_elems; }
  double union_density() const;
};

/// What a way of exchanging comes to, in seconds, where nothing says otherwise.
struct Prediction {
  int steps = 0;          // messages that wait for one another
  double messages = 0;    // that the busiest rank sends and receives
  double sent_bytes = 0;  // by the rank that sends most
  double latency = 0;     // of all steps
  double handling = 0;    // of the messages
  double link = 0;        // of the bytes on the link
  double processing = 0;  // of scanning, moving and summing the bytes
  /// Links and processors work at the same time, so the slower one counts.
  double seconds() const { return latency + handling + (link > processing ? link : processing); }
};

/// Contributions go to owners, and results come back.
Prediction predict_push(const ExchangeCase& c, const LinkCosts& costs);
/// Contributions are gathered in ceil(log2 ranks) rounds, and every rank sums all of them.
Prediction predict_doubling(const ExchangeCase& c, const LinkCosts& costs);

/// Returns the bytes that a share of all blocks takes on the wire with its index set, in the shortest of the
/// forms that there are for such blocks, without headers.
double coded_bytes(const ExchangeCase& c, double density);
/// The least bytes that independently drawn blocks can take: values, and the entropy of where they are.
double entropy_bytes(const ExchangeCase& c, double density);

}  // namespace nzcl::engine

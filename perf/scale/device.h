// One-sided writes over simulated links. They pass the tests that a network card would make, and land at
// their time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "perf/scale/core.h"
#include "perf/scale/links.h"
#include "perf/scale/timeline.h"
#include "verbs/transport.h"

namespace perf::scale {

class Network;
class SimulatedEndpoint;

/// A write on its way: over its links, then into the memory of the receiver, and at last a note to the sender
/// that it is there.
class Flight final : public Happening {
 public:
  explicit Flight(Network& network) : network_(network) {}
  void happen() override;

 private:
  friend class SimulatedEndpoint;
  enum class At : std::uint8_t { link, landing, acknowledgement };

  Network& network_;
  SimulatedEndpoint *from_ = nullptr, *to_ = nullptr;
  nzcl::verbs::Write write_;
  std::array<nzcl::verbs::Segment, nzcl::verbs::kMaxSegments> segments_;
  std::uint64_t bytes_ = 0, wire_bytes_ = 0;
  std::uint32_t contributions_ = 0;
  Way way_;
  At at_ = At::link;
};

/// Everything that ranks share: the links, the memory that peers may write, and the clock.
class Network {
 public:
  /// `coarseness`: for how many bytes each byte of values stands on the wire.
  Network(Timeline& timeline, const LinkPlan& plan, double coarseness)
      : timeline_(timeline), links_(plan), coarseness_(coarseness) {}

  /// The device of a rank. `limits` are those of the network's writes, and `within` of those within a host.
  std::shared_ptr<nzcl::verbs::Device> device(int number, Core& core, const nzcl::verbs::Limits& limits,
                                              const nzcl::verbs::Limits& within);
  Links& links() { return links_; }
  Timeline& timeline() { return timeline_; }
  double coarseness() const { return coarseness_; }
  std::uint64_t messages() const { return messages_; }  // that have landed
  /// What a write was refused for, or empty.
  const std::string& failure() const { return failure_; }

 private:
  friend class Flight;
  friend class SimulatedEndpoint;
  friend class SimulatedRegion;
  Flight& take();
  void give_back(Flight& flight) { spare_.push_back(&flight); }
  bool allowed(const nzcl::verbs::RemoteMemory& target, std::uint64_t bytes) const;

  Timeline& timeline_;
  Links links_;
  const double coarseness_;
  std::deque<Flight> flights_;  // all that were ever made
  std::vector<Flight*> spare_;
  std::vector<SimulatedEndpoint*> endpoints_;  // by address
  std::vector<std::span<std::byte>> regions_;  // by key; empty if it is no more
  std::uint64_t messages_ = 0;
  std::string failure_;
};

}  // namespace perf::scale

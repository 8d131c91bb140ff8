// How the two sides of a microbenchmark meet: at a TCP port of the server.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/bootstrap/rounds.h"

namespace perf::write {

/// Where the server listens.
struct Place {
  std::string host;  // of the server; empty: this is the server
  int port = 0;

  bool server() const { return host.empty(); }
};

/// One side's connection to the other. Not thread-safe.
class Meeting {
 public:
  /// A server says that it waits. Throws nzcl::Error that names the port if another program has it.
  explicit Meeting(Place place);

  /// Returns what the other side said. Both sides call it, in the same order. A server waits for its client
  /// as long as somebody may take to type the other command, a client for 60 s, or NZCL_BOOTSTRAP_TIMEOUT_S
  /// if that is less. Throws nzcl::Error that names the port.
  std::string exchange(const std::string& mine);
  /// The same, for the end: the other side may have gone.
  void exchange_within(const std::string& mine, nzcl::bootstrap::Clock::duration limit);

 private:
  void meet();

  const Place place_;
  nzcl::bootstrap::Clock::duration patience_;
  std::unique_ptr<nzcl::bootstrap::Meeting> meeting_;       // until both have met
  std::unique_ptr<nzcl::bootstrap::ControlPlane> control_;  // from then on
  std::optional<nzcl::bootstrap::Rounds> rounds_;
};

}  // namespace perf::write

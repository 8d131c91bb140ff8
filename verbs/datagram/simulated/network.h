// A network of datagrams inside one thread, with a clock of its own: links with a rate, a delay and a queue,
// and faults from a seed. Nothing depends on the machine's time, so that a run can be repeated exactly.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "verbs/datagram/datagram.h"

namespace nzcl::verbs {

/// How likely it is that something befalls a datagram on its way, each from 0 to 1.
struct DatagramFaults {
  double loss = 0;
  double duplication = 0;  // it comes twice, the second time later
  double reordering = 0;   // it takes up to `detour` longer
  double corruption = 0;   // one of its bytes is changed
  std::chrono::nanoseconds detour = std::chrono::microseconds(100);
};

/// One port's link to the middle of the network, in either direction.
struct SimulatedLink {
  double bits_per_second = 0;                                         // 0: infinitely fast
  std::chrono::nanoseconds delay{};                                   // from one end to the other
  std::size_t queue_bytes = std::numeric_limits<std::size_t>::max();  // what does not fit is lost
  std::size_t header_bytes = 66;  // of each datagram on the wire: Ethernet with its gap, IPv4 and UDP
  std::size_t max_bytes = 1472;
  DatagramFaults faults;  // of what this port sends
};

class SimulatedState;

/// All ports, and the simulation itself, are used by one thread.
class SimulatedNetwork {
 public:
  using Time = std::chrono::nanoseconds;  // since the beginning
  /// With `time_of_poll`, each receive() lets that much time pass, so that the ports can be used like those
  /// of other backends. Without it, time passes only in advance().
  explicit SimulatedNetwork(std::uint64_t seed, Time time_of_poll = {});
  ~SimulatedNetwork();

  std::unique_ptr<DatagramPort> open(const SimulatedLink& link);

  Time now() const;
  /// When the next datagram moves; nothing if none is under way.
  std::optional<Time> next() const;
  /// Lets time pass. Precondition: `time` is not before now().
  void advance(Time time);

  /// Appends the numbers of the ports, in the order of open(), at which anything has arrived since the last
  /// call, and which may not have received it yet.
  void take_arrivals(std::vector<std::size_t>& ports);

  /// How many datagrams were lost, in full queues and by faults.
  std::uint64_t lost() const;

 private:
  std::shared_ptr<SimulatedState> state_;
};

}  // namespace nzcl::verbs

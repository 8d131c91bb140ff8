// The links between simulated hosts, in time only: when a message that leaves one rank has come to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "perf/scale/timeline.h"

namespace perf::scale {

struct LinkPlan {
  std::vector<int> host_of;        // by rank
  double bits_per_second = 100e9;  // of each host's link, in each direction
  Time delay = seconds(2e-6);      // from host to host
  Time message{};                  // that each message takes of a link, beside its bytes
  std::size_t frame_bytes = 4096;  // of a message in one frame,
  std::size_t frame_header = 66;   // and what the frame has beside
  int rack_hosts = 0;              // hosts at one switch of the racks; 0: all are at one switch
  double oversubscription = 1;  // how many times a rack's hosts could send what its link to the spine takes
  Time host_delay = seconds(0.7e-6);  // within a host
};

/// A message on its way over up to four links: out of its host, out of the rack, into the other one, and into
/// the host. On each it takes its turn behind those whose first byte came before its own.
struct Way {
  std::uint8_t links = 0, next = 0;
  std::uint16_t link[4] = {};
  Time last_byte{};  // when it is at the beginning of the next link, or at the end of the last one
};

/// For one thread.
class Links {
 public:
  explicit Links(const LinkPlan& plan);

  Way way(int from, int to) const;
  /// Lets a message of so many bytes take its next link at `now`, when its first byte is there. Returns when
  /// its first byte is at the next one; its last byte follows at Way::last_byte.
  Time pass(Way& way, std::uint64_t bytes, Time now);
  /// How long the way is for a message that nothing keeps.
  Time delay(int from, int to) const { return same_host(from, to) ? plan_.host_delay : plan_.delay; }
  bool same_host(int a, int b) const { return host(a) == host(b); }

  const LinkPlan& plan() const { return plan_; }
  int hosts() const { return hosts_; }
  /// Bytes that have left the host, with frames and headers.
  std::uint64_t sent(int host) const { return links_[index(host, Kind::out)].bytes; }

 private:
  enum class Kind : std::uint8_t { out, in, rack_out, rack_in };
  struct Link {
    double byte = 0;  // seconds
    Time free{};
    std::uint64_t bytes = 0;
  };
  int host(int rank) const { return plan_.host_of[static_cast<std::size_t>(rank)]; }
  int rack(int host) const { return plan_.rack_hosts > 0 ? host / plan_.rack_hosts : 0; }
  std::size_t index(int number, Kind kind) const;

  const LinkPlan plan_;
  const int hosts_;
  std::vector<Link> links_;
};

}  // namespace perf::scale

// The two sides of a microbenchmark: they meet, compare their options, open a device each and connect.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "perf/write/meeting.h"
#include "perf/write/settings.h"
#include "verbs/transport.h"

namespace perf::write {

/// One endpoint and where it writes to. Peer 0 is the server, 1 the client.
struct Channel {
  std::unique_ptr<nzcl::verbs::Endpoint> endpoint;
  nzcl::verbs::RemoteMemory target;  // first byte of the peer's receive half
};

/// Owns everything that one side needs; used by one thread. The buffer has two halves of the largest size
/// each, one to send from and one to receive into.
class Session {
 public:
  /// Throws nzcl::Error if the sides do not meet, if their options differ, or if there is no device.
  explicit Session(Settings settings);
  ~Session();

  const Settings& settings() const { return settings_; }
  nzcl::verbs::PeerId self() const { return settings_.server() ? 0 : 1; }
  nzcl::verbs::PeerId peer() const { return settings_.server() ? 1 : 0; }
  const nzcl::verbs::Device& device() const { return *device_; }
  std::vector<Channel>& channels() { return channels_; }
  /// The number of immediates that may be on their way to one endpoint.
  std::uint32_t arrivals() const { return arrivals_; }

  std::byte* outgoing() { return memory_.get(); }
  std::byte* incoming() { return memory_.get() + half_; }
  const nzcl::verbs::MemoryRegion& region() const { return *region_; }
  /// Returns what the other side said. Both sides call it, in the same order.
  std::string exchange(const std::string& mine) { return meeting_.exchange(mine); }

 private:
  void write_first();
  void poll_until_over(nzcl::verbs::Deadline deadline);

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  Settings settings_;
  Meeting meeting_;
  std::shared_ptr<nzcl::verbs::Device> device_;
  std::size_t half_ = 0;
  // Begins at a page, because the speed of copies depends on where memory begins.
  std::unique_ptr<std::byte, Free> memory_;
  std::unique_ptr<nzcl::verbs::MemoryRegion> region_;
  std::uint32_t arrivals_ = 0;
  std::vector<Channel> channels_;
};

}  // namespace perf::write

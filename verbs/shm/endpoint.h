#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verbs/segment/endpoint.h"
#include "verbs/shm/bounce_ring.h"
#include "verbs/shm/device.h"
#include "verbs/shm/listener.h"

namespace nzcl::verbs::shm {

/// An endpoint that meets its peers through a socket, and writes memory that is not mapped through a ring of
/// bytes, out of which the peer copies it.
///
/// Invariant: what came through a peer's ring before an immediate is in its place when poll() returns that
/// immediate.
class ShmEndpoint final : public segment::SegmentEndpoint {
 public:
  ShmEndpoint(ShmDevice& device, const EndpointOptions& options);

  std::string address_for(PeerId peer) override;
  /// Waits for the connect() of the peers.
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t poll(std::span<Completion> out) noexcept override;

 private:
  struct Link {     // to a peer
    Fd connection;  // which the kernel closes when the peer ends
    Fd event;
    BounceWriter ring;
  };
  Moved write_unmapped(PeerId peer, const Write& write, std::uint64_t bytes) noexcept override;
  std::string why_lost(PeerId peer) noexcept override;
  bool wake(PeerId peer) noexcept override;
  bool has_more_to_poll() const noexcept override;

  void offer_memory();
  std::vector<int> offered_descriptors() const;
  bool take(std::size_t ring) noexcept;

  ShmDevice& device_;
  const std::uint64_t token_;
  std::optional<Listener> listener_;  // until all peers are connected; none if there are none
  bool has_offered_ = false;
  std::vector<segment::SharedByPeer::Memory> offered_;  // what address_for() has spoken of, until connected
  std::vector<Link> links_;                             // by peer
  std::vector<BounceReader> readers_;                   // by ring
  std::vector<PeerId> peer_of_ring_;
};

}  // namespace nzcl::verbs::shm

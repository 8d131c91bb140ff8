#pragma once

#include <string>

#include "verbs/cma/device.h"
#include "verbs/cma/held_peers.h"
#include "verbs/segment/endpoint.h"

namespace nzcl::verbs::cma {

/// An endpoint that takes its peers' descriptors from their processes, and writes memory that is not mapped
/// through the kernel: when post() returns, its writes have landed. It maps what its peers share when it
/// connects, and needs their descriptors again only to wake them and to write through the kernel.
class CmaEndpoint final : public segment::SegmentEndpoint {
 public:
  CmaEndpoint(CmaDevice& device, const EndpointOptions& options);

  std::string address_for(PeerId peer) override;
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t poll(std::span<Completion> out) noexcept override;

 private:
  Moved write_unmapped(PeerId peer, const Write& write, std::uint64_t bytes) noexcept override;
  std::string why_lost(PeerId peer) noexcept override;
  bool wake(PeerId peer) noexcept override;
  void connect_to(PeerId peer, const std::string& text);

  CmaDevice& device_;
  HeldPeers held_;  // by the numbers of their rings
};

}  // namespace nzcl::verbs::cma

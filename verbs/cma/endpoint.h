#pragma once

#include <string>
#include <vector>

#include "verbs/cma/device.h"
#include "verbs/cma/handles.h"
#include "verbs/segment/endpoint.h"

namespace nzcl::verbs::cma {

/// An endpoint that takes its peers' descriptors from their processes, and writes memory that is not mapped
/// through the kernel: when post() returns, its writes have landed.
class CmaEndpoint final : public segment::SegmentEndpoint {
 public:
  CmaEndpoint(CmaDevice& device, const EndpointOptions& options);

  std::string address_for(PeerId peer) override;
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t poll(std::span<Completion> out) noexcept override;

 private:
  Moved write_unmapped(PeerId peer, const Write& write, std::uint64_t bytes) noexcept override;
  bool has_ended(PeerId peer) const noexcept override { return processes_[peer].has_ended(); }
  std::string who(PeerId peer) const override;
  void connect_to(PeerId peer, const std::string& text);

  CmaDevice& device_;
  std::vector<Process> processes_;  // by peer
};

}  // namespace nzcl::verbs::cma

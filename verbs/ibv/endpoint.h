#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verbs/cm/connector.h"
#include "verbs/completion_ring.h"
#include "verbs/ibv/constants.h"
#include "verbs/ibv/device.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ibv {

/// One RC queue pair per peer, a completion queue for all of them, and a shared receive queue whose requests
/// are used up by immediates.
///
/// Invariants: a queue pair never has more than kSendDepth writes under way, the endpoint never more than
/// kMaxPosted; every list ends with a signalled write, so that each write's completion comes without another
/// one being posted; the receive queue holds EndpointOptions::arrivals requests and a batch.
class IbvEndpoint final : public Endpoint {
 public:
  IbvEndpoint(IbvDevice& device, const EndpointOptions& options);
  ~IbvEndpoint() override;

  std::string address_for(PeerId peer) override;
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t post(std::span<const Write> writes) noexcept override;
  std::size_t poll(std::span<Completion> out) noexcept override;
  std::string failure() const override { return failure_; }
  std::size_t in_flight() const noexcept override { return in_flight_; }
  int wait_fd() const noexcept override { return wait_fd_; }
  bool prepare_wait() noexcept override;

 private:
  struct Peer {
    Handle<ibv_qp> queue;
    std::uint32_t first_packet = 0;
    std::uint32_t posted = 0, retired = 0;  // writes, free-running
    std::array<std::uint64_t, kSendDepth> contexts{};
    ibv_send_wr* first = nullptr;  // of the list being built
    ibv_send_wr* last = nullptr;
    bool broken = false;
  };
  bool append(const Write& write) noexcept;
  bool send_lists() noexcept;
  void retire(PeerId peer, std::uint32_t up_to) noexcept;
  void give_up(PeerId peer) noexcept;
  void take(const ibv_wc& wc) noexcept;
  void fail(PeerId peer, std::string text) noexcept;
  bool poll_queue(std::size_t at_most) noexcept;
  void refill(std::uint32_t count);
  std::size_t hand_out(std::span<Completion> out) noexcept;

  IbvDevice& device_;
  const EndpointOptions options_;
  Handle<ibv_comp_channel> channel_;
  Handle<ibv_cq> completions_;
  Handle<ibv_srq> receives_;
  std::unique_ptr<cm::Connector> connector_;  // with rdma_cm
  std::vector<Peer> peers_;
  std::uint32_t inline_bytes_;  // as granted
  int wait_fd_ = -1;            // epoll: completions and the device's events

  // The burst being posted.
  std::array<ibv_send_wr, kBurst> requests_;
  std::array<std::array<ibv_sge, kMaxSegments>, kBurst> segments_;
  std::array<PeerId, kBurst> touched_;
  std::size_t burst_ = 0, touched_count_ = 0;

  std::size_t in_flight_ = 0;  // accepted, and not yet handed out
  CompletionRing ready_{0};    // in_flight_, arrivals and a failure per peer fit
  std::uint32_t used_receives_ = 0;
  std::uint32_t empty_polls_ = 0;
  bool device_failed_ = false;
  std::string failure_;
};

}  // namespace nzcl::verbs::ibv

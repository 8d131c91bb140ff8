#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verbs/cm/connector.h"
#include "verbs/completion_ring.h"
#include "verbs/ibv/calls.h"
#include "verbs/ibv/constants.h"
#include "verbs/ibv/device.h"
#include "verbs/ibv/handshake.h"
#include "verbs/ibv/held_requests.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ibv {

/// One RC queue pair for each peer that it exchanges something with, made when it is first needed
/// (README.md); one completion queue for all of them, and one shared receive queue.
///
/// The life of a write:
/// 1. append() turns it into a work request with a gather list and adds it to the list of its peer. The
/// context is kept in a ring at the position of the write's sequence number. The requests of a peer that is
/// not connected yet are held until it is.
/// 2. send_lists() posts one list per peer. The last request of each list, and every kSignalEvery-th request
/// of a queue pair, asks for a completion.
/// 3. poll_queue() takes a completion, whose WorkRequestId names the peer and the sequence number. retire()
/// reports this write and all earlier ones of the queue pair as written.
///
/// An immediate uses up one receive request of the peer. These requests are given back in batches of
/// kRefillBatch.
///
/// Invariants: a queue pair never has more than kSendDepth writes in flight, and the endpoint never more than
/// kMaxPosted. Every list ends with a signalled write, so that the completion of each write comes even if no
/// other write is posted after it. At least EndpointOptions::arrivals receive requests are posted, or
/// kMostReceives if that is less; then packets that find none are sent again.
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
  /// What is kept of a peer from the time on at which one of both has something to write.
  struct Peer {
    Handle<ibv_qp> queue;
    std::uint32_t posted = 0, retired = 0;  // numbers of writes, modulo 2^32
    std::array<std::uint64_t, kSendDepth> contexts{};
    ibv_send_wr* first = nullptr;  // first and last request of the list that append() builds
    ibv_send_wr* last = nullptr;
    Handshake handshake;
    Clock::time_point say_at, patient_until;  // while this side calls
    Clock::duration pause{};                  // from one word to the next
    bool broken = false;
  };
  // --- Connecting: endpoint_connect.cc
  Peer& make_peer(PeerId id);
  void make_queue(PeerId id, Peer& peer);
  Peer* first_write_to(PeerId id) noexcept;
  void begin_calling(PeerId id, Peer& peer) noexcept;
  void call_again() noexcept;
  bool still_calls(PeerId id, Clock::time_point now) noexcept;
  void take_call(const ibv_wc& wc) noexcept;
  void hear(const Calls::Heard& heard);
  void look_at_calls() noexcept;
  void send_held(PeerId id) noexcept;
  void break_off(PeerId id, std::string why) noexcept;

  bool append(const Write& write) noexcept;
  void fill(ibv_send_wr& request, ibv_sge* segments, const Write& write, const Peer& peer) const noexcept;
  bool send_lists() noexcept;
  bool send_list(PeerId id) noexcept;
  void retire(PeerId peer, std::uint32_t up_to) noexcept;
  void give_up(PeerId peer) noexcept;
  void take(const ibv_wc& wc) noexcept;
  void fail(PeerId peer, std::string text) noexcept;
  bool poll_queue(std::size_t at_most) noexcept;
  void refill(std::uint32_t count);
  std::size_t hand_out(std::span<Completion> out) noexcept;

  IbvDevice& device_;
  const EndpointOptions options_;
  const ConnectionOptions connection_;
  Handle<ibv_comp_channel> channel_;
  Handle<ibv_cq> completions_;
  Handle<ibv_srq> receives_;
  const std::uint32_t first_packet_;          // the number of the first one to each peer
  std::unique_ptr<cm::Connector> connector_;  // null unless the queue pairs are connected by rdma_cm
  std::unique_ptr<Calls> calls_;              // null if they are
  std::vector<std::unique_ptr<Peer>> peers_;  // null for those that nothing was exchanged with
  std::vector<PeerId> calling_;               // peers that are to be told a word again
  HeldRequests held_;                         // of those peers
  std::uint32_t inline_bytes_;                // largest write that is sent inline, as the device granted it
  int wait_fd_ = -1;                          // an epoll of completions and of the device's events

  // The work requests that post() builds, and the peers that they go to.
  std::array<ibv_send_wr, kBurst> requests_;
  std::array<std::array<ibv_sge, kMaxSegments>, kBurst> segments_;
  std::array<PeerId, kBurst> touched_;
  std::size_t burst_ = 0, touched_count_ = 0;

  std::size_t in_flight_ = 0;  // writes that were accepted and whose completion poll() has not returned
  CompletionRing ready_{0};    // has room for the writes in flight, all arrivals, and a failure per peer
  std::uint32_t used_receives_ = 0;
  std::uint32_t empty_polls_ = 0;
  bool device_failed_ = false;
  std::string failure_;
};

}  // namespace nzcl::verbs::ibv

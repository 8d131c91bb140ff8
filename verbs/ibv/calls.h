// The datagrams by which endpoints tell each other their queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbs/ibv/address.h"
#include "verbs/ibv/device.h"
#include "verbs/ibv/handles.h"
#include "verbs/ibv/handshake.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ibv {

/// Sends and receives the words of handshakes through a UD queue pair of its own. Its completions come in a
/// queue of the caller's, which must have room for kEntries of them. For one thread.
///
/// A datagram may be lost, also because there was no room for it here or there. What is not known to come
/// from a peer is dropped.
class Calls {
 public:
  /// Completions that may be in the queue at a time.
  static constexpr std::uint32_t kEntries = kCallSends + kCallReceives;
  struct Heard {
    PeerId peer = 0;
    Word word = Word::call;
    std::uint32_t queue_pair = 0, first_packet = 0;
  };

  /// Throws Error{system} or Error{transport}.
  Calls(IbvDevice& device, ibv_cq* completions, const EndpointOptions& options, std::uint32_t first_packet);

  /// The address of this endpoint, the same for all peers.
  std::string address() const { return own_.encode(); }
  /// Learns the addresses of all peers; an empty one leaves that peer out. Throws Error{transport} naming the
  /// peer whose address is none.
  void connect(std::span<const std::string> addresses);
  bool knows(PeerId peer) const { return peer < peers_.size() && peers_[peer].address.calls != 0; }
  /// Precondition: knows(peer).
  const EndpointAddress& address_of(PeerId peer) const { return peers_[peer].address; }

  /// Finds the way to the peer, which say() needs. It may make system calls. Throws Error{system}.
  void find(PeerId peer);
  /// Sends a word to a peer that was found. Returns false if there is no room now.
  bool say(PeerId peer, Word word, std::uint32_t queue_pair) noexcept;

  /// Takes a completion whose WorkRequestId is of calls. Returns what a peer has said.
  std::optional<Heard> take(const ibv_wc& completion) noexcept;
  /// What has ended all calls, or "".
  const std::string& failure() const { return failure_; }

 private:
  struct Peer {
    EndpointAddress address;  // `calls` is 0 for peers that are left out
    Handle<ibv_ah> route;
  };
  Handle<ibv_qp> make_queue_pair(ibv_cq* completions) const;
  void bring_up();
  void give_receive(std::uint32_t slot) noexcept;
  std::optional<Heard> read(std::span<const std::byte> datagram, std::uint32_t from_queue_pair) const;
  std::byte* slot(std::uint32_t i) { return memory_.data() + i * kSlotBytes; }
  ibv_sge entry(std::uint32_t slot, std::size_t bytes);
  void fail(const std::string& text) noexcept;

  /// A device puts a route header in front of what it receives.
  static constexpr std::size_t kRouteHeader = 40;
  static constexpr std::size_t kSlotBytes = 128;
  static_assert(kRouteHeader + sizeof(CallMessage) <= kSlotBytes);

  IbvDevice& device_;
  const PeerId self_;
  const std::uint32_t first_packet_;  // of each RC queue pair of this endpoint
  EndpointAddress own_;
  std::vector<Peer> peers_;
  std::vector<std::byte> memory_;  // slots to receive in, and behind them those to send from
  const Handle<ibv_mr> region_;
  const Handle<ibv_qp> queue_;
  std::vector<std::uint32_t> free_sends_;  // slots
  std::string failure_;
};

}  // namespace nzcl::verbs::ibv

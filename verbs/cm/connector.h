// Connects RC queue pairs through the kernel's connection manager (librdmacm), which asks the network for
// addresses and routes.
#pragma once

#include <rdma/rdma_cma.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "verbs/cm/greeting.h"
#include "verbs/ibv/port.h"
#include "verbs/ibv/queue_pair.h"

namespace nzcl::verbs::cm {

struct Destroy {
  void operator()(rdma_event_channel* p) const { rdma_destroy_event_channel(p); }
  void operator()(rdma_cm_id* p) const { rdma_destroy_id(p); }
};
template <typename T>
using Handle = std::unique_ptr<T, Destroy>;

/// Of one endpoint. It listens at the IP address of its port from the start; of two endpoints the one with
/// the greater index calls the other. The queue pairs stay the caller's: the kernel only says how to bring
/// them up. Connections end with the connector. One thread.
///
/// Invariant: a connection is accepted only from the peer that was given this connector's token for it, and
/// only once.
class Connector {
 public:
  /// Throws Error{unavailable} when the port has no IPv4 address or the kernel no connection manager.
  Connector(const ibv::Port& port, const ibv::ConnectionOptions& options, PeerId self, std::size_t peers);

  /// Where this endpoint listens, and the token for `peer`.
  std::string address_for(PeerId peer);
  /// queues[i] is connected to peer i; null: left out. Throws Error{timeout} naming the peers that were not
  /// reached in time, Error{transport} with rdma_cm's own words, Error{denied} for a peer that knows no
  /// token.
  void connect(std::span<ibv_qp* const> queues, std::span<const std::string> addresses, Deadline deadline);

 private:
  struct Address;
  struct Peer {
    Handle<rdma_cm_id> id;
    Token ours{}, theirs{};
    ibv_qp* queue = nullptr;
    bool wanted = false, connected = false;
  };
  void call(PeerId peer, const Address& address);
  void handle(const rdma_cm_event& event);
  void take_request(rdma_cm_id* id, const rdma_conn_param& request);
  void take_reply(PeerId peer, const rdma_conn_param& reply);
  void bring_up(PeerId peer, ibv_qp_state state);
  rdma_conn_param parameters(PeerId peer, const Greeting& greeting) const;
  std::string describe(PeerId peer) const;
  std::string missing() const;

  const ibv::Port port_;
  const ibv::ConnectionOptions options_;
  const PeerId self_;
  Handle<rdma_event_channel> channel_;  // before the ids, which it outlives
  Handle<rdma_cm_id> listener_;
  std::vector<Peer> peers_;
  std::vector<Handle<rdma_cm_id>> strangers_;  // refused; an id may not go before its event was acknowledged
};

}  // namespace nzcl::verbs::cm

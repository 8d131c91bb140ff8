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

/// Connects the queue pairs of one endpoint. The caller owns these; the kernel only supplies the attributes
/// that bring them up. The connections end when the connector is destroyed. For one thread.
///
/// Every endpoint listens at the IPv4 address of its port as soon as it is constructed. The endpoints then
/// tell each other their addresses and tokens, and of two endpoints the one with the greater index calls the
/// other:
/// 1. The caller resolves the address and the route, moves its queue pair to INIT, and sends a request with a
/// Greeting that carries the token which the called side had given it.
/// 2. The called side checks the greeting. If it is right, the queue pair goes through INIT and RTR to RTS,
/// and the reply carries a Greeting with the token which the caller had given. Otherwise the request is
/// refused, and the called side goes on waiting.
/// 3. The caller checks the greeting of the reply, moves its queue pair to RTR and RTS, and confirms with
/// rdma_establish. It is connected now.
/// 4. The called side is connected when ESTABLISHED arrives.
///
/// Invariant: a connection is accepted only from the peer that was given this connector's token for it, and
/// only once per peer.
class Connector {
 public:
  /// Throws Error{unavailable} if the port has no IPv4 address or the kernel has no connection manager.
  Connector(const ibv::Port& port, const ibv::ConnectionOptions& options, const EndpointOptions& endpoint);

  /// The address at which this endpoint listens, and its token for `peer`.
  std::string address_for(PeerId peer);
  /// Connects queues[i] to peer i; a null pointer leaves that peer out. Throws Error{timeout} naming the
  /// peers that were not reached in time, Error{transport} with rdma_cm's own words, and Error{denied} if a
  /// peer answers without the right token.
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
  const EndpointOptions& endpoint_;
  const PeerId self_;
  Handle<rdma_event_channel> channel_;  // declared before the ids, because it must outlive them
  Handle<rdma_cm_id> listener_;
  std::vector<Peer> peers_;
  std::vector<Handle<rdma_cm_id>> strangers_;  // refused requests, kept until their events were acknowledged
};

}  // namespace nzcl::verbs::cm

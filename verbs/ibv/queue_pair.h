// A reliable connection (RC) to one peer.
#pragma once

#include <cstdint>
#include <string>

#include "verbs/ibv/address.h"
#include "verbs/ibv/constants.h"
#include "verbs/ibv/handles.h"
#include "verbs/ibv/port.h"

namespace nzcl::verbs::ibv {

struct ConnectionOptions {
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  std::uint8_t ack_timeout = 18;  // wait for an acknowledgement: 4.096 us * 2^n
  std::uint8_t receiver_retries = kReceiverRetries;
  std::uint32_t inline_bytes = kInlineBytes;
  Clock::duration call_patience = std::chrono::seconds(15);  // for a peer to answer a call
  bool rdma_cm = false;                                      // connect all peers at the start, by verbs/cm
};

/// How long a peer may take to answer a call, of an operation that may take `timeout_s`.
Clock::duration call_patience_for(double timeout_s);
/// The code of the wait for an acknowledgement with which a dead peer is noticed after about a quarter of
/// `timeout_s`, retries included. It lies between 12 and 20.
std::uint8_t ack_timeout_for(double timeout_s);

Handle<ibv_qp> make_queue_pair(ibv_pd* pd, ibv_cq* cq, ibv_srq* srq, std::uint32_t send_depth,
                               std::uint32_t segments, std::uint32_t& inline_bytes, const std::string& name);
/// The way from a port to a peer, for queue pairs of every kind.
ibv_ah_attr route_to(const EndpointAddress& peer, const Port& port, const ConnectionOptions& options);
/// One end of a connection: the number of a queue pair, and of the first packet that it sends.
struct QueuePairEnd {
  std::uint32_t number = 0, first_packet = 0;
};
/// Moves the queue pair through INIT and RTR to RTS, connected with that end at the peer. `first_packet` is
/// its own. Throws Error{transport}.
void connect(ibv_qp* qp, const Port& port, std::uint32_t first_packet, const EndpointAddress& peer,
             const QueuePairEnd& end, const ConnectionOptions& options);

}  // namespace nzcl::verbs::ibv

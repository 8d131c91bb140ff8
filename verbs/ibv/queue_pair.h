// A reliable connection (RC) to one peer. Queue pair number, packet sequence number and GID travel over the
// runtime's own bootstrap.
#pragma once

#include <cstdint>
#include <string>

#include "verbs/ibv/constants.h"
#include "verbs/ibv/handles.h"
#include "verbs/ibv/port.h"

namespace nzcl::verbs::ibv {

/// What a peer needs to know to connect to a queue pair. The struct travels as these bytes, because both
/// sides run the same version of nzcl.
struct QueuePairAddress {
  std::uint8_t gid[16] = {};
  std::uint32_t number = 0;
  std::uint32_t first_packet = 0;  // number of the first packet, 24 bits
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;  // ibv_mtu
  std::uint8_t ethernet = 0;

  std::string encode() const;
  /// Throws Error{transport} if `text` is not an address.
  static QueuePairAddress decode(const std::string& text);
};
static_assert(sizeof(QueuePairAddress) == 28);

struct ConnectionOptions {
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  std::uint8_t ack_timeout = 18;  // wait for an acknowledgement: 4.096 us * 2^n
  std::uint8_t receiver_retries = kReceiverRetries;
  std::uint32_t inline_bytes = kInlineBytes;
  bool rdma_cm = false;  // connect by verbs/cm instead of the runtime's own bootstrap
};

/// The code of the wait for an acknowledgement with which a dead peer is noticed after about a quarter of
/// `timeout_s`, retries included. It lies between 12 and 20.
std::uint8_t ack_timeout_for(double timeout_s);

Handle<ibv_qp> make_queue_pair(ibv_pd* pd, ibv_cq* cq, ibv_srq* srq, std::uint32_t send_depth,
                               std::uint32_t segments, std::uint32_t& inline_bytes, const std::string& name);
QueuePairAddress address_of(ibv_qp* qp, const Port& port, std::uint32_t first_packet);
/// Moves the queue pair through INIT and RTR to RTS. Throws Error{transport}.
void connect(ibv_qp* qp, const Port& port, std::uint32_t first_packet, const QueuePairAddress& peer,
             const ConnectionOptions& options);

}  // namespace nzcl::verbs::ibv

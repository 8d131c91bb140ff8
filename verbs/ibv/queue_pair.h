// A reliable connection to one peer: made over the runtime's own bootstrap (queue pair number, packet
// sequence number, GID).
#pragma once

#include <cstdint>
#include <string>

#include "verbs/ibv/constants.h"
#include "verbs/ibv/handles.h"
#include "verbs/ibv/port.h"

namespace nzcl::verbs::ibv {

/// What the other side needs to know. Travels as these bytes; both sides run the same version of nzcl.
struct QueuePairAddress {
  std::uint8_t gid[16] = {};
  std::uint32_t number = 0;
  std::uint32_t first_packet = 0;  // 24 bits
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;  // ibv_mtu
  std::uint8_t ethernet = 0;

  std::string encode() const;
  /// Throws Error{transport} when `text` is none.
  static QueuePairAddress decode(const std::string& text);
};
static_assert(sizeof(QueuePairAddress) == 28);

struct ConnectionOptions {
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  std::uint8_t ack_timeout = 18;  // 4.096 us * 2^n
  std::uint32_t inline_bytes = kInlineBytes;
  bool rdma_cm = false;  // verbs/cm instead of the runtime's own bootstrap
};

/// The wait for an acknowledgement that makes a dead peer known after about a quarter of `timeout_s`, retries
/// included: 12 .. 20.
std::uint8_t ack_timeout_for(double timeout_s);

Handle<ibv_qp> make_queue_pair(ibv_pd* pd, ibv_cq* cq, ibv_srq* srq, std::uint32_t send_depth,
                               std::uint32_t segments, std::uint32_t& inline_bytes, const std::string& name);
QueuePairAddress address_of(ibv_qp* qp, const Port& port, std::uint32_t first_packet);
/// Through INIT and RTR to RTS. Throws Error{transport}.
void connect(ibv_qp* qp, const Port& port, std::uint32_t first_packet, const QueuePairAddress& peer,
             const ConnectionOptions& options);

}  // namespace nzcl::verbs::ibv

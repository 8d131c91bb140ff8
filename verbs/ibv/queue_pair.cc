#include "verbs/ibv/queue_pair.h"

#include <algorithm>
#include <cmath>

#include "verbs/ibv/constants.h"

namespace nzcl::verbs::ibv {

std::string QueuePairAddress::encode() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }

QueuePairAddress QueuePairAddress::decode(const std::string& text) {
  QueuePairAddress address;
  if (text.size() != sizeof address)
    throw Error(ErrorCode::transport,
                fmt::format("ibverbs: an address has {} bytes instead of {}", text.size(), sizeof address));
  std::memcpy(&address, text.data(), sizeof address);
  constexpr std::uint32_t kMost = (1 << 24) - 1;
  if (address.number > kMost || address.first_packet > kMost || address.ethernet > 1 ||
      address.mtu < IBV_MTU_256 || address.mtu > IBV_MTU_4096) {
    throw Error(
        ErrorCode::transport,
        fmt::format("ibverbs: an address has a value out of range: queue pair {}, first packet {}, MTU code "
                    "{}, link layer {}",
                    address.number, address.first_packet, address.mtu, address.ethernet));
  }
  return address;
}

std::uint8_t ack_timeout_for(double timeout_s) {
  const double one_try = timeout_s / 4 / (kRetries + 1);
  return static_cast<std::uint8_t>(std::clamp(std::floor(std::log2(one_try / 4.096e-6)), 12.0, 20.0));
}

Handle<ibv_qp> make_queue_pair(ibv_pd* pd, ibv_cq* cq, ibv_srq* srq, std::uint32_t send_depth,
                               std::uint32_t segments, std::uint32_t& inline_bytes, const std::string& name) {
  ibv_qp_init_attr attr{};
  attr.send_cq = cq;
  attr.recv_cq = cq;
  attr.srq = srq;
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = send_depth;
  attr.cap.max_send_sge = segments;
  attr.cap.max_inline_data = inline_bytes;
  ibv_qp* qp = ibv_create_qp(pd, &attr);
  if (qp == nullptr && errno == EINVAL) {  // the device grants less inline data, and no call tells how much
    attr.cap.max_inline_data = 0;
    qp = ibv_create_qp(pd, &attr);
  }
  auto handle = owned(qp, name + ": creating a queue pair");
  inline_bytes = std::min(inline_bytes, attr.cap.max_inline_data);
  return handle;
}

QueuePairAddress address_of(ibv_qp* qp, const Port& port, std::uint32_t first_packet) {
  QueuePairAddress address;
  std::memcpy(address.gid, port.gid.gid.raw, sizeof address.gid);
  address.number = qp->qp_num;
  address.first_packet = first_packet;
  address.lid = port.lid;
  address.mtu = static_cast<std::uint8_t>(port.mtu);
  address.ethernet = port.ethernet;
  return address;
}

void connect(ibv_qp* qp, const Port& port, std::uint32_t first_packet, const QueuePairAddress& peer,
             const ConnectionOptions& options) {
  const auto step = [&](ibv_qp_attr& attr, int mask, const char* state) {
    check(ibv_modify_qp(qp, &attr, mask),
          fmt::format("{}: bringing queue pair {} to {}", port.device, qp->qp_num, state));
  };
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = 0;
  init.port_num = port.number;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  step(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");

  ibv_qp_attr rtr{};
  rtr.qp_state = IBV_QPS_RTR;
  rtr.path_mtu = std::min(port.mtu, static_cast<ibv_mtu>(peer.mtu));
  rtr.dest_qp_num = peer.number;
  rtr.rq_psn = peer.first_packet;
  rtr.max_dest_rd_atomic = 0;  // nzcl uses no RDMA reads
  rtr.min_rnr_timer = kReceiverPause;
  rtr.ah_attr.is_global = 1;
  std::memcpy(rtr.ah_attr.grh.dgid.raw, peer.gid, sizeof peer.gid);
  rtr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(port.gid.index);
  rtr.ah_attr.grh.hop_limit = 64;
  rtr.ah_attr.grh.traffic_class = options.traffic_class;
  rtr.ah_attr.dlid = peer.lid;
  rtr.ah_attr.sl = options.service_level;
  rtr.ah_attr.port_num = port.number;
  step(rtr,
       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
       "RTR");

  ibv_qp_attr rts{};
  rts.qp_state = IBV_QPS_RTS;
  rts.timeout = options.ack_timeout;
  rts.retry_cnt = kRetries;
  rts.rnr_retry = options.receiver_retries;
  rts.sq_psn = first_packet;
  rts.max_rd_atomic = 0;
  step(rts,
       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC,
       "RTS");
}

}  // namespace nzcl::verbs::ibv

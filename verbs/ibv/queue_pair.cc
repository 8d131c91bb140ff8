#include "verbs/ibv/queue_pair.h"

#include <algorithm>
#include <cmath>

#include "verbs/ibv/constants.h"

namespace nzcl::verbs::ibv {

Clock::duration call_patience_for(double timeout_s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s / 2));
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

ibv_ah_attr route_to(const EndpointAddress& peer, const Port& port, const ConnectionOptions& options) {
  ibv_ah_attr route{};
  route.is_global = 1;
  std::memcpy(route.grh.dgid.raw, peer.gid, sizeof peer.gid);
  route.grh.sgid_index = static_cast<std::uint8_t>(port.gid.index);
  route.grh.hop_limit = 64;
  route.grh.traffic_class = options.traffic_class;
  route.dlid = peer.lid;
  route.sl = options.service_level;
  route.port_num = port.number;
  return route;
}

void connect(ibv_qp* qp, const Port& port, std::uint32_t first_packet, const EndpointAddress& peer,
             const QueuePairEnd& end, const ConnectionOptions& options) {
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
  rtr.dest_qp_num = end.number;
  rtr.rq_psn = end.first_packet;
  rtr.max_dest_rd_atomic = 0;  // nzcl uses no RDMA reads
  rtr.min_rnr_timer = kReceiverPause;
  rtr.ah_attr = route_to(peer, port, options);
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

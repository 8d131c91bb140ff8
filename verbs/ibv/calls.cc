#include "verbs/ibv/calls.h"

#include <cstring>

#include "verbs/ibv/constants.h"
#include "verbs/ibv/work_request_id.h"
#include "verbs/random.h"

namespace nzcl::verbs::ibv {
namespace {

EndpointAddress address_at(const Port& port) {
  EndpointAddress address;
  std::memcpy(address.gid, port.gid.gid.raw, sizeof address.gid);
  address.token = random_number();
  address.lid = port.lid;
  address.mtu = static_cast<std::uint8_t>(port.mtu);
  address.ethernet = port.ethernet;
  return address;
}

}  // namespace

Calls::Calls(IbvDevice& device, ibv_cq* completions, const EndpointOptions& options,
             std::uint32_t first_packet)
    : device_(device),
      self_(options.self),
      first_packet_(first_packet),
      own_(address_at(device.port())),
      peers_(options.peers),
      memory_(kEntries * kSlotBytes),
      region_(owned(ibv_reg_mr(device.domain(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE),
                    device.name() + ": registering memory for calls")),
      queue_(make_queue_pair(completions)) {
  own_.calls = queue_->qp_num;
  bring_up();
  for (std::uint32_t i = 0; i < kCallReceives; ++i) give_receive(i);
  for (std::uint32_t i = 0; i < kCallSends; ++i) free_sends_.push_back(kCallReceives + i);
  if (!failure_.empty()) throw Error(ErrorCode::transport, failure_);
}

Handle<ibv_qp> Calls::make_queue_pair(ibv_cq* completions) const {
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = completions;
  attr.qp_type = IBV_QPT_UD;
  attr.cap = {.max_send_wr = kCallSends,
              .max_recv_wr = kCallReceives,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  return owned(ibv_create_qp(device_.domain(), &attr),
               device_.name() + ": creating a queue pair for calls (a UD queue pair)");
}

void Calls::bring_up() {
  const auto step = [&](ibv_qp_attr attr, int mask, const char* state) {
    check(ibv_modify_qp(queue_.get(), &attr, mask),
          fmt::format("{}: bringing queue pair {} to {}", device_.name(), queue_->qp_num, state));
  };
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = device_.port().number;
  attr.qkey = own_.key();
  step(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, "INIT");
  attr.qp_state = IBV_QPS_RTR;
  step(attr, IBV_QP_STATE, "RTR");
  attr.qp_state = IBV_QPS_RTS;
  step(attr, IBV_QP_STATE | IBV_QP_SQ_PSN, "RTS");
}

void Calls::connect(std::span<const std::string> addresses) {
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (i == self_ || addresses[i].empty()) continue;
    try {
      peers_[i].address = EndpointAddress::decode(addresses[i]);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} (connecting to peer {})", e.what(), i));
    }
  }
}

void Calls::find(PeerId id) {
  Peer& peer = peers_[id];
  if (peer.route) return;
  ibv_ah_attr attr = route_to(peer.address, device_.port(), device_.connection());
  peer.route = owned(ibv_create_ah(device_.domain(), &attr),
                     fmt::format("{}: finding the way to peer {}", device_.name(), id));
}

ibv_sge Calls::entry(std::uint32_t i, std::size_t bytes) {
  return {reinterpret_cast<std::uint64_t>(slot(i)), static_cast<std::uint32_t>(bytes), region_->lkey};
}

bool Calls::say(PeerId id, Word word, std::uint32_t queue_pair) noexcept {
  if (free_sends_.empty()) return false;
  const Peer& peer = peers_[id];
  const std::uint32_t place = free_sends_.back();
  const CallMessage message{.from = self_,
                            .to = id,
                            .word = word,
                            .queue_pair = queue_pair,
                            .first_packet = first_packet_,
                            .token = peer.address.token};
  std::memcpy(slot(place), &message, sizeof message);
  ibv_sge sge = entry(place, sizeof message);
  ibv_send_wr request{}, *refused = nullptr;
  request.wr_id = WorkRequestId{.receive = false, .peer = WorkRequestId::kCalls, .sequence = place}.encode();
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = peer.route.get();
  request.wr.ud.remote_qpn = peer.address.calls;
  request.wr.ud.remote_qkey = peer.address.key();
  if (const int error = ibv_post_send(queue_.get(), &request, &refused)) {
    fail(fmt::format("{}: calling peer {}: {}", device_.name(), id, std::strerror(error)));
    return false;
  }
  free_sends_.pop_back();
  return true;
}

void Calls::give_receive(std::uint32_t place) noexcept {
  ibv_sge sge = entry(place, kSlotBytes);
  ibv_recv_wr request{}, *refused = nullptr;
  request.wr_id = WorkRequestId{.receive = true, .peer = WorkRequestId::kCalls, .sequence = place}.encode();
  request.sg_list = &sge;
  request.num_sge = 1;
  if (const int error = ibv_post_recv(queue_.get(), &request, &refused))
    fail(fmt::format("{}: posting receive requests for calls: {}", device_.name(), std::strerror(error)));
}

std::optional<Calls::Heard> Calls::take(const ibv_wc& completion) noexcept {
  const WorkRequestId id = WorkRequestId::decode(completion.wr_id);
  if (completion.status != IBV_WC_SUCCESS) {
    fail(fmt::format("{}: a call: {} (vendor error {:#x})", device_.name(),
                     ibv_wc_status_str(completion.status), completion.vendor_err));
    return std::nullopt;
  }
  if (!id.receive) {
    free_sends_.push_back(id.sequence);
    return std::nullopt;
  }
  std::optional<Heard> heard;
  if ((completion.wc_flags & IBV_WC_GRH) != 0 && completion.byte_len >= kRouteHeader)
    heard = read({slot(id.sequence) + kRouteHeader, completion.byte_len - kRouteHeader}, completion.src_qp);
  give_receive(id.sequence);
  return heard;
}

/// A stranger cannot know the token. The rest is for peers that are wrong.
std::optional<Calls::Heard> Calls::read(std::span<const std::byte> datagram,
                                        std::uint32_t from_queue_pair) const {
  const auto message = CallMessage::read(datagram);
  if (!message || message->token != own_.token || message->to != self_ || !knows(message->from) ||
      address_of(message->from).calls != from_queue_pair)
    return std::nullopt;
  return Heard{.peer = message->from,
               .word = message->word,
               .queue_pair = message->queue_pair,
               .first_packet = message->first_packet};
}

void Calls::fail(const std::string& text) noexcept {
  if (failure_.empty()) failure_ = text;
}

}  // namespace nzcl::verbs::ibv

// The order of the calls follows rdma_cm(7) for queue pairs that the caller manages: the active side answers
// CONNECT_RESPONSE with rdma_establish, and the passive side is connected when ESTABLISHED arrives.
#include "verbs/cm/connector.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "nzcl/error.h"
#include "verbs/ibv/constants.h"

namespace nzcl::verbs::cm {
namespace {

using std::chrono::milliseconds;

/// The time within which one address or route must be resolved. The kernel asks the network several times
/// within it.
constexpr int kResolveMs = 10000;
constexpr milliseconds kLongestWait{100};  // between looks whether connecting has become vain

void check(int result, const std::string& what) {
  if (result != 0) throw Error(ErrorCode::transport, fmt::format("{}: {}", what, std::strerror(errno)));
}

sockaddr_in at(std::uint32_t ipv4, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ipv4;
  address.sin_port = port;
  return address;
}

sockaddr* generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

std::uint32_t ipv4_of(const ibv::Port& port) {
  if (!port.gid.ipv4_mapped()) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: rdma_cm needs an IPv4 address on the device's network interface (GID {} "
                            "holds no IPv4 address); add one, or use NZCL_CONNECT=bootstrap",
                            port.device, port.gid.index));
  }
  std::uint32_t ipv4 = 0;
  std::memcpy(&ipv4, port.gid.gid.raw + 12, sizeof ipv4);
  return ipv4;
}

Token random_token() {
  Token token;
  std::random_device random;
  for (auto& byte : token) byte = static_cast<std::uint8_t>(random());
  return token;
}

}  // namespace

/// What address_for() returns. It travels as these bytes; IPv4 address and port are in network byte order.
struct Connector::Address {
  std::uint32_t ipv4 = 0;
  std::uint16_t port = 0;
  std::uint16_t reserved = 0;
  Token token{};
};

Connector::Connector(const ibv::Port& port, const ibv::ConnectionOptions& options,
                     const EndpointOptions& endpoint)
    : port_(port), options_(options), endpoint_(endpoint), self_(endpoint.self), peers_(endpoint.peers) {
  sockaddr_in own = at(ipv4_of(port), 0);
  channel_.reset(rdma_create_event_channel());
  if (!channel_) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: rdma_cm: {}; load the kernel's module rdma_ucm and let this user open "
                            "/dev/infiniband/rdma_cm, or use NZCL_CONNECT=bootstrap",
                            port.device, std::strerror(errno)));
  }
  const int flags = ::fcntl(channel_->fd, F_GETFL);
  check(::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK),
        port.device + ": rdma_cm: making its events non-blocking");
  rdma_cm_id* id = nullptr;
  check(rdma_create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP), port.device + ": rdma_create_id");
  listener_.reset(id);
  check(rdma_bind_addr(id, generic(own)), port.device + ": rdma_bind_addr to the device's address");
  if (id->verbs == nullptr || port.device != ibv_get_device_name(id->verbs->device)) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: rdma_cm finds a different device ({}) at this device's address; use "
                            "NZCL_CONNECT=bootstrap",
                            port.device, id->verbs ? ibv_get_device_name(id->verbs->device) : "none at all"));
  }
  check(rdma_listen(id, static_cast<int>(peers_.size())), port.device + ": rdma_listen");
  for (Peer& peer : peers_) peer.ours = random_token();
}

std::string Connector::address_for(PeerId peer) {
  const Address address{.ipv4 = ipv4_of(port_),
                        .port = rdma_get_src_port(listener_.get()),
                        .reserved = 0,
                        .token = peers_[peer].ours};
  return {reinterpret_cast<const char*>(&address), sizeof address};
}

std::string Connector::describe(PeerId peer) const {
  return fmt::format("{}: rdma_cm with peer {}", port_.device, peer);
}

std::string Connector::missing() const {
  std::string list;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].wanted && !peers_[i].connected) list += fmt::format("{}{}", list.empty() ? "" : ", ", i);
  }
  return list;
}

void Connector::connect(std::span<ibv_qp* const> queues, std::span<const std::string> addresses,
                        Deadline deadline) {
  for (PeerId i = 0; i < peers_.size(); ++i) {
    if (queues[i] == nullptr) continue;
    Address address;
    if (addresses[i].size() != sizeof address)
      throw Error(
          ErrorCode::transport,
          describe(i) +
              ": the peer's address is not one for rdma_cm; set the same NZCL_CONNECT on all members");
    std::memcpy(&address, addresses[i].data(), sizeof address);
    peers_[i].wanted = true;
    peers_[i].queue = queues[i];
    peers_[i].theirs = address.token;
    if (i < self_) call(i, address);
  }
  while (!missing().empty()) {
    strangers_.clear();  // the event of each was acknowledged when its turn of the loop ended
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel_.get(), &event) == 0) {
      // An id may only be destroyed after its events were acknowledged, so the events are handled first.
      struct Acknowledge {
        void operator()(rdma_cm_event* e) const { rdma_ack_cm_event(e); }
      };
      const std::unique_ptr<rdma_cm_event, Acknowledge> owner(event);
      handle(*event);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR)
      throw Error(ErrorCode::transport, fmt::format("{}: rdma_cm: {}", port_.device, std::strerror(errno)));
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
    endpoint_.throw_if_halted();
    if (left <= 0)
      throw Error(ErrorCode::timeout,
                  fmt::format("{}: rdma_cm: no connection in time with peer(s) {}", port_.device, missing()));
    pollfd waited{.fd = channel_->fd, .events = POLLIN, .revents = 0};
    ::poll(&waited, 1, static_cast<int>(std::min<long>(left, kLongestWait.count())));
  }
}

void Connector::call(PeerId peer, const Address& address) {
  rdma_cm_id* id = nullptr;
  // The context of an id points to its peer; the listener's is null.
  check(rdma_create_id(channel_.get(), &id, &peers_[peer], RDMA_PS_TCP), describe(peer));
  peers_[peer].id.reset(id);
  sockaddr_in own = at(ipv4_of(port_), 0);
  sockaddr_in theirs = at(address.ipv4, address.port);
  if (options_.traffic_class != 0) {
    std::uint8_t tos = options_.traffic_class;
    check(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos),
          describe(peer) + ": setting the traffic class");
  }
  check(rdma_resolve_addr(id, generic(own), generic(theirs), kResolveMs),
        describe(peer) + ": resolving the address");
}

void Connector::handle(const rdma_cm_event& event) {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return take_request(event.id, event.param.conn);
  const auto found = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const Peer& p) { return p.id && p.id.get() == event.id; });
  if (found == peers_.end()) return;  // the event belongs to a request that was refused
  const auto peer = static_cast<PeerId>(found - peers_.begin());
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      check(rdma_resolve_route(event.id, kResolveMs), describe(peer) + ": resolving the route");
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: {
      bring_up(peer, IBV_QPS_INIT);
      const Greeting greeting{.from = self_, .to = peer, .token = found->theirs};
      rdma_conn_param request = parameters(peer, greeting);
      check(rdma_connect(event.id, &request), describe(peer) + ": sending the request");
      break;
    }
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      take_reply(peer, event.param.conn);
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      found->connected = true;
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      throw Error(ErrorCode::transport,
                  fmt::format("{}: {} ({})", describe(peer), rdma_event_str(event.event), event.status));
    default:  // the others need no action; after DISCONNECTED the control plane tells the reason
      break;
  }
}

void Connector::take_request(rdma_cm_id* raw, const rdma_conn_param& request) {
  Handle<rdma_cm_id> id(raw);
  const auto greeting = Greeting::read({static_cast<const std::uint8_t*>(request.private_data),
                                        static_cast<std::size_t>(request.private_data_len)});
  Peer* peer = greeting && greeting->from < peers_.size() ? &peers_[greeting->from] : nullptr;
  // A request that does not come from a member of this job is refused, and this connector goes on waiting.
  if (peer == nullptr || greeting->to != self_ || greeting->token != peer->ours || !peer->wanted ||
      peer->id) {
    rdma_reject(raw, nullptr, 0);
    strangers_.push_back(std::move(id));
    return;
  }
  const PeerId number = greeting->from;
  peer->id = std::move(id);
  bring_up(number, IBV_QPS_INIT);
  bring_up(number, IBV_QPS_RTR);
  bring_up(number, IBV_QPS_RTS);
  const Greeting own{.from = self_, .to = number, .token = peer->theirs};
  rdma_conn_param reply = parameters(number, own);
  check(rdma_accept(raw, &reply), describe(number) + ": accepting the request");
}

void Connector::take_reply(PeerId number, const rdma_conn_param& reply) {
  const auto greeting = Greeting::read({static_cast<const std::uint8_t*>(reply.private_data),
                                        static_cast<std::size_t>(reply.private_data_len)});
  Peer& peer = peers_[number];
  if (!greeting || greeting->from != number || greeting->to != self_ || greeting->token != peer.ours) {
    throw Error(
        ErrorCode::denied,
        describe(number) +
            ": the process that answers does not belong to this job, or runs another version of nzcl");
  }
  bring_up(number, IBV_QPS_RTR);
  bring_up(number, IBV_QPS_RTS);
  check(rdma_establish(peer.id.get()), describe(number) + ": establishing the connection");
  peer.connected = true;
}

/// Moves the queue pair of a peer to `state`. The kernel supplies the attributes of the path; times and
/// service level come from nzcl's own options.
void Connector::bring_up(PeerId number, ibv_qp_state state) {
  Peer& peer = peers_[number];
  ibv_qp_attr attr{};
  attr.qp_state = state;
  int mask = 0;
  check(rdma_init_qp_attr(peer.id.get(), &attr, &mask),
        describe(number) + ": asking for the attributes of its queue pair");
  if (state == IBV_QPS_INIT) attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (state == IBV_QPS_RTR) {
    attr.path_mtu = std::min(attr.path_mtu, port_.mtu);
    attr.min_rnr_timer = ibv::kReceiverPause;
    if (options_.service_level != 0) attr.ah_attr.sl = options_.service_level;
  }
  if (state == IBV_QPS_RTS) attr.timeout = options_.ack_timeout;
  errno = ibv_modify_qp(peer.queue, &attr, mask);
  check(errno, fmt::format("{}: bringing queue pair {} to state {}", describe(number), peer.queue->qp_num,
                           static_cast<int>(state)));
}

rdma_conn_param Connector::parameters(PeerId peer, const Greeting& greeting) const {
  rdma_conn_param p{};
  p.private_data = greeting.bytes().data();
  p.private_data_len = static_cast<std::uint8_t>(greeting.bytes().size());
  p.retry_count = ibv::kRetries;
  p.rnr_retry_count = options_.receiver_retries;
  p.srq = 1;
  p.qp_num = peers_[peer].queue->qp_num;
  return p;
}

}  // namespace nzcl::verbs::cm

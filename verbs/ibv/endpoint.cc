#include "verbs/ibv/endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "verbs/ibv/work_request_id.h"

namespace nzcl::verbs::ibv {
namespace {

void set_non_blocking(int fd, const std::string& name) {
  const int flags = ::fcntl(fd, F_GETFL);
  check(::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 ? 0 : errno,
        name + ": making a completion channel non-blocking");
}

const char* opcode_name(const ibv_wc& wc) {
  if (WorkRequestId::decode(wc.wr_id).receive) return "receive";
  return "write";
}

/// How many receive requests an endpoint has.
std::uint32_t receives_for(const EndpointOptions& options) {
  return static_cast<std::uint32_t>(std::min<std::size_t>(options.arrivals + kRefillBatch, kMostReceives));
}

/// All members have about as many arrivals, so what this endpoint cannot hold its peers cannot either.
ConnectionOptions connection_for(const EndpointOptions& options, ConnectionOptions connection) {
  if (options.arrivals + kRefillBatch > kMostReceives) connection.receiver_retries = kReceiverRetriesForEver;
  return connection;
}

}  // namespace

IbvEndpoint::IbvEndpoint(IbvDevice& device, const EndpointOptions& options)
    : device_(device),
      options_(options),
      connection_(connection_for(options, device.connection())),
      first_packet_(std::random_device()() & kMost24Bits),
      connector_(connection_.rdma_cm ? std::make_unique<cm::Connector>(device.port(), connection_, options_)
                                     : nullptr),
      peers_(options.peers),
      held_(connection_.rdma_cm ? 0 : kMaxPosted),
      inline_bytes_(device.connection().inline_bytes) {
  const ibv_device_attr& limits = device.attributes();
  const std::string& name = device.port().device;
  const std::uint32_t receives = receives_for(options);
  const std::uint32_t entries = kMaxPosted + receives + Calls::kEntries;
  if (static_cast<int>(receives) > limits.max_srq_wr || static_cast<int>(entries) > limits.max_cqe) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: {} receive requests and {} completion entries are needed, but the device "
                            "grants {} and {}; set channel_slots lower",
                            name, receives, entries, limits.max_srq_wr, limits.max_cqe));
  }
  channel_ = owned(ibv_create_comp_channel(device.context()), name + ": creating a completion channel");
  set_non_blocking(channel_->fd, name);
  completions_ = owned(ibv_create_cq(device.context(), static_cast<int>(entries), nullptr, channel_.get(), 0),
                       name + ": creating a completion queue");
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = receives;
  attr.attr.max_sge = 1;
  receives_ = owned(ibv_create_srq(device.domain(), &attr), name + ": creating a shared receive queue");
  ready_ = CompletionRing(entries + options.peers + 1);
  refill(receives);
  if (!connector_) calls_ = std::make_unique<Calls>(device, completions_.get(), options, first_packet_);

  wait_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  check(wait_fd_ >= 0 ? 0 : errno, name + ": epoll_create1");
  for (const int fd : {channel_->fd, device.context()->async_fd}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    check(::epoll_ctl(wait_fd_, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno, name + ": epoll_ctl");
  }
}

IbvEndpoint::~IbvEndpoint() {
  if (wait_fd_ >= 0) ::close(wait_fd_);
}

void IbvEndpoint::refill(std::uint32_t count) {
  std::array<ibv_recv_wr, kRefillBatch> requests;
  while (count > 0) {
    const std::uint32_t n = std::min<std::uint32_t>(count, kRefillBatch);
    for (std::uint32_t i = 0; i < n; ++i) {
      requests[i] = {.wr_id = WorkRequestId{.receive = true}.encode(),
                     .next = i + 1 < n ? &requests[i + 1] : nullptr,
                     .sg_list = nullptr,
                     .num_sge = 0};
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_srq_recv(receives_.get(), requests.data(), &bad)) {
      fail(Completion::kNoPeer,
           fmt::format("{}: posting receive requests: {}", device_.name(), std::strerror(error)));
      return;
    }
    count -= n;
  }
}

// --- Posting

std::size_t IbvEndpoint::post(std::span<const Write> writes) noexcept {
  std::size_t n = 0;
  while (n < writes.size() && !device_failed_) {
    const std::size_t before = n;
    burst_ = touched_count_ = 0;
    while (n < writes.size() && burst_ < kBurst && append(writes[n])) ++n;
    if (n == before || !send_lists()) break;
  }
  return n;
}

bool IbvEndpoint::append(const Write& write) noexcept {
  Peer* const peer = peers_[write.peer] ? peers_[write.peer].get() : first_write_to(write.peer);
  if (peer == nullptr) return false;
  if (peer->broken) {  // dropped: the failure of this peer was reported, so nobody waits for its writes
    return true;
  }
  if (in_flight_ >= kMaxPosted || peer->posted - peer->retired >= kSendDepth) return false;
  const bool open = peer->handshake.open();
  ibv_sge* segments = open ? segments_[burst_].data() : nullptr;
  ibv_send_wr& request = open ? requests_[burst_++] : held_.hold(segments);
  fill(request, segments, write, *peer);
  if (peer->first == nullptr) {
    peer->first = &request;
    if (open) touched_[touched_count_++] = write.peer;
  } else {
    peer->last->next = &request;
  }
  peer->last = &request;
  peer->contexts[peer->posted++ % kSendDepth] = write.context;
  ++in_flight_;
  if (!open && peer->say_at == Clock::time_point()) begin_calling(write.peer, *peer);
  return true;
}

/// Makes the next work request to a peer of a write.
void IbvEndpoint::fill(ibv_send_wr& request, ibv_sge* segments, const Write& write,
                       const Peer& peer) const noexcept {
  std::uint64_t bytes = 0;
  bool readable = true;  // by this process, which copies what is sent inline
  for (std::size_t i = 0; i < write.segments.size(); ++i) {
    const Segment& s = write.segments[i];
    segments[i] = {reinterpret_cast<std::uint64_t>(s.data), s.bytes,
                   static_cast<const ibv_mr*>(s.region->local_descriptor(options_.level))->lkey};
    bytes += s.bytes;
    readable &= s.region->host_reaches();
  }
  request = {};
  request.wr_id = WorkRequestId{.receive = false, .peer = write.peer, .sequence = peer.posted}.encode();
  request.sg_list = segments;
  request.num_sge = static_cast<int>(write.segments.size());
  request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htonl(write.immediate.value_or(0));
  request.wr.rdma.remote_addr = write.target.address;
  request.wr.rdma.rkey = static_cast<std::uint32_t>(write.target.key);
  if (bytes <= inline_bytes_ && readable) request.send_flags |= IBV_SEND_INLINE;
  if (peer.posted % kSignalEvery == kSignalEvery - 1) request.send_flags |= IBV_SEND_SIGNALED;
}

bool IbvEndpoint::send_lists() noexcept {
  bool good = true;
  for (std::size_t i = 0; i < touched_count_; ++i) good &= send_list(touched_[i]);
  return good;
}

/// Posts the list of a peer, which then is empty.
bool IbvEndpoint::send_list(PeerId id) noexcept {
  Peer& peer = *peers_[id];
  peer.last->send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(peer.queue.get(), peer.first, &bad);
  peer.first = peer.last = nullptr;
  if (error == 0) return true;
  give_up(id);
  fail(id, fmt::format("{}: posting to peer {} on queue pair {}: {}", device_.name(), id, peer.queue->qp_num,
                       std::strerror(error)));
  return false;
}

// --- Completions

std::size_t IbvEndpoint::poll(std::span<Completion> out) noexcept {
  std::size_t n = hand_out(out);
  while (n < out.size() && poll_queue(out.size() - n)) n += hand_out(out.subspan(n));
  if (n == 0 && ++empty_polls_ % kEventCheckEvery == 0 && !device_failed_ && device_.check_events()) {
    device_failed_ = true;
    fail(Completion::kNoPeer, device_.fatal_event());
    n = hand_out(out);
  }
  return n;
}

std::size_t IbvEndpoint::hand_out(std::span<Completion> out) noexcept {
  const std::size_t n = ready_.pop(out);
  for (const Completion& c : out.first(n)) in_flight_ -= c.kind == Completion::Kind::written ? 1 : 0;
  return n;
}

/// Takes entries from the completion queue, and calls again. Returns false if nothing came of it.
bool IbvEndpoint::poll_queue(std::size_t at_most) noexcept {
  std::array<ibv_wc, kBurst> entries;
  const int count =
      ibv_poll_cq(completions_.get(), static_cast<int>(std::min(at_most, entries.size())), entries.data());
  if (failed_count(count)) {
    device_failed_ = true;
    fail(Completion::kNoPeer, device_.name() + ": the completion queue failed");
    return true;
  }
  for (int i = 0; i < count; ++i) take(entries[static_cast<std::size_t>(i)]);
  if (!calling_.empty()) call_again();
  if (used_receives_ >= kRefillBatch) {
    refill(kRefillBatch);
    used_receives_ -= kRefillBatch;
  }
  return count > 0 || !ready_.empty();
}

void IbvEndpoint::take(const ibv_wc& wc) noexcept {
  const WorkRequestId id = WorkRequestId::decode(wc.wr_id);
  if (id.peer == WorkRequestId::kCalls) {
    take_call(wc);
    return;
  }
  if (wc.status == IBV_WC_SUCCESS) {
    if (id.receive) {
      ++used_receives_;
      ready_.push({.kind = Completion::Kind::arrived,
                   .peer = Completion::kNoPeer,
                   .immediate = ntohl(wc.imm_data),
                   .context = 0});
    } else {
      retire(id.peer, id.sequence + 1);
    }
    return;
  }
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const auto& p) {
    return p && p->queue && p->queue->qp_num == wc.qp_num;
  });
  const PeerId number = id.receive ? static_cast<PeerId>(peer - peers_.begin()) : id.peer;
  // After its first error, which was reported, a queue pair flushes all other writes.
  if (number < peers_.size() && peers_[number]->broken) return;
  if (number < peers_.size()) give_up(number);
  fail(number < peers_.size() ? number : Completion::kNoPeer,
       fmt::format("{}: {} {} peer {} on queue pair {}: {} (vendor error {:#x})", device_.name(),
                   opcode_name(wc), id.receive ? "from" : "to", number, wc.qp_num,
                   ibv_wc_status_str(wc.status), wc.vendor_err));
}

/// Reports all writes of the queue pair up to this one as written, because a completion stands for all
/// earlier ones too.
void IbvEndpoint::retire(PeerId id, std::uint32_t up_to) noexcept {
  Peer& peer = *peers_[id];
  if (peer.broken) return;
  for (; peer.retired != up_to; ++peer.retired) {
    ready_.push({.kind = Completion::Kind::written,
                 .peer = id,
                 .immediate = 0,
                 .context = peer.contexts[peer.retired % kSendDepth]});
  }
}

/// Marks the peer as broken. Its writes leave in_flight_, because no more completions are reported for them.
void IbvEndpoint::give_up(PeerId id) noexcept {
  Peer& peer = *peers_[id];
  peer.broken = true;
  in_flight_ -= peer.posted - peer.retired;
  peer.retired = peer.posted;
}

void IbvEndpoint::fail(PeerId peer, std::string text) noexcept {
  failure_ = std::move(text);
  ready_.push({.kind = Completion::Kind::failed, .peer = peer, .immediate = 0, .context = 0});
}

bool IbvEndpoint::prepare_wait() noexcept {
  // The order is that of ibv_get_cq_event(3): take the event, ask for the next one, and only then look
  // whether a completion came in between.
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  if (ibv_req_notify_cq(completions_.get(), 0) != 0) return false;
  if (!device_failed_ && device_.check_events()) {
    device_failed_ = true;
    fail(Completion::kNoPeer, device_.fatal_event());
  }
  return ready_.empty() && !poll_queue(kBurst);
}

}  // namespace nzcl::verbs::ibv

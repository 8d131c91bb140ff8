#include "verbs/datagram/ud/port.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "verbs/datagram/ud/address.h"
#include "verbs/datagram/ud/constants.h"
#include "verbs/ibv/handles.h"
#include "verbs/ibv/port.h"
#include "verbs/random.h"

namespace nzcl::verbs::ibv {
namespace {

constexpr std::uint8_t kHopLimit = 64;

std::uint32_t draw_key() {
  return random_number() &
         0x7fffffff;  // with the upper bit set, the device would take the queue pair's own key instead
}

/// Registered memory for `count` datagrams of one size.
class Ring {
 public:
  /// Each entry has `before` bytes in front of its datagram, which is aligned to a cache line.
  Ring(ibv_pd* domain, std::uint32_t count, std::size_t before, std::size_t bytes, const std::string& name)
      : before_(before),
        first_((before + kLine - 1) / kLine * kLine),
        stride_(first_ + (bytes + kLine - 1) / kLine * kLine),
        memory_(count * stride_ + kLine),
        base_(memory_.data() + (kLine - reinterpret_cast<std::uintptr_t>(memory_.data()) % kLine) % kLine),
        region_(owned(ibv_reg_mr(domain, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE),
                      fmt::format("{}: registering {} KiB for datagrams", name, memory_.size() >> 10))) {}

  std::byte* datagram(std::uint64_t i) const { return base_ + i * stride_ + first_; }
  /// The entry's first `bytes`, among them those in front of the datagram.
  ibv_sge entry(std::uint64_t i, std::size_t bytes) const {
    return {reinterpret_cast<std::uint64_t>(datagram(i) - before_), static_cast<std::uint32_t>(bytes),
            region_->lkey};
  }

 private:
  static constexpr std::size_t kLine = 64;
  const std::size_t before_, first_, stride_;
  std::vector<std::byte> memory_;
  std::byte* const base_;
  const Handle<ibv_mr> region_;
};

class UdPort final : public DatagramPort {
 public:
  explicit UdPort(const DatagramOptions& options)
      : options_(options.device),
        open_(open_port(options.device)),
        name_(fmt::format("ibverbs {}:{}", open_.port.device, open_.port.number)),
        max_bytes_(std::min<std::size_t>(options.max_bytes, std::size_t{128} << open_.port.mtu)),
        key_(draw_key()),
        domain_(owned(ibv_alloc_pd(context()), name_ + ": allocating a protection domain")),
        receives_(receives_for(options)),
        received_ring_(domain_.get(), receives_, kRouteHeaderBytes, max_bytes_, name_),
        sent_ring_(domain_.get(), kDatagramSends, 0, max_bytes_, name_),
        channel_(owned(ibv_create_comp_channel(context()), name_ + ": creating a completion channel")),
        receive_queue_(make_queue(receives_, channel_.get())),
        send_queue_(make_queue(kDatagramSends, nullptr)),
        queue_pair_(make_queue_pair()) {
    const int flags = ::fcntl(channel_->fd, F_GETFL);
    check(::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) == 0 ? 0 : errno,
          name_ + ": making events non-blocking");
    bring_up();
    for (std::uint32_t i = 0; i < receives_; ++i) taken_.push_back(i);
    check(give_back(), name_ + ": posting receive requests");
    check(ibv_req_notify_cq(receive_queue_.get(), 0), name_ + ": asking for events");
  }

  std::string address() const override {
    DatagramAddress own{.sender = {}, .key = key_, .lid = open_.port.lid, .mtu = mtu()};
    std::memcpy(own.sender.gid.data(), open_.port.gid.gid.raw, own.sender.gid.size());
    own.sender.queue_pair = queue_pair_->qp_num;
    return own.text();
  }
  void connect(std::span<const std::string> addresses) override {
    senders_.clear();
    peers_.clear();
    peers_.resize(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (addresses[i].empty()) continue;
      const DatagramAddress address = DatagramAddress::parse(addresses[i]);
      peers_[i] = {make_handle(address), address.sender.queue_pair, address.key,
                   std::min<std::size_t>(max_bytes_, address.mtu)};
      senders_.push_back({address.sender, static_cast<PeerId>(i)});
    }
    std::ranges::sort(senders_, {}, &Sender::address);
  }
  std::size_t max_bytes() const noexcept override { return max_bytes_; }
  std::size_t receive_bytes() const noexcept override { return receives_ * max_bytes_; }
  int wait_fd() const noexcept override { return channel_->fd; }
  DatagramCounts counts() const noexcept override { return counts_; }

  std::size_t send(std::span<const Datagram> datagrams) noexcept override {
    std::size_t done = 0;
    while (done < datagrams.size()) {
      const std::size_t n = post(datagrams.subspan(done, std::min(kBurst, datagrams.size() - done)));
      if (n == 0) break;
      done += n;
    }
    counts_.sent += done;
    return done;
  }

  std::size_t receive(std::span<ArrivedDatagram> out) noexcept override {
    if (give_back() != 0) return 0;
    std::array<ibv_wc, kBurst> completions;
    const int most = static_cast<int>(std::min(kBurst, out.size()));
    int n = ibv_poll_cq(receive_queue_.get(), most, completions.data());
    if (n == 0 && take_event()) n = ibv_poll_cq(receive_queue_.get(), most, completions.data());
    std::size_t taken = 0;
    for (int i = 0; i < n; ++i) {
      const auto arrived = accept(completions[static_cast<std::size_t>(i)]);
      if (arrived) out[taken++] = *arrived;
    }
    has_event_ |= n > 0;
    counts_.received += taken;
    return taken;
  }

 private:
  struct Peer {
    Handle<ibv_ah> route;
    std::uint32_t queue_pair = 0, key = 0;
    std::size_t max_bytes = 0;
  };
  struct Sender {
    DatagramSender address;
    PeerId peer = 0;
  };

  ibv_context* context() const { return open_.context.get(); }
  std::uint16_t mtu() const { return static_cast<std::uint16_t>(128 << open_.port.mtu); }
  bool ipv4() const { return open_.port.gid.kind == GidEntry::Kind::roce_v2 && open_.port.gid.ipv4_mapped(); }
  std::uint32_t receives_for(const DatagramOptions& options) const {
    ibv_device_attr attributes{};
    check(ibv_query_device(context(), &attributes), name_ + ": asking for the device's limits");
    const auto granted =
        static_cast<std::size_t>(std::max(std::min(attributes.max_qp_wr, attributes.max_cqe), 1));
    return static_cast<std::uint32_t>(
        std::min({options.receive_bytes / max_bytes_ + 1, kMostDatagramReceives, granted}));
  }

  Handle<ibv_cq> make_queue(std::uint32_t depth, ibv_comp_channel* channel) const {
    return owned(ibv_create_cq(context(), static_cast<int>(depth), nullptr, channel, 0),
                 name_ + ": creating a completion queue");
  }
  Handle<ibv_qp> make_queue_pair() const {
    ibv_qp_init_attr attr{};
    attr.send_cq = send_queue_.get();
    attr.recv_cq = receive_queue_.get();
    attr.qp_type = IBV_QPT_UD;
    attr.cap = {.max_send_wr = kDatagramSends,
                .max_recv_wr = receives_,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    return owned(ibv_create_qp(domain_.get(), &attr), name_ + ": creating a queue pair for datagrams");
  }
  void bring_up() {
    const auto step = [&](ibv_qp_attr attr, int mask, const char* state) {
      check(ibv_modify_qp(queue_pair_.get(), &attr, mask),
            fmt::format("{}: bringing queue pair {} to {}", name_, queue_pair_->qp_num, state));
    };
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = open_.port.number;
    attr.qkey = key_;
    step(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, "INIT");
    attr.qp_state = IBV_QPS_RTR;
    step(attr, IBV_QP_STATE, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    step(attr, IBV_QP_STATE | IBV_QP_SQ_PSN, "RTS");
  }
  /// The route to a peer. It names the global address on InfiniBand too, because by that a receiver tells who
  /// has sent a datagram.
  Handle<ibv_ah> make_handle(const DatagramAddress& to) const {
    ibv_ah_attr attr{};
    attr.is_global = 1;
    std::memcpy(attr.grh.dgid.raw, to.sender.gid.data(), to.sender.gid.size());
    attr.grh.sgid_index = static_cast<std::uint8_t>(open_.port.gid.index);
    attr.grh.hop_limit = kHopLimit;
    attr.grh.traffic_class = static_cast<std::uint8_t>(options_.traffic_class);
    attr.dlid = to.lid;
    attr.sl = static_cast<std::uint8_t>(options_.service_level);
    attr.port_num = open_.port.number;
    return owned(ibv_create_ah(domain_.get(), &attr), name_ + ": finding the route to " + to.text());
  }

  // --- Sending

  bool can_be_sent(const Datagram& d) const {
    return d.peer < peers_.size() && peers_[d.peer].route && d.bytes.size() <= peers_[d.peer].max_bytes;
  }
  /// Copies datagrams to registered memory and posts them, as far as there is room. Returns how many were
  /// dealt with.
  std::size_t post(std::span<const Datagram> datagrams) noexcept {
    reclaim();
    std::array<ibv_send_wr, kBurst> requests;
    std::array<ibv_sge, kBurst> entries;
    std::size_t done = 0, count = 0;
    for (; done < datagrams.size() && posted_ + count - completed_ < kDatagramSends; ++done) {
      if (!can_be_sent(datagrams[done])) {
        ++counts_.refused;
        continue;
      }
      prepare(datagrams[done], posted_ + count, requests[count], entries[count]);
      if (count > 0) requests[count - 1].next = &requests[count];
      ++count;
    }
    if (count > 0) {
      ibv_send_wr* refused = nullptr;
      ibv_post_send(queue_pair_.get(), requests.data(), &refused);
      const std::size_t accepted = refused ? static_cast<std::size_t>(refused - requests.data()) : count;
      posted_ += accepted;
      counts_.refused += count - accepted;  // dropped, as the network might have dropped them
    }
    return done;
  }
  void prepare(const Datagram& d, std::uint64_t number, ibv_send_wr& request, ibv_sge& entry) noexcept {
    const std::uint64_t slot = number % kDatagramSends;
    std::memcpy(sent_ring_.datagram(slot), d.bytes.data(), d.bytes.size());
    entry = sent_ring_.entry(slot, d.bytes.size());
    request = {};
    request.wr_id = number;
    request.sg_list = &entry;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    if (number % kSignalEvery == kSignalEvery - 1) request.send_flags = IBV_SEND_SIGNALED;
    const Peer& peer = peers_[d.peer];
    request.wr.ud.ah = peer.route.get();
    request.wr.ud.remote_qpn = peer.queue_pair;
    request.wr.ud.remote_qkey = peer.key;
  }
  /// Takes completions: each stands for all requests before it.
  void reclaim() noexcept {
    if (posted_ - completed_ < kDatagramSends / 2) return;
    std::array<ibv_wc, kBurst> completions;
    const int n = ibv_poll_cq(send_queue_.get(), static_cast<int>(kBurst), completions.data());
    for (int i = 0; i < n; ++i) completed_ = completions[static_cast<std::size_t>(i)].wr_id + 1;
  }

  // --- Receiving

  /// Gives back the requests whose datagrams the last receive() has returned. Returns 0 or an errno.
  int give_back() noexcept {
    for (std::size_t first = 0; first < taken_.size(); first += kBurst) {
      std::array<ibv_recv_wr, kBurst> requests;
      std::array<ibv_sge, kBurst> entries;
      const std::size_t count = std::min(kBurst, taken_.size() - first);
      for (std::size_t i = 0; i < count; ++i) {
        entries[i] = received_ring_.entry(taken_[first + i], kRouteHeaderBytes + max_bytes_);
        requests[i] = {.wr_id = taken_[first + i],
                       .next = i + 1 < count ? &requests[i + 1] : nullptr,
                       .sg_list = &entries[i],
                       .num_sge = 1};
      }
      ibv_recv_wr* refused = nullptr;
      if (const int error = ibv_post_recv(queue_pair_.get(), requests.data(), &refused)) return error;
    }
    taken_.clear();
    return 0;
  }
  /// Returns nothing for what no peer has sent.
  std::optional<ArrivedDatagram> accept(const ibv_wc& completion) noexcept {
    taken_.push_back(static_cast<std::uint32_t>(completion.wr_id));
    const std::byte* const at = received_ring_.datagram(completion.wr_id);
    const Sender* sender = nullptr;
    if (completion.status == IBV_WC_SUCCESS && (completion.wc_flags & IBV_WC_GRH) != 0 &&
        completion.byte_len >= kRouteHeaderBytes)
      sender = find(sender_of(at - kRouteHeaderBytes, completion.src_qp, ipv4()));
    if (sender == nullptr) {
      ++counts_.strange;
      return std::nullopt;
    }
    return ArrivedDatagram{sender->peer, {at, completion.byte_len - kRouteHeaderBytes}};
  }
  const Sender* find(const DatagramSender& address) const {
    const auto found = std::ranges::lower_bound(senders_, address, {}, &Sender::address);
    return found != senders_.end() && found->address == address ? &*found : nullptr;
  }
  /// Takes the event that a completion has caused, and asks for the next one, so that the descriptor is
  /// readable only if something comes from now on. Returns whether something may have come meanwhile.
  bool take_event() noexcept {
    if (!has_event_) return false;
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    if (ibv_get_cq_event(channel_.get(), &queue, &unused) != 0) return false;
    ibv_ack_cq_events(queue, 1);
    has_event_ = false;
    return ibv_req_notify_cq(queue, 0) == 0;
  }

  const DeviceOptions options_;
  const OpenPort open_;
  const std::string name_;
  const std::size_t max_bytes_;
  const std::uint32_t key_;
  const Handle<ibv_pd> domain_;
  const std::uint32_t receives_;
  Ring received_ring_, sent_ring_;
  const Handle<ibv_comp_channel> channel_;
  // Two, so that neither half has to keep what belongs to the other one.
  const Handle<ibv_cq> receive_queue_, send_queue_;
  std::vector<Peer> peers_;
  const Handle<ibv_qp> queue_pair_;
  std::vector<Sender> senders_;       // in the order of their addresses
  std::vector<std::uint32_t> taken_;  // requests whose datagrams are the caller's until the next receive()
  std::uint64_t posted_ = 0, completed_ = 0;
  bool has_event_ = false;  // something has come since events were last asked for
  DatagramCounts counts_;
};

}  // namespace

std::unique_ptr<DatagramPort> open_datagram_port(const DatagramOptions& options) {
  return std::make_unique<UdPort>(options);
}

}  // namespace nzcl::verbs::ibv

#include "runtime/switch/switch_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "runtime/switch/dropped.h"
#include "runtime/switch/kernel_exchange.h"
#include "runtime/switch/operation_tensor.h"
#include "runtime/switch/port.h"
#include "runtime/switch/slot_server.h"
#include "runtime/switch/slot_worker.h"
#include "runtime/switch/tuning.h"

namespace nzcl::engine::slot_pool {

namespace {

/// What both halves have in common.
class SwitchExchange : public Exchange {
 public:
  SwitchExchange(LaneContext& context, const verbs::DatagramOptions& port)
      : context_(context), port_(verbs::open_datagram_port(port)) {}

  SwitchExchange(const SwitchExchange&) = delete;
  SwitchExchange& operator=(const SwitchExchange&) = delete;

  void direct_arrived(std::uint16_t, std::uint16_t) override {}
  int wait_fd() const override { return port_->wait_fd(); }

 protected:
  const Members& members() const { return context_.config.members; }
  /// Reads all addresses, and connects the port to the members that `is_peer`. The peers of the port have the
  /// members' numbers.
  template <typename IsPeer>
  std::vector<PortAddress> connect_port(std::span<const std::string> texts, IsPeer is_peer) {
    std::vector<PortAddress> all;
    std::vector<std::string> peers(texts.size());
    for (int m = 0; m < members().count(); ++m) {
      const auto at = static_cast<std::size_t>(m);
      all.push_back(PortAddress::decode(texts[at], members().name(m)));
      if (is_peer(m)) peers[at] = all.back().address;
    }
    port_->connect(peers);
    return all;
  }
  std::size_t receive() {
    const std::size_t n = port_->receive(arrived_);
    for (std::size_t i = 0; i < n; ++i)
      LaneStatistics::add(context_.statistics.bytes_received, arrived_[i].bytes.size());
    return n;
  }
  /// Called once, at the end.
  void log_dropped(std::uint64_t refused) const {
    slot_pool::log_dropped(context_, {.unknown = port_->counts().strange, .refused = refused, .past = 0});
  }
  void count_sent(std::size_t bytes) {
    LaneStatistics::add(context_.statistics.messages_sent, 1);
    LaneStatistics::add(context_.statistics.bytes_sent, bytes);
  }

  LaneContext& context_;
  const std::unique_ptr<verbs::DatagramPort> port_;
  std::array<verbs::ArrivedDatagram, kPacketsAtOnce> arrived_;
};

/// The aggregator's half.
class ServerExchange final : public SwitchExchange {
 public:
  ServerExchange(LaneContext& context, const verbs::DatagramOptions& port)
      : SwitchExchange(context, port),
        slots_(slots_for(*port_)),
        window_(window_for(*port_, members().workers)),
        job_(draw_job()) {}
  ~ServerExchange() override { log_dropped(server_ ? server_->refused() : 0); }

  std::string address() const override {
    return PortAddress{port_->address(), port_->max_bytes(), slots_, window_, job_, false}.encode();
  }
  void connect(std::span<const std::string> texts) override {
    const auto all = connect_port(texts, [this](int m) { return members().is_worker(m); });
    server_.emplace(Pool{members().workers, slots_, common_piece_elements(all), job_, false, window_});
  }

  void submit(Operation&) override {}  // only workers have operations
  bool step() override {
    if (!server_) return false;
    const bool moved = send_group();
    // As long as there is no room for results, nothing is received: it might take the place of one of them.
    if (!group_sent()) return moved;
    const std::size_t n = receive();
    for (std::size_t i = 0; i < n; ++i)
      server_->receive(static_cast<int>(arrived_[i].peer), arrived_[i].bytes);
    if (!server_->failure().empty()) context_.fail(ErrorCode::mismatch, server_->failure());
    return answer() || n > 0;
  }
  bool idle() const override { return true; }  // it waits for nobody; workers do
  Stall waiting_for() const override { return {}; }

 private:
  /// Results for all ranks go out in groups, rank by rank, because a port sends neighbours to one peer
  /// together.
  bool answer() {
    bool any = false;
    while (group_sent()) {
      const auto out = server_->front();
      if (!out) break;
      if (out->rank == kToAll) {
        take_group();
        send_group();
      } else {
        if (!send(out->rank, out->packet)) break;
        server_->pop();
      }
      any = true;
    }
    return any;
  }
  bool send(int rank, std::span<const std::byte> packet) {
    const verbs::Datagram d{static_cast<verbs::PeerId>(rank), packet};
    if (port_->send({&d, 1}) == 0) return false;
    count_sent(packet.size());
    return true;
  }
  void take_group() {
    group_count_ = next_ = 0;
    for (auto out = server_->front(); out && out->rank == kToAll && group_count_ < kPacketsAtOnce;
         out = server_->front()) {
      group_[group_count_++] = out->packet;
      server_->pop();
    }
  }
  bool group_sent() const { return next_ == group_count_ * static_cast<std::size_t>(members().workers); }
  /// Goes on with the rank and the result at which the port had no room before.
  bool send_group() {
    std::array<verbs::Datagram, kPacketsAtOnce> batch;
    const std::size_t begin = next_, end = group_count_ * static_cast<std::size_t>(members().workers);
    while (next_ < end) {
      const std::size_t n = std::min(batch.size(), end - next_);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t at = next_ + i;
        batch[i] = {static_cast<verbs::PeerId>(at / group_count_), group_[at % group_count_]};
      }
      const std::size_t sent = port_->send(std::span(batch).first(n));
      for (std::size_t i = 0; i < sent; ++i) count_sent(batch[i].bytes.size());
      next_ += sent;
      if (sent < n) break;
    }
    return next_ > begin;
  }

  const std::uint32_t slots_, window_;
  const Job job_;
  std::optional<SlotServer> server_;
  std::array<std::span<const std::byte>, kPacketsAtOnce> group_;
  std::size_t group_count_ = 0, next_ = 0;  // of the group, times the number of ranks
};

/// A worker's half: slots at each aggregator.
class WorkerExchange final : public SwitchExchange {
 public:
  using SwitchExchange::SwitchExchange;
  ~WorkerExchange() override {
    std::uint64_t refused = 0;
    for (const Link& link : links_) refused += link.worker.refused();
    log_dropped(refused);
  }

  std::string address() const override {
    return PortAddress{port_->address(), port_->max_bytes(), 0, 0, {}, false}.encode();
  }
  void connect(std::span<const std::string> texts) override {
    const auto all = connect_port(texts, [this](int m) { return members().is_aggregator(m); });
    const std::uint32_t elements = common_piece_elements(all);
    packet_bytes_ = (sizeof(Header) + elements * sizeof(std::int32_t) + 63) / 64 * 64;
    packets_.resize(kPacketsAtOnce * packet_bytes_);
    links_.reserve(static_cast<std::size_t>(members().aggregators()));
    for (int a = 0; a < members().aggregators(); ++a) {
      const PortAddress& address = all[static_cast<std::size_t>(members().aggregator_member(a))];
      if (address.slots == 0)
        throw Error(ErrorCode::transport,
                    members().name(members().aggregator_member(a)) + " offers no slots");
      // A generic XDP program sees what a rank of the same machine hands over together as one packet.
      if (address.zeros) port_->send_apart();
      links_.emplace_back(
          Pool{members().workers, address.slots, elements, address.job, address.zeros, address.window},
          members().self);
    }
  }

  void submit(Operation& operation) override {
    if (operation.refusal) return refuse(operation);
    for (std::uint32_t o = own_lane(); o < operation.layout.owners(); o += lanes()) {
      if (operation.layout.owned(o) == 0) continue;
      links_[o / lanes()].submit(operation, o);
    }
  }
  bool step() override {
    if (links_.empty()) return false;
    const std::uint64_t before = progress();
    const Time now = verbs::Clock::now().time_since_epoch();
    const std::size_t n = receive();
    for (std::size_t i = 0; i < n; ++i) link_of(arrived_[i].peer).worker.receive(arrived_[i].bytes, now);
    for (std::size_t a = 0; a < links_.size(); ++a) {
      links_[a].worker.advance(now);
      if (!links_[a].worker.failure().empty()) {
        context_.fail(ErrorCode::mismatch, links_[a].worker.failure());
        return true;
      }
    }
    send(now);
    return progress() != before;
  }
  bool idle() const override {
    return std::ranges::all_of(links_, [](const Link& link) { return link.worker.idle(); });
  }
  Stall waiting_for() const override {
    Stall stall;
    for (std::size_t a = 0; a < links_.size(); ++a) {
      const Link& link = links_[a];
      if (link.worker.idle()) continue;
      const auto& missing = link.worker.missing();
      if (!missing) {
        stall.suspected = members().name(members().aggregator_member(static_cast<int>(a)));
        continue;
      }
      const std::string others = missing->count > 1 ? fmt::format(" and {} more", missing->count - 1) : "";
      const std::uint64_t epoch = link.epochs[missing->tensor % kMaxOperations];
      if (missing->opening) {
        stall.known = fmt::format("operation {}: rank(s) {}{} did not join", epoch, missing->first, others);
      } else {
        stall.suspected = fmt::format("rank {}{} (operation {})", missing->first, others, epoch);
      }
    }
    return stall;
  }

 private:
  struct Link {
    Link(const Pool& pool, int rank) : worker(pool, rank, kMaxOperations) {
      for (std::uint32_t i = 0; i < kMaxOperations; ++i) tensors.emplace_back(pool);
    }
    void submit(Operation& operation, std::uint32_t owner) {
      const std::size_t at = begun++ % kMaxOperations;
      epochs[at] = operation.epoch;
      tensors[at].bind(operation, owner);
      worker.submit(tensors[at]);
    }
    SlotWorker worker;
    std::vector<OperationTensor> tensors;
    std::array<std::uint64_t, kMaxOperations> epochs{};
    std::uint64_t begun = 0;
  };

  std::uint32_t lanes() const { return static_cast<std::uint32_t>(context_.config.lanes); }
  std::uint32_t own_lane() const { return static_cast<std::uint32_t>(context_.config.lane); }
  Link& link_of(verbs::PeerId member) { return links_[member - static_cast<std::size_t>(members().workers)]; }
  /// A number that changes when anything moves but repetitions.
  std::uint64_t progress() const {
    std::uint64_t sum = 0;
    for (const Link& link : links_) sum += link.worker.progress();
    return sum;
  }

  /// What this exchange does not support, all ranks refuse alike, so it is over here. Otherwise the others
  /// wait for this rank, and there is no packet that could tell them why.
  void refuse(Operation& operation) {
    if (static_cast<ErrorCode>(operation.refusal->code()) != ErrorCode::unsupported) {
      context_.fail(
          static_cast<ErrorCode>(operation.refusal->code()),
          fmt::format("operation {}: rank {} refused its request, which ends a communicator that uses "
                      "the switch exchange: {}",
                      operation.epoch, operation.refusal->rank(), operation.refusal->text()));
      return;
    }
    const wire::Refusal why = *operation.refusal;
    const SliceLayout& layout = operation.layout;
    std::uint64_t own = 0, done = 0;
    for (std::uint32_t o = own_lane(); o < layout.owners(); o += lanes()) own += layout.owned(o);
    for (std::uint32_t o = own_lane(), owners = layout.owners(); done < own && o < owners; o += lanes()) {
      for (std::uint64_t k = 0, n = layout.owned(o); k < n; ++k) {
        const std::uint64_t slice = layout.owned_slice(o, k);
        operation.slice_refused(slice, why);
        operation.slice_done(slice);  // the operation may be gone after the last of these
        if (++done == own) return;
      }
    }
  }

  void send(Time now) {
    for (std::size_t a = 0; a < links_.size() && unsent_ == sent_; ++a) {
      sent_ = unsent_ = 0;
      const auto aggregator = static_cast<verbs::PeerId>(members().aggregator_member(static_cast<int>(a)));
      while (unsent_ < kPacketsAtOnce) {
        const std::span packet = std::span(packets_).subspan(unsent_ * packet_bytes_, packet_bytes_);
        const std::size_t bytes = links_[a].worker.next_packet(packet, now);
        if (bytes == 0) break;
        batch_[unsent_++] = {aggregator, packet.first(bytes)};
        count_sent(bytes);
      }
      flush();
    }
    flush();
  }
  void flush() {
    while (sent_ < unsent_) {
      const std::size_t n = port_->send(std::span(batch_).subspan(sent_, unsent_ - sent_));
      sent_ += n;
      if (n == 0) return;
    }
  }

  std::vector<Link> links_;  // by aggregator
  std::size_t packet_bytes_ = 0;
  std::vector<std::byte> packets_;
  std::array<verbs::Datagram, kPacketsAtOnce> batch_;
  std::size_t sent_ = 0, unsent_ = 0;  // of batch_
};

}  // namespace

std::unique_ptr<Exchange> make_switch_exchange(LaneContext& context, const SwitchConfig& config) {
  const Members& members = context.config.members;
  if (members.is_worker(members.self)) return std::make_unique<WorkerExchange>(context, config.port);
  if (config.kernel_pools) return make_kernel_exchange(context, config);
  return std::make_unique<ServerExchange>(context, config.port);
}

}  // namespace nzcl::engine::slot_pool

#include "verbs/datagram/simulated/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "nzcl/error.h"

namespace nzcl::verbs {
namespace {

using Time = SimulatedNetwork::Time;
using Bytes = std::vector<std::byte>;

struct Moving {
  Time at{};
  std::uint64_t number = 0;  // those of one time move in this order
  std::size_t from = 0, to = 0;
  bool at_middle = false;  // it has still to take the receiver's link
  Bytes bytes;
};
struct Later {
  bool operator()(const Moving& a, const Moving& b) const {
    return a.at != b.at ? a.at > b.at : a.number > b.number;
  }
};

/// One direction of a link.
struct Direction {
  Time free{};  // when all that was given to it has left it
};

struct Port {
  SimulatedLink link;
  Direction up, down;
  struct Delivered {
    std::size_t from;
    Bytes bytes;
  };
  std::deque<Delivered> inbox;
  bool open = true;
  bool noted = false;  // among the arrivals
};

}  // namespace

class SimulatedState {
 public:
  SimulatedState(std::uint64_t seed, Time poll) : time_of_poll(poll), random_(seed) {}

  std::size_t add(const SimulatedLink& link) {
    ports_.push_back({.link = link, .up = {}, .down = {}, .inbox = {}, .open = true, .noted = false});
    return ports_.size() - 1;
  }
  Port& port(std::size_t i) { return ports_[i]; }
  std::size_t ports() const { return ports_.size(); }

  void send(std::size_t from, std::size_t to, std::span<const std::byte> bytes) {
    const DatagramFaults& faults = ports_[from].link.faults;
    Bytes copy(bytes.begin(), bytes.end());
    if (happens(faults.corruption) && !copy.empty())
      copy[random_() % copy.size()] ^= static_cast<std::byte>(1 + random_() % 255);
    if (happens(faults.duplication)) leave(from, to, copy, detour(faults));
    if (happens(faults.loss)) {
      ++lost;
      return;
    }
    leave(from, to, std::move(copy), happens(faults.reordering) ? detour(faults) : Time{});
  }

  std::optional<Time> next() const {
    return moving_.empty() ? std::nullopt : std::optional(moving_.top().at);
  }
  void take_arrivals(std::vector<std::size_t>& ports) {
    for (const std::size_t i : arrivals_) ports_[i].noted = false;
    ports.insert(ports.end(), arrivals_.begin(), arrivals_.end());
    arrivals_.clear();
  }
  void advance(Time time) {
    while (!moving_.empty() && moving_.top().at <= time) {
      Moving m = std::move(const_cast<Moving&>(moving_.top()));  // popped before anything compares it again
      moving_.pop();
      now = std::max(now, m.at);
      m.at_middle ? arrive_at_middle(std::move(m)) : deliver(std::move(m));
    }
    now = std::max(now, time);
  }

  Time now{};
  const Time time_of_poll;
  std::uint64_t lost = 0;

 private:
  bool happens(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }
  Time detour(const DatagramFaults& faults) {
    const auto most = static_cast<std::uint64_t>(std::max<std::int64_t>(1, faults.detour.count()));
    return Time(static_cast<std::int64_t>(1 + random_() % most));
  }
  /// When a datagram that is given to the link now reaches its other end; nothing if its queue is full.
  std::optional<Time> pass(Direction& direction, const SimulatedLink& link, std::size_t bytes) {
    const Time begin = std::max(now, direction.free);
    if (link.bits_per_second <= 0) return begin + link.delay;
    const double waiting = static_cast<double>((begin - now).count()) * 1e-9 * link.bits_per_second / 8;
    if (waiting + static_cast<double>(bytes) > static_cast<double>(link.queue_bytes)) {
      ++lost;
      return std::nullopt;
    }
    const double seconds = static_cast<double>(bytes + link.header_bytes) * 8 / link.bits_per_second;
    direction.free = begin + Time(static_cast<std::int64_t>(seconds * 1e9));
    return direction.free + link.delay;
  }
  void leave(std::size_t from, std::size_t to, Bytes bytes, Time extra) {
    Port& sender = ports_[from];
    const auto at = pass(sender.up, sender.link, bytes.size());
    if (at) moving_.push({*at + extra, number_++, from, to, true, std::move(bytes)});
  }
  void arrive_at_middle(Moving m) {
    Port& receiver = ports_[m.to];
    const auto at = pass(receiver.down, receiver.link, m.bytes.size());
    if (at) moving_.push({*at, number_++, m.from, m.to, false, std::move(m.bytes)});
  }
  void deliver(Moving m) {
    Port& receiver = ports_[m.to];
    if (!receiver.open) return;
    receiver.inbox.push_back({m.from, std::move(m.bytes)});
    if (!std::exchange(receiver.noted, true)) arrivals_.push_back(m.to);
  }

  std::deque<Port> ports_;
  std::priority_queue<Moving, std::vector<Moving>, Later> moving_;
  std::vector<std::size_t> arrivals_;  // ports
  std::uint64_t number_ = 0;
  std::mt19937_64 random_;
};

namespace {

class SimulatedPort final : public DatagramPort {
 public:
  SimulatedPort(std::shared_ptr<SimulatedState> state, const SimulatedLink& link)
      : state_(std::move(state)), self_(state_->add(link)) {}
  ~SimulatedPort() override { state_->port(self_).open = false; }

  std::string address() const override { return std::to_string(self_); }
  void connect(std::span<const std::string> addresses) override {
    peers_.assign(addresses.size(), kNobody);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const std::string& text = addresses[i];
      if (text.empty()) continue;
      const char* const end = text.data() + text.size();
      const auto read = std::from_chars(text.data(), end, peers_[i]);
      if (read.ec != std::errc() || read.ptr != end || peers_[i] >= state_->ports())
        throw Error(ErrorCode::transport,
                    fmt::format("simulated: \"{}\" is not the address of a port", text));
    }
  }
  std::size_t max_bytes() const noexcept override { return state_->port(self_).link.max_bytes; }
  std::size_t receive_bytes() const noexcept override { return 4 << 20; }
  DatagramCounts counts() const noexcept override { return counts_; }

  std::size_t send(std::span<const Datagram> datagrams) noexcept override {
    for (const Datagram& d : datagrams) {
      ++counts_.sent;
      if (d.peer >= peers_.size() || peers_[d.peer] == kNobody || d.bytes.size() > max_bytes()) {
        ++counts_.refused;
      } else {
        state_->send(self_, peers_[d.peer], d.bytes);
      }
    }
    return datagrams.size();
  }
  std::size_t receive(std::span<ArrivedDatagram> out) noexcept override {
    state_->advance(state_->now + state_->time_of_poll);
    held_.clear();
    std::size_t n = 0;
    auto& inbox = state_->port(self_).inbox;
    while (n < out.size() && !inbox.empty()) {
      held_.push_back(std::move(inbox.front()));
      inbox.pop_front();
      const auto peer = std::ranges::find(peers_, held_.back().from);
      if (peer == peers_.end()) {
        ++counts_.strange;
        continue;
      }
      out[n++] = {static_cast<PeerId>(peer - peers_.begin()), held_.back().bytes};
    }
    counts_.received += n;
    return n;
  }

 private:
  static constexpr std::size_t kNobody = ~std::size_t{0};
  std::shared_ptr<SimulatedState> state_;
  const std::size_t self_;
  std::vector<std::size_t> peers_;
  std::deque<Port::Delivered> held_;  // what the last receive() returned
  DatagramCounts counts_;
};

}  // namespace

SimulatedNetwork::SimulatedNetwork(std::uint64_t seed, Time time_of_poll)
    : state_(std::make_shared<SimulatedState>(seed, time_of_poll)) {}
SimulatedNetwork::~SimulatedNetwork() = default;
std::unique_ptr<DatagramPort> SimulatedNetwork::open(const SimulatedLink& link) {
  return std::make_unique<SimulatedPort>(state_, link);
}
SimulatedNetwork::Time SimulatedNetwork::now() const { return state_->now; }
std::optional<SimulatedNetwork::Time> SimulatedNetwork::next() const { return state_->next(); }
void SimulatedNetwork::advance(Time time) { state_->advance(time); }
void SimulatedNetwork::take_arrivals(std::vector<std::size_t>& ports) { state_->take_arrivals(ports); }
std::uint64_t SimulatedNetwork::lost() const { return state_->lost; }

}  // namespace nzcl::verbs

#include "runtime/switch/simulation/rack.h"

#include <algorithm>
#include <array>

namespace nzcl::simulation {

using namespace engine::slot_pool;

namespace {

/// Of relays, the aggregator above is the last peer.
std::size_t parent_of(std::size_t children) { return children; }

Pool with_workers(Pool pool, std::size_t workers) {
  pool.workers = static_cast<int>(workers);
  return pool;
}

/// The pools above and below relays have keys of their own.
Pool below_relays(Pool pool, std::size_t workers) {
  pool.job.tag ^= 1;
  pool.job.key.low ^= 1;
  return with_workers(pool, workers);
}

}  // namespace

Rack::Rack(const RackPlan& plan)
    : plan_(plan),
      network_(plan.seed),
      waiting_(static_cast<std::size_t>(plan.pool.workers)),
      begun_(waiting_.size()),
      busy_(waiting_.size(), true),
      busy_count_(waiting_.size()),
      packet_(sizeof(Header) + plan.pool.piece_elements * sizeof(std::int32_t)) {
  const auto ranks = static_cast<std::size_t>(plan.pool.workers),
             relays = static_cast<std::size_t>(plan.relays);
  const std::size_t each = relays == 0 ? ranks : ranks / relays;
  const Pool of_ranks = relays == 0 ? plan.pool : below_relays(plan.pool, each);
  for (std::size_t r = 0; r < ranks; ++r) {
    Pool own = of_ranks;
    if (r < plan.windows.size()) own.window = plan.windows[r];
    workers_.push_back(std::make_unique<SlotWorker>(own, static_cast<int>(r % each), plan.most_tensors));
  }
  const Pool of_top = with_workers(plan.pool, relays == 0 ? ranks : relays);
  for (int i = 0; i < plan.relays; ++i) relays_.push_back(std::make_unique<SlotRelay>(of_ranks, of_top, i));
  top_ = plan.make ? plan.make(of_top) : std::make_unique<ProcessAggregator>(of_top);
  open_ports();
}

/// The children of an aggregator have their numbers as peers.
void Rack::open_ports() {
  const std::size_t ranks = workers(), relays = relays_.size();
  for (std::size_t r = 0; r < ranks; ++r) ports_.push_back(network_.open(plan_.link));
  for (std::size_t i = 0; i < relays; ++i) ports_.push_back(network_.open(plan_.relay));
  ports_.push_back(network_.open(plan_.top));
  std::vector<std::string> addresses;
  for (const auto& port : ports_) addresses.push_back(port->address());
  const std::size_t each = ranks_below(relays);
  for (std::size_t r = 0; r < ranks; ++r)
    ports_[r]->connect({&addresses[relays == 0 ? ranks : ranks + r / each], 1});
  for (std::size_t i = 0; i < relays; ++i) {
    std::vector<std::string> peers(&addresses[i * each], &addresses[(i + 1) * each]);
    peers.push_back(addresses.back());
    ports_[ranks + i]->connect(peers);
  }
  const std::size_t first = relays == 0 ? 0 : ranks;
  ports_.back()->connect(std::span(addresses).subspan(first, addresses.size() - 1 - first));
}

void Rack::add(int rank, Tensor& tensor) {
  const auto r = static_cast<std::size_t>(rank);
  if (!busy_[r]) {
    busy_[r] = true;
    ++busy_count_;
  }
  begun_[r] ? workers_[r]->submit(tensor) : waiting_[r].push_back(&tensor);
}

void Rack::begin_those_whose_time_has_come() {
  for (std::size_t r = 0; r < workers(); ++r) {
    if (begun_[r] || (r < plan_.late.size() && network_.now() < plan_.late[r])) continue;
    begun_[r] = true;
    for (Tensor* tensor : waiting_[r]) workers_[r]->submit(*tensor);
  }
}

bool Rack::run(Time limit) {
  std::vector<std::size_t> arrived;
  tick();
  while (busy_count_ > 0 && failure_.empty()) {
    if (network_.now() >= limit) return false;
    const Time next = std::min(next_tick_, network_.next().value_or(next_tick_));
    network_.advance(std::max(network_.now(), next));
    arrived.clear();
    network_.take_arrivals(arrived);
    for (const std::size_t port : arrived) drive(port);
    if (network_.now() >= next_tick_) tick();
  }
  return failure_.empty();
}

/// What happens without any packet: ranks begin, and timers expire.
void Rack::tick() {
  next_tick_ = network_.now() + kTick;
  begin_those_whose_time_has_come();
  for (std::size_t r = 0; r < workers(); ++r) {
    if (begun_[r] && busy_[r]) send_of_worker(r);
  }
}

void Rack::drive(std::size_t port) {
  if (port < workers()) return drive_worker(port);
  port + 1 < ports_.size() ? drive_relay(port - workers()) : drive_top();
}

void Rack::drive_worker(std::size_t r) {
  std::array<verbs::ArrivedDatagram, 16> arrived;
  while (const std::size_t n = ports_[r]->receive(arrived)) {
    for (std::size_t i = 0; i < n; ++i) workers_[r]->receive(arrived[i].bytes, network_.now());
  }
  if (begun_[r]) send_of_worker(r);
}

void Rack::send_of_worker(std::size_t r) {
  SlotWorker& worker = *workers_[r];
  worker.advance(network_.now());
  while (const std::size_t bytes = worker.next_packet(packet_, network_.now())) {
    const verbs::Datagram d{0, std::span(packet_).first(bytes)};
    ports_[r]->send({&d, 1});
  }
  if (!worker.failure().empty()) failure_ = worker.failure();
  if (busy_[r] && worker.idle()) {
    busy_[r] = false;
    --busy_count_;
  }
}

template <typename Machine>
void Rack::send_answers(Machine& machine, std::size_t port, std::size_t children) {
  while (const auto out = machine.front()) {
    const auto send = [&](std::size_t peer) {
      const verbs::Datagram d{static_cast<verbs::PeerId>(peer), out->packet};
      ports_[port]->send({&d, 1});
    };
    if (out->rank == kToAll) {
      for (std::size_t c = 0; c < children; ++c) send(c);
    } else {
      send(out->rank == kToAbove ? parent_of(children) : static_cast<std::size_t>(out->rank));
    }
    machine.pop();
  }
  if (failure_.empty()) failure_ = machine.failure();
}

void Rack::drive_relay(std::size_t i) {
  const std::size_t port = workers() + i, children = ranks_below(relays_.size());
  std::array<verbs::ArrivedDatagram, 16> arrived;
  while (const std::size_t n = ports_[port]->receive(arrived)) {
    for (std::size_t a = 0; a < n; ++a) {
      if (arrived[a].peer == parent_of(children)) {
        relays_[i]->receive_from_above(arrived[a].bytes);
      } else {
        relays_[i]->receive(static_cast<int>(arrived[a].peer), arrived[a].bytes);
      }
      send_answers(*relays_[i], port, children);
    }
  }
}

void Rack::drive_top() {
  const std::size_t children = relays_.empty() ? workers() : relays_.size();
  std::array<verbs::ArrivedDatagram, 16> arrived;
  while (const std::size_t n = ports_.back()->receive(arrived)) {
    for (std::size_t a = 0; a < n; ++a) {
      top_->receive(static_cast<int>(arrived[a].peer), arrived[a].bytes);
      send_answers(*top_, ports_.size() - 1, children);
    }
  }
}

}  // namespace nzcl::simulation

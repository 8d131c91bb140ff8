#include "runtime/switch/simulation/rack.h"

#include <algorithm>
#include <array>

namespace nzcl::simulation {

using namespace engine::slot_pool;

Rack::Rack(const RackPlan& plan)
    : plan_(plan),
      network_(plan.seed),
      waiting_(static_cast<std::size_t>(plan.pool.workers)),
      begun_(waiting_.size()),
      busy_(waiting_.size(), true),
      busy_count_(waiting_.size()),
      packet_(sizeof(Header) + plan.pool.piece_elements * sizeof(std::int32_t)) {
  for (std::size_t r = 0; r < waiting_.size(); ++r) {
    Pool own = plan.pool;
    if (r < plan.windows.size()) own.window = plan.windows[r];
    workers_.push_back(std::make_unique<SlotWorker>(own, static_cast<int>(r), plan.most_tensors));
  }
  aggregator_ = plan.make ? plan.make(plan.pool) : std::make_unique<ProcessAggregator>(plan.pool);
  open_ports();
}

/// The ranks have their numbers as peers of the aggregator.
void Rack::open_ports() {
  for (std::size_t r = 0; r < workers(); ++r) ports_.push_back(network_.open(plan_.link));
  ports_.push_back(network_.open(plan_.aggregator));
  std::vector<std::string> addresses;
  for (const auto& port : ports_) addresses.push_back(port->address());
  for (std::size_t r = 0; r < workers(); ++r) ports_[r]->connect({&addresses.back(), 1});
  ports_.back()->connect(std::span(addresses).first(workers()));
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

void Rack::drive(std::size_t port) { port < workers() ? drive_worker(port) : drive_aggregator(); }

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

void Rack::send_answers() {
  while (const auto out = aggregator_->front()) {
    const auto send = [&](std::size_t rank) {
      const verbs::Datagram d{static_cast<verbs::PeerId>(rank), out->packet};
      ports_.back()->send({&d, 1});
    };
    if (out->rank == kToAll) {
      for (std::size_t r = 0; r < workers(); ++r) send(r);
    } else {
      send(static_cast<std::size_t>(out->rank));
    }
    aggregator_->pop();
  }
  if (failure_.empty()) failure_ = aggregator_->failure();
}

void Rack::drive_aggregator() {
  std::array<verbs::ArrivedDatagram, 16> arrived;
  while (const std::size_t n = ports_.back()->receive(arrived)) {
    for (std::size_t a = 0; a < n; ++a) {
      aggregator_->receive(static_cast<int>(arrived[a].peer), arrived[a].bytes);
      send_answers();
    }
  }
}

}  // namespace nzcl::simulation

#include "perf/scale/device.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "runtime/wire/batch.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/section.h"

namespace perf::scale {

using namespace nzcl;

class SimulatedRegion final : public verbs::MemoryRegion {
 public:
  SimulatedRegion(Network& network, std::span<std::byte> bytes)
      : network_(network), bytes_(bytes), key_(network.regions_.size()) {
    network_.regions_.push_back(bytes);
  }
  ~SimulatedRegion() override { network_.regions_[key_] = {}; }
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  verbs::RemoteMemory remote() const noexcept override {
    return {reinterpret_cast<std::uint64_t>(bytes_.data()), key_};
  }

 private:
  Network& network_;
  const std::span<std::byte> bytes_;
  const std::uint64_t key_;
};

/// What a rank of the simulation has in place of a network card and of memory that its host's ranks share.
class SimulatedEndpoint final : public verbs::Endpoint {
 public:
  SimulatedEndpoint(Network& network, int number, Core& core, std::size_t max_posted,
                    const verbs::EndpointOptions& options)
      : network_(network),
        number_(number),
        core_(core),
        lane_(core.next_lane()),
        address_(network.endpoints_.size()),
        max_posted_(max_posted),
        levels_(options.levels) {
    network_.endpoints_.push_back(this);
  }
  ~SimulatedEndpoint() override { network_.endpoints_[address_] = nullptr; }

  std::string address_for(verbs::PeerId) override { return std::to_string(address_); }
  void connect(std::span<const std::string> addresses, verbs::Deadline) override {
    peers_.resize(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      std::size_t address = 0;
      if (addresses[i].empty()) continue;
      std::from_chars(addresses[i].data(), addresses[i].data() + addresses[i].size(), address);
      peers_[i] = network_.endpoints_.at(address);
    }
  }

  std::size_t post(std::span<const verbs::Write> writes) noexcept override;
  std::size_t poll(std::span<verbs::Completion> out) noexcept override;
  const std::byte* view(verbs::PeerId, verbs::RemoteMemory memory,
                        std::size_t bytes) const noexcept override {
    return network_.allowed(memory, bytes) ? reinterpret_cast<const std::byte*>(memory.address) : nullptr;
  }
  std::string failure() const override { return network_.failure(); }
  std::size_t in_flight() const noexcept override { return in_flight_; }

  /// So many bytes of a peer on another host have landed here.
  void landed(std::uint64_t bytes) { unread_bytes_ += bytes; }
  void arrived(std::uint32_t immediate, bool within, std::uint32_t contributions);
  void written(std::uint64_t context);
  void failed(verbs::PeerId peer);

 private:
  void fly(const verbs::Write& write);
  std::uint64_t values_in(const verbs::Write& write, std::uint64_t bytes) const;
  std::uint32_t contributions_in(const verbs::Write& write, std::uint64_t bytes) const;

  struct Arrival {
    std::uint32_t immediate;
    bool within;
    std::uint32_t contributions;
  };
  Network& network_;
  const int number_;
  Core& core_;
  const std::size_t lane_, address_, max_posted_;
  const std::vector<verbs::Level> levels_;
  std::vector<SimulatedEndpoint*> peers_;
  std::deque<Arrival> arrivals_;
  std::deque<verbs::Completion> completions_;
  std::size_t in_flight_ = 0;
  std::uint64_t unread_bytes_ = 0;  // that the core has not spent time on
};

std::size_t SimulatedEndpoint::post(std::span<const verbs::Write> writes) noexcept {
  std::size_t n = 0;
  for (; n < writes.size() && in_flight_ < max_posted_; ++n) fly(writes[n]);
  return n;
}

/// How many of the bytes of a write are a tensor's values. Beside them there are headers, bitmaps and
/// credits.
std::uint64_t SimulatedEndpoint::values_in(const verbs::Write& write, std::uint64_t bytes) const {
  if (!write.immediate) return bytes;
  const wire::Immediate immediate = wire::decode(*write.immediate);
  if (immediate.kind == wire::Immediate::Kind::direct) return bytes;
  if (immediate.kind == wire::Immediate::Kind::credit || bytes < sizeof(wire::Header)) return 0;
  std::uint64_t values = 0;
  wire::SectionReader sections(write.segments.front().data, bytes, immediate.channel.direction);
  while (const auto section = sections.next()) values += section->header.payload_bytes;
  return std::min(values, bytes);
}

/// How many ranks' contributions a message of doubling has.
std::uint32_t SimulatedEndpoint::contributions_in(const verbs::Write& write, std::uint64_t bytes) const {
  if (!write.immediate) return 0;
  const wire::Immediate immediate = wire::decode(*write.immediate);
  if (immediate.kind != wire::Immediate::Kind::message ||
      immediate.channel.priority != wire::Priority::doubling)
    return 0;
  const std::span<const std::byte> message(write.segments.front().data, bytes);
  wire::SectionReader sections(message.data(), bytes, immediate.channel.direction);
  if (!sections.next() || !sections.more()) return 1;
  const char* wrong = nullptr;
  const auto batch = wire::read_batch(message, sections.at(), wrong);
  return 1 + (batch ? batch->header.entries : 0u);
}

void SimulatedEndpoint::fly(const verbs::Write& write) {
  Flight& flight = network_.take();
  flight.from_ = this;
  flight.to_ = peers_[write.peer];
  flight.write_ = write;
  flight.bytes_ = 0;
  for (std::size_t i = 0; i < write.segments.size(); ++i) {
    flight.segments_[i] = write.segments[i];
    flight.bytes_ += write.segments[i].bytes;
  }
  flight.write_.segments = {flight.segments_.data(), write.segments.size()};
  const double more = network_.coarseness() - 1;
  flight.wire_bytes_ = flight.bytes_;
  if (more > 0)
    flight.wire_bytes_ +=
        static_cast<std::uint64_t>(more * static_cast<double>(values_in(write, flight.bytes_)));
  flight.contributions_ = contributions_in(write, flight.bytes_);
  flight.way_ = network_.links().way(number_, flight.to_->number_);
  const bool within = flight.way_.links == 0;
  const CoreCosts& costs = core_.costs();
  core_.charge_bytes();
  const double byte = within ? costs.copied_byte : costs.network_byte;
  core_.charge((within ? costs.host_message : costs.network_message) / 2 +
               byte * static_cast<double>(flight.wire_bytes_));
  ++in_flight_;
  flight.at_ = within ? Flight::At::landing : Flight::At::link;
  const Time delay = within ? network_.links().delay(number_, number_) : Time{};
  network_.timeline().add(core_.clock() + delay, flight);
}

std::size_t SimulatedEndpoint::poll(std::span<verbs::Completion> out) noexcept {
  std::size_t n = 0;
  for (; n < out.size() && !completions_.empty(); ++n, completions_.pop_front()) {
    out[n] = completions_.front();
    --in_flight_;
  }
  const CoreCosts& costs = core_.costs();
  core_.charge(costs.network_byte * static_cast<double>(std::exchange(unread_bytes_, 0)));
  for (; n < out.size() && !arrivals_.empty(); ++n, arrivals_.pop_front()) {
    const Arrival& arrival = arrivals_.front();
    out[n] = {.kind = verbs::Completion::Kind::arrived,
              .peer = verbs::Completion::kNoPeer,
              .immediate = arrival.immediate,
              .context = 0};
    core_.charge((arrival.within ? costs.host_message : costs.network_message) / 2 +
                 costs.contribution * arrival.contributions);
  }
  return n;
}

void SimulatedEndpoint::arrived(std::uint32_t immediate, bool within, std::uint32_t contributions) {
  arrivals_.push_back({immediate, within, contributions});
  core_.wake(lane_);
}

void SimulatedEndpoint::written(std::uint64_t context) {
  completions_.push_back({.kind = verbs::Completion::Kind::written,
                          .peer = verbs::Completion::kNoPeer,
                          .immediate = 0,
                          .context = context});
  core_.wake(lane_);
}

void SimulatedEndpoint::failed(verbs::PeerId peer) {
  completions_.push_back(
      {.kind = verbs::Completion::Kind::failed, .peer = peer, .immediate = 0, .context = 0});
  core_.wake(lane_);
}

void Flight::happen() {
  Timeline& timeline = network_.timeline_;
  Links& links = network_.links_;
  switch (at_) {
    case At::link: {
      const Time first = links.pass(way_, wire_bytes_, timeline.now());
      if (way_.next < way_.links) return timeline.add(first, *this);
      at_ = At::landing;
      return timeline.add(way_.last_byte, *this);
    }
    case At::landing: {
      if (!network_.allowed(write_.target, bytes_)) {
        network_.failure_ = "simulated write: the target is not registered memory";
        from_->failed(write_.peer);
        return network_.give_back(*this);
      }
      auto* to = reinterpret_cast<std::byte*>(write_.target.address);
      for (const verbs::Segment& s : write_.segments) {
        std::memcpy(to, s.data, s.bytes);
        to += s.bytes;
      }
      ++network_.messages_;
      const bool within = way_.links == 0;
      if (!within) to_->landed(wire_bytes_);
      if (write_.immediate) to_->arrived(*write_.immediate, within, contributions_);
      at_ = At::acknowledgement;
      return timeline.add(timeline.now() + (within ? Time{} : links.plan().delay), *this);
    }
    case At::acknowledgement:
      from_->written(write_.context);
      return network_.give_back(*this);
  }
}

Flight& Network::take() {
  if (spare_.empty()) return flights_.emplace_back(*this);
  Flight& flight = *spare_.back();
  spare_.pop_back();
  return flight;
}

bool Network::allowed(const verbs::RemoteMemory& target, std::uint64_t bytes) const {
  if (target.key >= regions_.size()) return false;
  const std::span<std::byte> region = regions_[target.key];
  const auto first = reinterpret_cast<std::uint64_t>(region.data());
  return target.address >= first && target.address + bytes <= first + region.size();
}

namespace {

class SimulatedDevice final : public verbs::Device {
 public:
  SimulatedDevice(Network& network, int number, Core& core, const verbs::Limits& limits,
                  const verbs::Limits& within)
      : network_(network),
        number_(number),
        core_(core),
        network_limits_(limits),
        within_(within),
        both_(limits) {
    both_.max_segments = std::min(limits.max_segments, within.max_segments);
    both_.ordered = limits.ordered && within.ordered;
    both_.readable = false;
    both_.costs.foreign_byte = std::max(limits.costs.foreign_byte, within.costs.foreign_byte);
  }
  std::string name() const override { return "simulated"; }
  const verbs::Limits& limits() const noexcept override { return both_; }
  const verbs::Limits& limits_at(verbs::Level level) const noexcept override {
    return level == verbs::Level::within ? within_ : network_limits_;
  }
  bool is_mixed() const noexcept override { return true; }
  std::unique_ptr<verbs::MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind) override {
    return std::make_unique<SimulatedRegion>(network_, bytes);
  }
  std::unique_ptr<verbs::Endpoint> open_endpoint(const verbs::EndpointOptions& options) override {
    return std::make_unique<SimulatedEndpoint>(network_, number_, core_, network_limits_.max_posted, options);
  }

 private:
  Network& network_;
  const int number_;
  Core& core_;
  const verbs::Limits network_limits_, within_;
  verbs::Limits both_;
};

}  // namespace

std::shared_ptr<verbs::Device> Network::device(int number, Core& core, const verbs::Limits& limits,
                                               const verbs::Limits& within) {
  return std::make_shared<SimulatedDevice>(*this, number, core, limits, within);
}

}  // namespace perf::scale

#include "verbs/mixed/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "verbs/mixed/endpoint.h"
#include "verbs/mixed/pair.h"
#include "verbs/trial.h"

namespace nzcl::verbs::mixed {
namespace {

class MixedRegion final : public MemoryRegion {
 public:
  MixedRegion(std::unique_ptr<MemoryRegion> between, std::unique_ptr<MemoryRegion> within)
      : MemoryRegion(between->local_descriptor(Level::between), within->local_descriptor(Level::within)),
        between_(std::move(between)),
        within_(std::move(within)) {}
  std::span<std::byte> bytes() const noexcept override { return between_->bytes(); }
  RemoteMemory remote() const noexcept override { return between_->remote(); }
  RemoteMemory remote_at(Level level) const noexcept override {
    return level == Level::within ? within_->remote() : between_->remote();
  }

 private:
  const std::unique_ptr<MemoryRegion> between_, within_;
};

/// What holds for peers at both levels.
Limits weaker_of(const Limits& a, const Limits& b) {
  return {.max_segments = std::min(a.max_segments, b.max_segments),
          .max_write_bytes = std::min(a.max_write_bytes, b.max_write_bytes),
          .max_posted = a.max_posted + b.max_posted,  // each endpoint has room of its own
          .ordered = a.ordered && b.ordered,
          .readable = a.readable && b.readable,
          .autonomous = a.autonomous && b.autonomous,
          .link_gbps = a.link_gbps,
          // An endpoint of both has an epoll instance of its own.
          .endpoint_descriptors = a.endpoint_descriptors + b.endpoint_descriptors + 1,
          .peer_descriptors = std::max(a.peer_descriptors, b.peer_descriptors),
          .least_peers = std::max(a.least_peers, b.least_peers),
          .take_turns = a.take_turns && b.take_turns,
          .costs = {.segment = std::max(a.costs.segment, b.costs.segment),
                    .write = std::max(a.costs.write, b.costs.write),
                    .foreign_byte = std::max(a.costs.foreign_byte, b.costs.foreign_byte)}};
}

}  // namespace

MixedDevice::MixedDevice(std::shared_ptr<Device> between, std::shared_ptr<Device> within)
    : between_(std::move(between)),
      within_(std::move(within)),
      limits_(weaker_of(between_->limits(), within_->limits())) {}

std::string MixedDevice::name() const {
  return fmt::format("{} within hosts, {} between them", within_->name(), between_->name());
}

std::unique_ptr<MemoryRegion> MixedDevice::register_memory(std::span<std::byte> bytes, MemoryKind kind) {
  auto between = between_->register_memory(bytes, kind);
  return std::make_unique<MixedRegion>(std::move(between), within_->register_memory(bytes, kind));
}

std::unique_ptr<Endpoint> MixedDevice::open_endpoint(const EndpointOptions& options) {
  EndpointOptions between = options, within = options;
  between.level = Level::between;
  within.level = Level::within;
  within.within_only = true;
  bool any_within = false, any_between = options.peers <= 1;
  for (PeerId peer = 0; peer < options.levels.size(); ++peer) {
    if (peer == options.self) continue;
    any_within |= options.levels[peer] == Level::within;
    any_between |= options.levels[peer] == Level::between;
  }
  if (!any_within) return between_->open_endpoint(between);
  if (!any_between) return within_->open_endpoint(within);
  return std::make_unique<MixedEndpoint>(between_->open_endpoint(between), within_->open_endpoint(within),
                                         options.levels);
}

std::unique_ptr<Trial> MixedDevice::begin_trial(const TrialOptions& options) {
  return within_->begin_trial(options);
}

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  const auto pair = TransportPair::of(options.transport).value();
  DeviceOptions between = options, within = options;
  between.transport = pair.between;
  within.transport = pair.within;
  auto network = verbs::open_device(between);
  return std::make_shared<MixedDevice>(std::move(network), verbs::open_device(within));
}

}  // namespace nzcl::verbs::mixed

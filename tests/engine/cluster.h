// All ranks of a communicator in one thread: their lanes write over the loopback network and are driven in
// turn, so that a run with the same seed is the same again.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/lane/lane.h"
#include "verbs/loopback/network.h"
#include "verbs/mixed/device.h"

namespace nzcl::test {

struct ClusterOptions {
  int workers = 2;
  int dedicated = 0;
  int lanes = 1;
  std::uint64_t slot_bytes = 4096;
  std::uint64_t express_slot_bytes = 1024;
  std::uint32_t slots = 4;
  std::uint32_t express_slots = 0;  // 0: as many as `slots`
  std::uint64_t worker_window = engine::kWorkerWindow;
  std::uint64_t slice_bytes = 0;
  std::uint64_t ahead_bytes = 0;
  std::uint64_t gather_bytes = 512;
  std::uint64_t direct_bytes = 2048;
  bool lent = false;  // at both priorities; needs loopback.limits.readable
  /// By member, in turn: the memory node that it is on. Nothing: not known.
  std::vector<int> nodes = {};
  /// Members of one lending group; member m is in group m / group_size. 0: all members are in one group.
  /// Links between groups are treated as unordered.
  int group_size = 0;
  bool one_hop = false;  // of express operations
  /// Operations that fit take doubling, in slots of this size. 0: none do.
  std::uint64_t doubling_slot_bytes = 0;
  /// Operations take merging, with channels like those of bulk messages.
  bool merging = false;
  std::uint64_t tile_block_bytes = 0;
  /// The index code of member m's tiles is number m of these, modulo their number. Empty: as is cheapest.
  std::vector<wire::IndexCode> index_codes = {};
  bool short_codes = false;
  /// Member m's is number m of these, modulo their number.
  std::vector<Staging> staging = {Staging::cached};
  verbs::LoopbackOptions loopback;
  /// By member: the host that it is on. Members of one host reach each other over a network of their own,
  /// with the options `within`. Empty: all reach each other over one network.
  std::vector<int> hosts = {};
  verbs::LoopbackOptions within = {};
  /// Puts a device of the test's own before that of a member.
  std::function<std::shared_ptr<verbs::Device>(int member, std::shared_ptr<verbs::Device>)> device =
      [](int, std::shared_ptr<verbs::Device> own) { return own; };
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options) : options_(options) {
    engine::EngineConfig config;
    config.members = {.self = 0, .workers = options.workers, .dedicated = options.dedicated};
    config.lanes = options.lanes;
    config.channels = {engine::ChannelConfig{options.slot_bytes, options.slots, options.lent},
                       engine::ChannelConfig{
                           options.express_slot_bytes,
                           options.express_slots > 0 ? options.express_slots : options.slots, options.lent}};
    if (options.doubling_slot_bytes > 0)
      config.channels[static_cast<std::size_t>(wire::Priority::doubling)] = {options.doubling_slot_bytes,
                                                                             options.slots};
    if (options.merging)
      config.channels[static_cast<std::size_t>(wire::Priority::merging)] = config.channels[0];
    config.one_hop = options.one_hop;
    config.max_segments = options.loopback.limits.max_segments;
    config.set_links({.ordered = options.loopback.limits.ordered, .gather_bytes = options.gather_bytes});
    for (int member = 0; member < config.members.count() && !options.nodes.empty(); ++member)
      config.nodes.push_back(options.nodes[static_cast<std::size_t>(member) % options.nodes.size()]);
    config.direct_bytes = options.direct_bytes;
    config.slice_bytes = options.slice_bytes;
    config.worker_window = options.worker_window;
    config.ahead_bytes = options.ahead_bytes;
    config.tile_block_bytes = options.tile_block_bytes;
    config.short_codes = options.short_codes;
    if (!options.hosts.empty() && options.within.limits.max_segments < config.max_segments)
      config.max_segments = options.within.limits.max_segments;
    config_ = config;
    const int members = config.members.count();
    for (int m = 0; m < members; ++m) {
      devices_.push_back(options.device(m, open_device()));
      for (int l = 0; l < options.lanes; ++l) {
        engine::LaneOptions lane{.config = config,
                                 .timeout = std::chrono::hours(1),
                                 .spin = {},
                                 .on_failure = [this](const Failure& f) {
                                   if (!failure_) failure_ = f;
                                 }};
        lane.config.members.self = m;
        lane.config.lane = l;
        cut_into_groups(lane.config, m);
        lane.config.staging = options.staging[static_cast<std::size_t>(m) % options.staging.size()];
        if (!options.index_codes.empty())
          lane.config.index_code =
              options.index_codes[static_cast<std::size_t>(m) % options.index_codes.size()];
        lanes_.push_back(std::make_unique<engine::Lane>(lane, devices_.back()));
      }
    }
    for (int l = 0; l < options.lanes; ++l) {
      for (int m = 0; m < members; ++m) {
        std::vector<std::string> addresses;
        for (int peer = 0; peer < members; ++peer) addresses.push_back(lane(peer, l).address_for(m));
        lane(m, l).connect(addresses, verbs::Clock::now());
      }
    }
  }

  engine::Lane& lane(int member, int l) {
    return *lanes_[static_cast<std::size_t>(member * options_.lanes + l)];
  }
  verbs::Device& device(int member) { return *devices_[static_cast<std::size_t>(member)]; }
  const engine::EngineConfig& config() const { return config_; }
  const std::optional<Failure>& failure() const { return failure_; }

  engine::SliceLayout layout(std::uint64_t epoch, std::uint64_t count, std::uint64_t element_bytes,
                             std::uint64_t block_elems) const {
    if (options_.merging && count > 0) {
      wire::OperationRecord record;
      record.count = count;
      record.block_elems = block_elems;
      record.type = static_cast<std::uint8_t>(DataType::int32);
      record.algorithm = wire::Algorithm::merging;
      return engine::layout_of(config_, epoch, record);
    }
    const auto doubling = layout_in(epoch, count, element_bytes, block_elems, wire::Priority::doubling,
                                    engine::doubling_bytes(config_));
    if (config_.has_doubling() && doubling.express()) return doubling;
    return layout_in(epoch, count, element_bytes, block_elems, wire::Priority::express,
                     engine::express_bytes(config_));
  }
  engine::SliceLayout layout_in(std::uint64_t epoch, std::uint64_t count, std::uint64_t element_bytes,
                                std::uint64_t block_elems, wire::Priority priority,
                                std::uint64_t express_bytes) const {
    return engine::SliceLayout({.epoch = epoch,
                                .count = count,
                                .element_bytes = element_bytes,
                                .block_elems = block_elems,
                                .owners = config_.owners(),
                                .least_slice_bytes = engine::least_slice_bytes(config_),
                                .slice_bytes = config_.slice_bytes,
                                .ahead_bytes = config_.ahead_bytes,
                                .slot_bytes = config_.channel(wire::Priority::bulk).slot_bytes,
                                .express_bytes = express_bytes,
                                .express_priority = priority,
                                .tile_block_bytes = config_.tile_block_bytes});
  }
  void submit(int rank, engine::Operation& operation) {
    for (int l = 0; l < options_.lanes; ++l) lane(rank, l).submit(&operation);
  }
  /// Drives all lanes in rounds until nothing has moved for many rounds. Returns the number of rounds.
  int run() {
    int quiet = 0, rounds = 0;
    while (quiet < 200 && !failure_) {
      bool moved = false;
      for (const auto& lane : lanes_) moved |= lane->drive();
      quiet = moved ? 0 : quiet + 1;
      ++rounds;
    }
    return rounds;
  }

 private:
  std::shared_ptr<verbs::Device> open_device() {
    if (options_.hosts.empty()) return network_.device(options_.loopback);
    auto within = host_network_.device(options_.within);
    // The keys of the two networks differ, so that memory which is written over the wrong one is not found.
    first_keys_.push_back(within->register_memory(first_memory_, MemoryKind::host));
    return std::make_shared<verbs::mixed::MixedDevice>(network_.device(options_.loopback), std::move(within));
  }
  void put_on_hosts(engine::EngineConfig& config, int self) const {
    for (std::size_t member = 0; member < options_.hosts.size(); ++member) {
      const bool here = options_.hosts[member] == options_.hosts[static_cast<std::size_t>(self)];
      config.lending_groups[member] = options_.hosts[member];
      config.links[member].level = here ? verbs::Level::within : verbs::Level::between;
      config.links[member].ordered = (here ? options_.within : options_.loopback).limits.ordered;
    }
  }
  void cut_into_groups(engine::EngineConfig& config, int self) const {
    if (!options_.hosts.empty()) return put_on_hosts(config, self);
    if (options_.group_size == 0) return;
    for (int member = 0; member < config.members.count(); ++member) {
      const auto index = static_cast<std::size_t>(member);
      config.lending_groups[index] = member / options_.group_size;
      if (member / options_.group_size != self / options_.group_size) config.links[index].ordered = false;
    }
  }

  ClusterOptions options_;
  engine::EngineConfig config_;
  verbs::LoopbackNetwork network_, host_network_;
  std::vector<std::byte> first_memory_ = std::vector<std::byte>(8);
  std::vector<std::unique_ptr<verbs::MemoryRegion>> first_keys_;
  std::optional<Failure> failure_;
  std::vector<std::shared_ptr<verbs::Device>> devices_;
  std::vector<std::unique_ptr<engine::Lane>> lanes_;
};

}  // namespace nzcl::test

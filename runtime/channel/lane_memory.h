// One lane's registered memory: receive rings, staging buffers and the bytes that credit writes use. Every
// member computes the same layout, so only its start and key are exchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/channel/lane_context.h"
#include "runtime/plan/engine_config.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Staging buffers of `member` at one priority: a few to compose in, a few for results that wait for a slow
/// receiver, and where messages are lent one for every slot of the channels up and one for every slot of one
/// channel down (all results go to all workers), so that contributions and results never wait for each other.
std::uint32_t staging_buffers(const EngineConfig& config, int member, wire::Priority p);
/// Offset of the ring that `receiver` has for the channel `from` (member, direction, priority), of `member`'s
/// staging buffers, and the size of all its memory.
std::uint64_t ring_offset(const EngineConfig& config, int receiver, const wire::ChannelId& from);
std::uint64_t staging_offset(const EngineConfig& config, int member, wire::Priority p);
std::uint64_t lane_memory_bytes(const EngineConfig& config, int member);

/// Owns the memory, which is the device's, and its registration; the device outlives it. No page is touched
/// before the lane's own thread does, so that pages lie on that thread's NUMA node.
class LaneMemory {
 public:
  LaneMemory(const EngineConfig& config, verbs::Device& device);

  verbs::RemoteMemory remote() const { return region_->remote(); }
  /// Fills in everything of `context` that does not depend on the peers' memory.
  void attach(LaneContext& context) const;
  /// Fills in the channels to `member`, whose lane memory starts at `memory`.
  static void attach_peer(LaneContext& context, int member, verbs::RemoteMemory memory);
  /// Fills in the channels from `member` whose messages are lent. Its lane memory can be read here from
  /// `base` on.
  static void attach_lender(LaneContext& context, int member, const std::byte* base);

 private:
  struct Release {
    verbs::Device* device;
    std::size_t bytes;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Release> bytes_;
  std::unique_ptr<verbs::MemoryRegion> region_;
};

}  // namespace nzcl::engine

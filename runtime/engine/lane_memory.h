// One lane's registered memory: receive rings, staging buffers and the bytes that credit writes use. Every
// member computes the same layout, so only its start and key are exchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/engine/config.h"
#include "runtime/engine/lane_context.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Staging buffers of a class that is not lent, beside those of kWaitingResults: enough to keep the transport
/// busy while messages are composed, few enough to stay in cache.
inline constexpr std::uint32_t kStagingBuffers = 16;
/// Results that an aggregator keeps in staging buffers for receivers without a credit, or until the local
/// worker can place them. It bounds how far one receiver falls behind before the others wait for it. (8 ranks
/// on links of 1 Gb/s and 16 on 250 Mb/s were as fast with 8 as with 24 or 56.)
inline constexpr std::uint32_t kWaitingResults = 8;

/// Staging buffers of `member`. Of a lent class there is one for each slot of the channels up, one for each
/// slot of a channel down (all results go to all workers), and some for results that wait and for what is
/// being summed: so contributions and results never wait for each other's buffers.
std::uint32_t staging_buffers(const EngineConfig& config, int member, wire::Class c);
/// Offset of the ring that `receiver` has for the channel `from` (member, direction, class), of `member`'s
/// staging buffers, and the size of all its memory.
std::uint64_t ring_offset(const EngineConfig& config, int receiver, const wire::ChannelId& from);
std::uint64_t staging_offset(const EngineConfig& config, int member, wire::Class c);
std::uint64_t lane_memory_bytes(const EngineConfig& config, int member);

/// Owns the memory, which is the device's, and its registration; the device outlives it. Zero pages until
/// touched: the lane's thread places them on its NUMA node.
class LaneMemory {
 public:
  LaneMemory(const EngineConfig& config, verbs::Device& device);

  verbs::RemoteMemory remote() const { return region_->remote(); }
  /// Fills in everything of `context` that does not depend on the peers' memory.
  void attach(LaneContext& context) const;
  /// Fills in the channels to `member`, whose lane memory starts at `memory`.
  static void attach_peer(LaneContext& context, int member, verbs::RemoteMemory memory);
  /// Fills in the channels from `member` whose messages are lent; its lane memory is seen here at `base`.
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

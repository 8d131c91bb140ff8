// One lane's registered memory: receive rings, staging buffers, and the words that credits are written to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/channel/lane_context.h"
#include "runtime/channel/lane_layout.h"
#include "runtime/plan/engine_config.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Owns the memory, which the device allocates, and its registration. The device and the configuration must
/// outlive it. Rings lie on this member's memory node, and staging buffers on that of whoever reads them
/// (staging_banks.h).
class LaneMemory {
 public:
  LaneMemory(const EngineConfig& config, verbs::Device& device);

  std::span<const std::byte> bytes() const { return region_->bytes(); }
  /// What members at that level need to write to it.
  verbs::RemoteMemory remote(verbs::Level level) const { return region_->remote_at(level); }
  /// Fills in everything in `context` that does not depend on the memory of peers.
  void attach(LaneContext& context) const;
  /// Fills in the channels to `member`, whose lane memory starts at `memory`.
  void attach_peer(LaneContext& context, int member, verbs::RemoteMemory memory) const;
  /// Fills in the channels from `member` whose messages are lent. `base` is where the lane memory of that
  /// member can be read in this process.
  void attach_lender(LaneContext& context, int member, const std::byte* base) const;
  const LaneLayout& layout() const { return layout_; }

 private:
  void place(const EngineConfig& config) const;
  void attach_sets(LaneContext& context) const;
  void attach_credits(LaneContext& context) const;

  struct Release {
    verbs::Device* device;
    std::size_t bytes;
    void operator()(std::byte* p) const;
  };
  const LaneLayout layout_;
  std::unique_ptr<std::byte, Release> bytes_;
  std::unique_ptr<verbs::MemoryRegion> region_;
};

}  // namespace nzcl::engine

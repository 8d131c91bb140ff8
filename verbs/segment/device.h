// What the devices of the transports within a host have in common.
#pragma once

#include <string>

#include "verbs/segment/endpoint.h"
#include "verbs/segment/shared_memories.h"
#include "verbs/transport.h"

namespace nzcl::verbs::segment {

/// Owns the shared memory that allocate() returns. Thread-safe.
class SegmentDevice : public Device {
 public:
  std::string name() const override { return name_; }
  const Limits& limits() const noexcept override { return limits_; }
  std::span<std::byte> allocate(std::size_t bytes) override { return memories_.allocate(bytes); }
  void release(std::span<std::byte> bytes) noexcept override { memories_.release(bytes); }

  const SharedMemories& memories() const { return memories_; }

 protected:
  explicit SegmentDevice(const char* name) : name_(name) {
    limits_.max_segments = kMaxSegments;
    limits_.max_posted = kMaxPosted;
    limits_.ordered =
        true;  // an immediate is pushed behind what was written before (verbs/segment/README.md)
    limits_.readable = true;
  }
  Limits limits_;  // a device completes them when it is made

 private:
  const char* const name_;
  SharedMemories memories_;
};

}  // namespace nzcl::verbs::segment

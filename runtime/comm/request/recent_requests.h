// Remembers what came out of checking small requests, because programs repeat them in every step.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "nzcl/communicator.h"
#include "runtime/comm/request/requests.h"
#include "runtime/comm/session/registrations.h"
#include "runtime/plan/engine_config.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::comm {

/// Checking a request, finding its buffers, choosing its algorithm and laying out its tensor take a large
/// part of the time of a small operation. All of that comes out alike if the same request, apart from its
/// tag, is made again on the same communicator while its buffers are registered.
///
/// Only requests without a bitmap whose tensor travels in one message are remembered. For one thread at a
/// time: the communicator calls it with the lock that puts its operations in order.
class RecentRequests {
 public:
  /// `config` must outlive this object.
  explicit RecentRequests(const engine::EngineConfig& config) : config_(config) {}

  /// Sets `p` to what the request came to when it was remembered, and returns true; or returns false.
  bool recall(const AllreduceRequest& request, Prepared& p);
  /// Lays out the tensor of a request that was not refused, and remembers what the request has come to.
  void remember(const AllreduceRequest& request, const Registrations& registrations, Prepared& p);

 private:
  struct Buffer {
    /// Operations need the region, but only while a handle covers the buffer (see Registrations).
    std::weak_ptr<const Registration> handle;
    std::weak_ptr<const verbs::MemoryRegion> region;
    SharedRegion find() const { return handle.expired() ? nullptr : region.lock(); }
  };
  struct Entry {
    AllreduceRequest request;
    wire::OperationRecord record;
    engine::SliceLayout layout;
    Prepared::Input known;
    Buffer input, output;
  };
  static constexpr std::size_t kEntries = 64;
  static std::size_t place_of(const AllreduceRequest& request);

  const engine::EngineConfig& config_;
  std::array<std::optional<Entry>, kEntries> entries_;
};

}  // namespace nzcl::comm

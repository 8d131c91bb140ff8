// All lanes of one member, used together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/comm/communicator/core_sharing.h"
#include "runtime/lane/lane.h"
#include "runtime/operation/lane_bells.h"
#include "runtime/placement/plan.h"
#include "runtime/plan/membership.h"

namespace nzcl::comm {

/// Owns the lanes. Thread-safe once connect() has returned.
class LaneSet final : public engine::LaneBells {
 public:
  /// Makes as many lanes as the configuration says. `caller_spin` is how long a waiting caller polls before
  /// it yields its core.
  LaneSet(const engine::LaneOptions& options, const std::shared_ptr<verbs::Device>& device,
          std::chrono::nanoseconds caller_spin);

  /// Collective. Tells all members the addresses of this member's lanes, and connects the lanes to theirs.
  /// Other members may not have come so far yet, and must not be written to.
  void connect(const engine::Membership& membership, bootstrap::Rounds& meeting, verbs::Deadline deadline);

  std::size_t size() const { return lanes_.size(); }
  engine::Lane& operator[](std::size_t i) { return *lanes_[i]; }

  /// Submits the operation to the lanes that own a part of it. The other lanes must not touch it, because it
  /// may have finished and been deleted before they do.
  void submit(engine::Operation& operation);
  /// Drives every lane once, except those that another thread is driving.
  void drive();
  /// Drives the lanes until the operation has finished, and returns true; or returns false at the deadline.
  bool drive_until(engine::Operation& operation, std::optional<verbs::Deadline> deadline);

  void ring(int lane) noexcept override { lanes_[static_cast<std::size_t>(lane)]->ring(); }

  // --- These call the function of the same name on every lane.
  void halt() noexcept;
  void ring() noexcept;
  /// Returns true when no write of this member is in flight any more.
  bool drain();
  /// Returns false if a lane could not be shut down, because a thread is stuck inside the transport.
  [[nodiscard]] bool shut_down();

  /// Adds the counters of all lanes to `total`.
  void add_to(Statistics& total) const;
  /// Says how messages are stored that other members read in place, and what was measured. Empty if there are
  /// none.
  std::string describe_staging() const;

 private:
  std::vector<std::string> addresses_for(const engine::Membership& membership);
  bool make_rounds();
  void hand_back() noexcept;
  bool drive_shortly(engine::Operation& operation);
  void yield();
  std::chrono::nanoseconds spin() const;
  void wait_a_little(engine::Operation& operation, std::chrono::nanoseconds quiet,
                     std::optional<std::chrono::nanoseconds> left);

  const std::chrono::nanoseconds caller_spin_;
  const Staging staging_;
  CoreSharing sharing_;                   // of the callers' cores
  std::atomic<std::uint32_t> yields_{0};  // those that lent a core
  std::vector<std::unique_ptr<engine::Lane>> lanes_;
};

}  // namespace nzcl::comm

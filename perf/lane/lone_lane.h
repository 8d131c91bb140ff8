// One lane of one rank among many, made without any of the others.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "perf/lane/quiet_device.h"
#include "runtime/lane/lane.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/membership.h"

namespace perf::lane {

/// Rank 0 of `ranks`, of which `per_host` at a time share a host.
inline nzcl::engine::Membership many_ranks(int ranks, int per_host) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back("host" + std::to_string(rank / per_host));
  nzcl::engine::Membership membership;
  membership.members.workers = ranks;
  membership.hosts = membership.networks = membership.process_spaces = nzcl::engine::Groups::by_name(hosts);
  membership.cache_bytes = 2 << 20;
  return membership;
}

/// The lane is connected to addresses of its own, behind which nobody is.
class LoneLane {
 public:
  LoneLane(int ranks, int per_host, const nzcl::verbs::Limits& limits = {})
      : device_(std::make_shared<QuietDevice>(limits)) {
    nzcl::engine::LaneOptions options;
    options.config = nzcl::engine::plan_engine({}, many_ranks(ranks, per_host), limits);
    options.on_failure = [](const nzcl::Failure&) {};
    lane_ = std::make_unique<nzcl::engine::Lane>(options, device_);
    lane_->connect(std::vector<std::string>(static_cast<std::size_t>(ranks), lane_->address_for(1)),
                   std::chrono::steady_clock::now());
  }
  nzcl::engine::Lane& lane() { return *lane_; }
  const QuietDevice& device() const { return *device_; }

 private:
  std::shared_ptr<QuietDevice> device_;
  std::unique_ptr<nzcl::engine::Lane> lane_;
};

}  // namespace perf::lane

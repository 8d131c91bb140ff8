#include "runtime/comm/engine_threads.h"

#include <fmt/format.h>

#include "runtime/base/block_signals.h"
#include "runtime/placement/threads.h"

namespace nzcl::comm {

void EngineThreads::start(LaneSet& lanes, const placement::Placement& placement, bool scans,
                          const std::string& member, std::function<void()> at_end) {
  scan_pool_ = std::make_unique<engine::ScanPool>(
      scans ? static_cast<int>(placement.scan_cpus.size()) : 0, [&placement, member](int i) {
        placement::name_thread(fmt::format("nzcl-scan-{}", i).c_str());
        placement::pin_thread(placement.scan_cpus[static_cast<std::size_t>(i)], member);
      });
  const BlockSignals blocked;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lane_threads_.emplace_back([&lanes, &placement, member, i, at_end](std::stop_token stop) {
      placement::name_thread(fmt::format("nzcl-lane-{}", i).c_str());
      placement::pin_thread(placement.lane_cpus[i], member);
      lanes[i].run(stop);
      if (i == 0) at_end();
    });
  }
}

void EngineThreads::stop(LaneSet& lanes) {
  for (auto& thread : lane_threads_) thread.request_stop();
  lanes.ring();
  lane_threads_.clear();
  scan_pool_.reset();
}

}  // namespace nzcl::comm

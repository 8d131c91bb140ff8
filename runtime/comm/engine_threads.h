// The threads of one member: one for each lane, and the scan threads, which look for non-zero blocks ahead of
// the lanes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/lane_set.h"
#include "runtime/lane/scan_pool.h"
#include "runtime/placement/plan.h"

namespace nzcl::comm {

/// Starts and stops the threads. They are named "nzcl-lane-N" and "nzcl-scan-N", and pinned as the placement
/// says. Not thread-safe.
class EngineThreads {
 public:
  /// `lanes` and `placement` must outlive the threads. `at_end` runs on lane 0's thread after its lane has
  /// been halted or stopped. Without `scans`, as on an aggregator, there are no scan threads. `member` is the
  /// name of the member in messages to the log.
  void start(LaneSet& lanes, const placement::Placement& placement, bool scans, const std::string& member,
             std::function<void()> at_end);
  /// Tells the threads to stop, and waits until they have.
  void stop(LaneSet& lanes);
  bool running() const { return !lane_threads_.empty(); }

  engine::ScanPool& scan_pool() { return *scan_pool_; }

 private:
  std::unique_ptr<engine::ScanPool> scan_pool_;
  std::vector<std::jthread> lane_threads_;
};

}  // namespace nzcl::comm

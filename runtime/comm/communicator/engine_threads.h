// The threads of one member: one for each lane, the scan threads, which look for non-zero blocks ahead of the
// lanes, and one that ends the operations after a failure.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/communicator/lane_set.h"
#include "runtime/lane/scan_pool.h"
#include "runtime/placement/plan.h"

namespace nzcl::comm {

/// Starts and stops the threads. They are named "nzcl-lane-N", "nzcl-scan-N" and "nzcl-end", and those of the
/// first two kinds are pinned as the placement says. Only fail() is thread-safe.
class EngineThreads {
 public:
  /// `lanes` and `placement` must outlive the threads. `at_end` runs once, on a thread of its own, after
  /// fail() or in stop(). Without `scans`, as on an aggregator, there are no scan threads. `member` is the
  /// name of the member in messages. Throws Error{system} if the system has no more threads; those that have
  /// been started must then be stopped.
  void start(LaneSet& lanes, const placement::Placement& placement, bool scans, const std::string& member,
             std::function<void()> at_end);
  /// Says that the communicator has failed. May come before start(). Must be called once at most.
  void fail() noexcept { end_.release(); }
  /// Tells the threads to stop, and waits until they have. Returns false if a lane's thread has not come back
  /// from the transport within `patience`. That thread goes on, and neither this object nor what the thread
  /// uses may be destroyed.
  [[nodiscard]] bool stop(LaneSet& lanes, std::chrono::seconds patience);
  bool running() const { return !lane_threads_.empty(); }

  engine::ScanPool& scan_pool() { return *scan_pool_; }

 private:
  struct LaneThread {
    std::jthread thread;
    std::future<void> ended;
  };
  void start_lane(LaneSet& lanes, const placement::Placement& placement, std::size_t i,
                  const std::string& member);

  std::unique_ptr<engine::ScanPool> scan_pool_;
  std::vector<LaneThread> lane_threads_;
  /// fail() and stop() release it, and the ending thread takes one of them.
  std::counting_semaphore<2> end_{0};
  std::thread ending_;
};

}  // namespace nzcl::comm

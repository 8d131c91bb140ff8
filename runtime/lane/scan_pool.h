// Threads that scan ahead of the lanes.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/operation/operation.h"

namespace nzcl::engine {

/// Scans the slices of operations in order. Each slice is scanned once, by whoever claims it first: a thread
/// of the pool, or the lane that needs the slice now. So a lane waits only for a slice that a pool thread is
/// scanning at that moment.
class ScanPool {
 public:
  /// Every thread calls `start` with its number first, to be named and pinned. With no threads the pool does
  /// nothing, and the lanes scan.
  ScanPool(int threads, const std::function<void(int)>& start);
  ~ScanPool();

  void submit(std::shared_ptr<Operation> operation);

 private:
  void run(std::stop_token stop);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  /// Operations, each with its next slice to scan.
  std::deque<std::pair<std::shared_ptr<Operation>, std::uint64_t>> work_;
  std::vector<std::jthread> threads_;
};

}  // namespace nzcl::engine

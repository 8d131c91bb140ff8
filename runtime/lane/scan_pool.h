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
/// of the pool, or the lane that needs the slice now. So a lane only ever waits for the slice that a pool
/// thread is just scanning.
class ScanPool {
 public:
  /// `start` runs first on every thread, to name and pin it.
  ScanPool(int threads, const std::function<void(int)>& start);
  ~ScanPool();

  void submit(std::shared_ptr<Operation> operation);

 private:
  void run(std::stop_token stop);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::pair<std::shared_ptr<Operation>, std::uint64_t>> work_;  // operation, next slice
  std::vector<std::jthread> threads_;
};

}  // namespace nzcl::engine

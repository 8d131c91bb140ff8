// Threads that scan ahead of the lanes.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/engine/operation.h"

namespace nzcl::engine {

/// Scans operations' slices in order, each slice once, by whoever claims it first: a pool thread, or the lane
/// that needs it now. A lane never waits for the pool unless a pool thread is inside the very slice that it
/// needs.
class ScanPool {
 public:
  /// `start` runs first on every thread (its name and its place).
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

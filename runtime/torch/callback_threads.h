// Threads that complete futures whose callbacks may wait for each other.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace nzcl_torch {

/// Runs jobs in the order in which they come, and none waits for the end of another: while one runs, another
/// thread takes the next. So a future's callback may wait for the future of a later collective, as PyTorch's
/// own PowerSGD hook does. There are as many threads as jobs that have not ended; one without a job stays for
/// the next. Thread-safe.
class CallbackThreads : public std::enable_shared_from_this<CallbackThreads> {
 public:
  void run(std::function<void()> job);
  /// Returns when all jobs have ended. Jobs that come later run as well. Called by a job, it does not wait
  /// for that one.
  void wait_until_idle();

 private:
  void serve();

  std::mutex mutex_;  // of all below
  std::condition_variable job_came_, job_ended_;
  std::deque<std::function<void()>> jobs_;
  std::size_t threads_ = 0, waiting_ = 0;  // threads, and those of them that have no job
};

}  // namespace nzcl_torch

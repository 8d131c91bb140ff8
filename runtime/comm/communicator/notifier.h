// Calls what callers want to be called when their operations have completed.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/operation/completion_bell.h"
#include "runtime/operation/operation.h"

namespace nzcl::comm {

/// Runs the callbacks of one communicator, one after the other, on a thread of its own ("nzcl-notify"), so
/// that they may take their time, and wait or start operations, without holding up a lane. The thread is
/// started with the first callback. Thread-safe.
class Notifier {
 public:
  ~Notifier() { stop(); }

  /// The bell for the operations of this communicator.
  engine::CompletionBell& bell() { return bell_; }
  /// Calls `call` once, when the operation has finished. If it has already, that is at once.
  void add(std::shared_ptr<engine::Operation> operation, std::function<void()> call);
  /// Makes the calls that are left, and ends the thread. Precondition: every operation has finished, and this
  /// is not the notifier's own thread.
  void stop();
  bool is_own_thread() const;

 private:
  struct Entry {
    std::shared_ptr<engine::Operation> operation;
    std::function<void()> call;
  };
  void run();
  /// Moves the entries whose operations have finished out of the list.
  std::vector<Entry> take_finished();

  engine::CompletionBell bell_;
  mutable std::mutex mutex_;  // of all below
  std::vector<Entry> entries_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nzcl::comm

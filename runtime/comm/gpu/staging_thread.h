// The thread that takes operations on GPUs from step to step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/comm/gpu/staged_operation.h"

namespace nzcl::comm {

/// Owned by a communicator. Makes its staged operations, and watches them until they are over. Thread-safe.
class StagingThread {
 public:
  struct Parent {
    /// Fails the communicator. Its operations fail some time later.
    std::function<void(const Failure&)> fail;
    /// Called when an operation is over.
    std::function<void()> ring;
  };
  StagingThread(Registrations& registrations, Parent parent)
      : registrations_(registrations), parent_(std::move(parent)) {}
  ~StagingThread() { stop(); }

  /// Makes what an operation of this layout needs. Starts the thread at the first call. Throws Error{system}.
  std::shared_ptr<StagedOperation> make(const std::shared_ptr<gpu::Gpu>& gpu, const GpuTensors& tensors,
                                        const engine::SliceLayout& layout);
  /// Takes an operation that has begun to its end.
  void watch(std::shared_ptr<StagedOperation> staged, std::shared_ptr<engine::Operation> operation);
  /// Returns when no operation is left. Precondition: all have been exchanged, or have failed.
  void wait_for_all();
  /// Ends the thread. Precondition: no operation is left.
  void stop();

 private:
  struct Entry {
    std::shared_ptr<StagedOperation> staged;
    std::shared_ptr<engine::Operation> operation;
    std::chrono::steady_clock::time_point begun;
    bool told = false;                             // the communicator was failed for this one
    std::optional<Failure> broken = std::nullopt;  // why its result cannot be placed
  };
  enum class Step { waits, moved, over };

  std::shared_ptr<StagingSlots> slots_of(const std::shared_ptr<gpu::Gpu>& gpu);
  void run();
  Step step(Entry& entry);
  void look_for_trouble(Entry& entry) const;
  void end(const Entry& entry) const;

  Registrations& registrations_;
  const Parent parent_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<std::shared_ptr<StagingSlots>> slots_;  // one for each GPU
  std::vector<Entry> new_entries_;
  std::size_t in_flight_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nzcl::comm

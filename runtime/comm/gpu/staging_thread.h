// The thread that takes operations on GPUs from step to step.
#pragma once

#include <atomic>
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
#include "runtime/comm/gpu/staged_compressed.h"
#include "runtime/comm/gpu/staged_operation.h"
#include "runtime/comm/gpu/staged_stream.h"

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

  /// The ranks' GPUs may sum together from now on. Called before any operation begins.
  void read_peers(std::shared_ptr<PeerBoard> board);
  /// How many operations GPUs have summed.
  std::uint64_t summed_by_gpus() const { return summed_by_gpus_.load(std::memory_order_relaxed); }

  /// Statistics::gpu_direct_bytes.
  std::uint64_t far_bytes() const { return far_bytes_.load(std::memory_order_relaxed); }

  /// Make what an operation of this layout needs. They start the thread at the first call, and throw
  /// Error{system}.
  std::shared_ptr<StagedOperation> make(const std::shared_ptr<gpu::Gpu>& gpu, const GpuTensors& tensors,
                                        const engine::SliceLayout& layout, StagedWork::Exchanged exchanged);
  std::shared_ptr<StagedStream> make(const std::shared_ptr<gpu::Gpu>& gpu, const GpuStream& memory,
                                     const engine::SliceLayout& layout, StagedWork::Exchanged exchanged);
  std::shared_ptr<StagedCompressed> make(std::shared_ptr<GpuStep> step, std::byte* output, gpu::Stream stream,
                                         bool in_tiles, const engine::SliceLayout& layout,
                                         StagedWork::Exchanged exchanged);
  /// A stream for callers who have none of their own, made by the first call. Throws Error{system}.
  gpu::Stream callers_stream(const std::shared_ptr<gpu::Gpu>& gpu);
  /// What begins the operations that exchange a tensor in place of its own. It is called once: when the whole
  /// input is there, or with the reason why it is not waited for any more. What lies in its place must not be
  /// summed then, because other ranks may not have learned that reason yet.
  using Begin = std::function<void(const std::optional<Failure>& no_input)>;
  /// Takes an operation that has begun to its end. `begin` is empty if it exchanges its tensor itself.
  void watch(std::shared_ptr<StagedWork> staged, std::shared_ptr<engine::Operation> operation,
             Begin begin = nullptr);
  /// Waits for no input any more, because the communicator has failed, and for no other rank's GPU.
  void begin_all(const Failure& why);
  /// Returns when no operation is left. Precondition: all have been exchanged, or have failed.
  void wait_for_all();
  /// Ends the thread. Precondition: no operation is left.
  void stop();

 private:
  struct Entry {
    std::shared_ptr<StagedWork> staged;
    std::shared_ptr<engine::Operation> operation;
    Begin begin;  // empty when it has been called
    std::chrono::steady_clock::time_point begun;
    bool settled = false;                           // all of its groups have been told what becomes of them
    bool told = false;                              // the communicator was failed for this one
    std::optional<Failure> broken = std::nullopt;   // why its GPU places nothing any more
    std::optional<Failure> failure = std::nullopt;  // why its result is not placed
  };
  enum class Step { waits, moved, over };

  std::shared_ptr<StagingSlots> start(const std::shared_ptr<gpu::Gpu>& gpu);
  void run();
  Step step(Entry& entry);
  std::optional<Failure> why_no_input(const Entry& entry) const;
  void look_for_trouble(Entry& entry) const;
  void end(const Entry& entry);

  Registrations& registrations_;
  const Parent parent_;
  std::shared_ptr<PeerMemory> peers_;  // nullptr: GPUs do not sum
  std::atomic<std::uint64_t> summed_by_gpus_{0}, far_bytes_{0};
  Failure why_failed_;  // once failed_ is set
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<std::shared_ptr<StagingSlots>> slots_;  // one for each GPU
  std::vector<Entry> new_entries_;
  std::size_t in_flight_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nzcl::comm

// One call of a process group under way: one or several operations of nzcl, and what is done with their
// results.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/torch/buffers.h"
#include "runtime/torch/callback_threads.h"

namespace nzcl_torch {

/// Completes, and its future with it, when all operations that were added have completed, seal() has said
/// that there will be no more, and at_end() has put their results where the caller wants them. If one fails,
/// the work fails with the first error, but not before all of them are over, since until then nzcl uses their
/// memory. When a work is over, its results are in memory, whatever streams have to do: results on a GPU are
/// there for all streams. A sparse result has memory of its own, which is marked as used by the streams that
/// were current when the work was made.
///
/// Threads: whoever starts the call adds and seals, one thread at a time. Any thread may wait.
class GroupWork final : public c10d::Work {
 public:
  /// `outputs` are the tensors that the future returns: a list of them, or, as with Gloo's groups, a list of
  /// lists if there are several. Callbacks of the future run on `threads`. `over` is
  /// called when the work is over, before them.
  GroupWork(int rank, c10d::OpType type, std::vector<std::vector<at::Tensor>> outputs,
            std::shared_ptr<CallbackThreads> threads, std::function<void()> over);

  const std::vector<std::vector<at::Tensor>>& outputs() const { return outputs_; }

  // ---- For whoever starts the call; until seal().

  /// Runs after success of all operations.
  void at_end(std::function<void()> then) { finish_.push_back(std::move(then)); }
  /// Runs when all that at_end() was given has run; what came last runs first.
  void at_last(std::function<void()> then) { finish_last_.push_back(std::move(then)); }
  /// Returns the tensor, which stays, and stays registered, until the work is over.
  at::Tensor use(const at::Tensor& tensor, Buffers& buffers);
  /// Adds an operation that has been started.
  void add(nzcl::Work work);
  /// Runs `add_operations`. What libtorch does there on GPUs is done on these streams. If it throws, the work
  /// fails.
  void add_or_fail(const std::vector<c10::Stream>& streams, const std::function<void()>& add_operations);
  /// The work is not over as long as what this returns lives.
  std::shared_ptr<void> wait_also();
  /// The work fails with this text, unless it has failed already.
  void fail(const std::string& text);
  /// No operation will be added any more.
  void seal();

  // ---- For the caller of the collective.

  /// Takes part in the operations while it waits. `timeout` is for the whole call.
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::vector<at::Tensor> result() override;
  /// Of all operations together; the algorithm is that of the last one. May be called after completion.
  nzcl::OperationStatistics statistics() const;

 private:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  c10::intrusive_ptr<GroupWork> self();
  /// The operation with this number, once there is one; none if there never will be, or not in time.
  std::optional<nzcl::Work> operation(std::size_t number, const Deadline& deadline);
  void drop();
  void complete();
  void run_finish();
  void complete_future();

  const std::vector<std::vector<at::Tensor>> outputs_;
  const std::vector<c10::Stream> callers_streams_;  // of the GPUs that have outputs
  const std::shared_ptr<CallbackThreads> threads_;
  std::function<void()> over_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<std::function<void()>> finish_, finish_last_;
  std::vector<at::Tensor> kept_tensors_;
  std::vector<nzcl::RegisteredBuffer> kept_buffers_;

  mutable std::mutex lock_;  // of all below
  std::condition_variable added_;
  std::vector<nzcl::Work> operations_;
  std::size_t left_ = 1;  // what wait_also() has returned and still lives, and 1 until seal()
  bool sealed_ = false;
  std::string error_;

  std::mutex future_lock_;     // nobody is given the future while it is completed on this thread
  bool future_given_ = false;  // it may have callbacks
};

}  // namespace nzcl_torch

// One call of a process group under way: one or several operations of nzcl, and what is done with their
// results.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nzcl/communicator.h"

namespace nzcl_torch {

/// Completes, and its future with it, when all operations have completed and `finish` has put their results
/// where the caller wants them. Both happen on the thread that completes the last operation; see
/// nzcl::Work::on_complete().
class GroupWork final : public c10d::Work {
 public:
  /// `outputs` are the tensors that the future returns.
  GroupWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  /// Runs after success of all operations.
  void at_end(std::function<void()> then) { finish_.push_back(std::move(then)); }
  /// Keeps a tensor alive until the end.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  /// Adds an operation. All are added, and at_end() is called, before start().
  void add(nzcl::Work work) { works_.push_back(std::move(work)); }

  static c10::intrusive_ptr<c10d::Work> start(const c10::intrusive_ptr<GroupWork>& self) {
    self->left_ = self->works_.size();
    if (self->works_.empty()) self->complete();
    // The object is complete, and maybe gone, in the last one, so the list is not read behind that.
    const auto works = self->works_;
    for (nzcl::Work work : works) {
      work.on_complete([self](const nzcl::Error* error) {
        if (error != nullptr) self->fail(error->what());
        if (self->left_.fetch_sub(1) == 1) self->complete();
      });
    }
    return self;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    // The thread that waits takes part in the work. Errors come by the callback.
    for (nzcl::Work& work : works_) {
      try {
        if (timeout == kNoTimeout) {
          work.wait();
        } else if (!work.wait(timeout)) {
          break;
        }
      } catch (const nzcl::Error&) {
      }
    }
    return Work::wait(timeout);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  /// Of all operations together; the algorithm is that of the last one. May be called after completion.
  nzcl::OperationStatistics statistics() const {
    nzcl::OperationStatistics sum;
    for (const nzcl::Work& work : works_) {
      const nzcl::OperationStatistics one = work.statistics();
      sum.blocks += one.blocks;
      sum.input_blocks += one.input_blocks;
      sum.union_blocks += one.union_blocks;
      sum.bytes_sent += one.bytes_sent;
      sum.bytes_received += one.bytes_received;
      sum.algorithm = one.algorithm;
    }
    return sum;
  }

 private:
  void fail(const std::string& text) {
    const std::scoped_lock lock(error_mutex_);
    if (error_.empty()) error_ = text;
  }
  void complete() {
    try {
      if (error_.empty()) {
        const at::NoGradGuard no_grad;
        for (const auto& then : finish_) then();
      }
    } catch (const std::exception& e) {
      fail(e.what());
    }
    finish_.clear();
    kept_.clear();
    if (error_.empty()) {
      finish();
      future_->markCompleted(c10::IValue(outputs_));
    } else {
      const auto error = std::make_exception_ptr(std::runtime_error(error_));
      finish(error);
      future_->setError(error);
    }
  }

  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<nzcl::Work> works_;
  std::vector<std::function<void()>> finish_;
  std::vector<at::Tensor> kept_;
  std::atomic<std::size_t> left_{0};
  std::mutex error_mutex_;
  std::string error_;
};

}  // namespace nzcl_torch

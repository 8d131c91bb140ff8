// Several calls of a process group, of which the caller wants to know when all are over.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <vector>

namespace nzcl_torch {

/// Is over when all works between startCoalescing() and endCoalescing() are. Fails with the error of the
/// first one that failed, in the order of the calls. Thread-safe, as its parts are.
class CoalescedWork final : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  CoalescedWork(int rank, std::vector<WorkPtr> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  /// `timeout` is for all of them together.
  bool wait(std::chrono::milliseconds timeout) override;
  /// Its value is the list of the parts' futures. Messages, which are Gloo's, have no futures.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<WorkPtr> parts_;
};

}  // namespace nzcl_torch

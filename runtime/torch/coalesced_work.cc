#include "runtime/torch/coalesced_work.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace nzcl_torch {

CoalescedWork::CoalescedWork(int rank, std::vector<WorkPtr> parts) : Work(rank), parts_(std::move(parts)) {}

bool CoalescedWork::isCompleted() {
  return std::ranges::all_of(parts_, [](const WorkPtr& part) { return part->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::ranges::all_of(parts_, [](const WorkPtr& part) { return part->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const WorkPtr& part : parts_)
    if (const auto error = part->exception()) return error;
  return nullptr;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const WorkPtr& part : parts_) {
    const auto some = part->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  using std::chrono::steady_clock;
  const auto deadline = steady_clock::now() + timeout;
  std::exception_ptr first;
  for (const WorkPtr& part : parts_) {
    auto left = kNoTimeout;
    if (timeout != kNoTimeout)  // 0 would be without an end
      left = std::max(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now()),
                      std::chrono::milliseconds(1));
    try {
      part->wait(left);
    } catch (const std::exception&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(c10::AnyType::get()));
  for (const WorkPtr& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures);
}

}  // namespace nzcl_torch

#include "runtime/torch/group_work.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/torch/device.h"
#include "runtime/torch/error_text.h"

namespace nzcl_torch {

using std::chrono::steady_clock;

namespace {

c10::TypePtr type_of_value(std::size_t lists) {
  const auto list = c10::ListType::create(c10::TensorType::get());
  return lists > 1 ? c10::ListType::create(list) : list;
}

}  // namespace

GroupWork::GroupWork(int rank, c10d::OpType type, std::vector<std::vector<at::Tensor>> outputs,
                     std::shared_ptr<CallbackThreads> threads, std::function<void()> over)
    : Work(rank, type),
      outputs_(std::move(outputs)),
      callers_streams_(current_streams(gpus_of(outputs_))),
      threads_(std::move(threads)),
      over_(std::move(over)),
      future_(c10::make_intrusive<c10::ivalue::Future>(type_of_value(outputs_.size()), gpus_of(outputs_))) {}

std::vector<at::Tensor> GroupWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& list : outputs_) all.insert(all.end(), list.begin(), list.end());
  return all;
}

c10::intrusive_ptr<GroupWork> GroupWork::self() { return c10::intrusive_ptr<GroupWork>::reclaim_copy(this); }

at::Tensor GroupWork::use(const at::Tensor& tensor, Buffers& buffers) {
  kept_tensors_.push_back(tensor);
  kept_buffers_.push_back(buffers.cover(tensor));
  return tensor;
}

void GroupWork::add_or_fail(const std::vector<c10::Stream>& streams,
                            const std::function<void()>& add_operations) {
  try {
    const at::NoGradGuard no_grad;
    const CurrentStreams current(streams);
    add_operations();
  } catch (const std::exception& e) {
    fail(text_of(e));
  }
}

void GroupWork::add(nzcl::Work work) {
  {
    const std::scoped_lock lock(lock_);
    operations_.push_back(work);
  }
  added_.notify_all();
  try {
    work.on_complete([self = self(), over = wait_also()](const nzcl::Error* error) {
      if (error != nullptr) self->fail(error->what());
    });
  } catch (const std::exception& e) {  // there can be no thread for that; the operation goes on nevertheless
    fail(text_of(e));
    try {
      work.wait();
    } catch (const nzcl::Error&) {
    }
  }
}

std::shared_ptr<void> GroupWork::wait_also() {
  {
    const std::scoped_lock lock(lock_);
    ++left_;
  }
  return {this, [self = self()](void*) { self->drop(); }};
}

void GroupWork::fail(const std::string& text) {
  const std::scoped_lock lock(lock_);
  if (error_.empty()) error_ = text;
}

void GroupWork::seal() {
  {
    const std::scoped_lock lock(lock_);
    sealed_ = true;
  }
  added_.notify_all();
  drop();
}

void GroupWork::drop() {
  {
    const std::scoped_lock lock(lock_);
    if (--left_ > 0) return;
  }
  complete();
}

void GroupWork::complete() {
  const auto failed = [this] {
    const std::scoped_lock lock(lock_);
    return !error_.empty();
  };
  try {
    if (!failed()) run_finish();
  } catch (const std::exception& e) {
    fail(text_of(e));
  }
  finish_.clear();
  finish_last_.clear();
  kept_buffers_.clear();
  kept_tensors_.clear();
  finish(failed() ? std::make_exception_ptr(std::runtime_error(error_)) : nullptr);
  std::exchange(over_, nullptr)();

  {
    const std::scoped_lock lock(future_lock_);
    if (!future_given_) return complete_future();
  }
  threads_->run([self = self()] { self->complete_future(); });
}

void GroupWork::run_finish() {
  if (finish_.empty() && finish_last_.empty()) return;
  const at::NoGradGuard no_grad;
  const auto streams = other_streams(gpus_of(outputs_));
  const CurrentStreams current(streams);
  for (const auto& then : finish_) then();
  std::for_each(finish_last_.rbegin(), finish_last_.rend(), [](const auto& then) { then(); });
  for (const auto& list : outputs_)
    for (const at::Tensor& t : list)
      if (t.layout() != at::kStrided) used_by(t, callers_streams_);
  for (const c10::Stream& stream : streams) stream.synchronize();
}

void GroupWork::complete_future() {
  if (const auto error = exception()) return future_->setError(error);
  c10::IValue value = outputs_.size() > 1 ? c10::IValue(outputs_) : c10::IValue(result());
  future_->markCompleted(std::move(value), memory_of(result()));
}

std::optional<nzcl::Work> GroupWork::operation(std::size_t number, const Deadline& deadline) {
  std::unique_lock lock(lock_);
  const auto known = [&] { return sealed_ || number < operations_.size(); };
  if (!deadline)
    added_.wait(lock, known);
  else if (!added_.wait_until(lock, *deadline, known))
    return std::nullopt;
  if (number == operations_.size()) return std::nullopt;
  return operations_[number];
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  Deadline deadline;
  if (timeout != kNoTimeout) deadline = steady_clock::now() + timeout;
  for (std::size_t i = 0; auto known = operation(i, deadline); ++i) {
    try {
      if (!deadline)
        known->wait();
      else if (!known->wait(*deadline - steady_clock::now()))
        break;
    } catch (const nzcl::Error&) {  // comes by on_complete(), too
    }
  }
  if (!deadline) return Work::wait(kNoTimeout);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - steady_clock::now());
  return Work::wait(std::max(left, std::chrono::milliseconds(1)));  // 0 would be without an end
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  const std::scoped_lock lock(future_lock_);
  future_given_ = true;
  return future_;
}

nzcl::OperationStatistics GroupWork::statistics() const {
  const std::scoped_lock lock(lock_);
  nzcl::OperationStatistics sum;
  for (const nzcl::Work& work : operations_) {
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

}  // namespace nzcl_torch

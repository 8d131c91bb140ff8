#include "runtime/torch/group_core.h"

#include <utility>

#include "runtime/torch/coalesced_work.h"
#include "runtime/torch/error_text.h"

namespace nzcl_torch {

GroupCore::GroupCore(nzcl::Communicator communicator, const c10::intrusive_ptr<c10d::Store>& store,
                     std::chrono::milliseconds timeout, AroundClose around_close)
    : GlooCalls(communicator.rank(), communicator.size()), around_close_(std::move(around_close)) {
  const int rank = communicator.rank(), size = communicator.size();
  communicator_.emplace(std::move(communicator));
  const nzcl::Options& options = communicator_->options();
  const std::chrono::duration<double> for_meeting(options.bootstrap_timeout_s);
  buffers_.emplace(*communicator_);
  streams_.emplace(*communicator_);
  make_fallback(store, {.rank = rank,
                        .size = size,
                        .timeout = timeout,
                        .meeting_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(for_meeting),
                        .interface = options.interface});
}

void GroupCore::close() {
  const auto close = [this] {
    try {
      communicator_->close();
    } catch (const nzcl::Error& error) {
      TORCH_WARN("nzcl, rank ", getRank(), ": ", error.what());
    }
    // The other ranks have closed too, or they will not come any more.
    const std::chrono::duration<double> limit(communicator_->options().close_timeout_s);
    fallback().close(failure() ? std::chrono::milliseconds(0)
                               : std::chrono::duration_cast<std::chrono::milliseconds>(limit));
    callbacks_->wait_until_idle();
  };
  around_close_ ? around_close_(close) : close();
}

void GroupCore::let_go() {
  buffers_.reset();
  communicator_.reset();
}

void GroupCore::abort(const std::string& reason) {
  communicator_->abort(reason);
  fallback().abort();
}

void GroupCore::set_timeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "nzcl's timeout must be longer than 0 ms, and not ", timeout.count());
  timeout_ = timeout;
  fallback().set_timeout(timeout);
}

void GroupCore::startCoalescing() {
  TORCH_CHECK(!coalesced_, "nzcl's startCoalescing() was called twice without endCoalescing()");
  coalesced_.emplace();
}

WorkPtr GroupCore::endCoalescing() {
  TORCH_CHECK(coalesced_, "nzcl's endCoalescing() was called without startCoalescing()");
  auto parts = std::move(*coalesced_);
  coalesced_.reset();
  return c10::make_intrusive<CoalescedWork>(getRank(), std::move(parts));
}

WorkPtr GroupCore::failed(const std::string& reason) {
  refuse(reason);
  const auto work = make_work(c10d::OpType::ALLREDUCE, Tensors{});
  work->fail(reason);
  work->seal();
  return work;
}

void GroupCore::check(const std::function<void()>& checks) {
  try {
    checks();
  } catch (const std::exception& e) {
    refuse(text_of(e));
    throw;
  }
}

void GroupCore::refuse(const std::string& reason) {
  order_.run([=, this] {
    try {
      communicator_->refuse(reason);
    } catch (const nzcl::Error&) {  // the communicator has failed, which the others know
    }
  });
}

std::optional<std::string> GroupCore::failure() const {
  const auto error = communicator_->async_error();
  return error ? std::optional<std::string>(error->what()) : std::nullopt;
}

GroupWorkPtr GroupCore::make_work(c10d::OpType type, const std::vector<Tensors>& outputs,
                                  std::uint64_t number) {
  const auto work = c10::make_intrusive<GroupWork>(getRank(), type, outputs, callbacks_,
                                                   [this, number] { outstanding_.end(number); });
  noted(work);
  return work;
}

WorkPtr GroupCore::noted(const WorkPtr& work) {
  if (coalesced_) coalesced_->push_back(work);
  return work;
}

WorkPtr GroupCore::start(const GroupWorkPtr& work, const std::function<void()>& add_operations) {
  std::vector<c10::Stream> streams;
  try {
    streams = streams_->behind_current(work->outputs());
  } catch (const std::exception& e) {
    refuse(text_of(e));
    give_up(*work, e);
    return work;
  }
  order_.run([=] {
    work->add_or_fail(streams, add_operations);
    work->seal();
  });
  return work;
}

void GroupCore::give_up(GroupWork& work, const std::exception& error) {
  work.fail(text_of(error));
  work.seal();
}

at::Tensor GroupCore::in_one_piece(GroupWork& work, const at::Tensor& t, bool written) {
  const at::Tensor data = t.contiguous();
  if (written && !data.is_same(t)) work.at_end([t, data]() mutable { t.copy_(data); });
  return used(work, data);
}

}  // namespace nzcl_torch

// What all calls of nzcl's process group have in common: the communicator, the order of calls, and how a call
// becomes a work.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/torch/buffers.h"
#include "runtime/torch/call_order.h"
#include "runtime/torch/callback_threads.h"
#include "runtime/torch/device.h"
#include "runtime/torch/gloo_calls.h"
#include "runtime/torch/group_work.h"

namespace nzcl_torch {

/// Called with what closes a group, which it has to call; see make_process_group().
using AroundClose = std::function<void(const std::function<void()>& close)>;

/// A process group without collectives. What calls them makes a work, and has its operations started in the
/// order of the calls.
class GroupCore : public GlooCalls {
 public:
  void close();
  void abort(const std::string& reason);
  /// See shrink() of process_group.h.
  nzcl::Communicator shrink() { return communicator_->shrink(); }
  void set_timeout(std::chrono::milliseconds timeout);
  /// Takes a call's place in the order. The work has failed with this reason.
  WorkPtr failed(const std::string& reason);
  nzcl::Statistics statistics() const { return communicator_->statistics(); }
  std::size_t registered_storages() const { return buffers_->size(); }

  const std::string getBackendName() const override { return "nzcl"; }
  /// The number counts the collectives that this rank has started, so that people can see which rank is
  /// behind. All ranks begin with 0, and need not agree on a number.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return outstanding_.begun(); }
  /// libtorch after 2.6 has a call for that, which this overrides.
  void setTimeout(std::chrono::milliseconds timeout) { set_timeout(timeout); }
  /// What is called until endCoalescing() starts as always. One thread makes the calls of both and between.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  bool supportsCoalescing() const { return true; }  // libtorch after 2.6 asks

 protected:
  GroupCore(nzcl::Communicator communicator, const c10::intrusive_ptr<c10d::Store>& store,
            std::chrono::milliseconds timeout, AroundClose around_close);
  /// Frees the communicator, and what is registered with it. Precondition: closed.
  void let_go();
  bool has_let_go() const { return !communicator_; }

  nzcl::Communicator& communicator() { return *communicator_; }
  CallOrder& order() { return order_; }
  Buffers& buffers() { return *buffers_; }
  Outstanding& outstanding() { return outstanding_; }
  /// Of operations that are given none; 0: the communicator's.
  std::chrono::nanoseconds default_timeout() const { return timeout_; }
  std::chrono::nanoseconds timeout_of(const auto& options) const {
    return options.timeout == c10d::kUnsetTimeout ? default_timeout()
                                                  : std::chrono::nanoseconds(options.timeout);
  }

  /// Runs `checks`. If they throw, the call takes its place in the order all the same.
  void check(const std::function<void()>& checks);
  void refuse(const std::string& reason);

  GroupWorkPtr make_work(c10d::OpType type, const std::vector<Tensors>& outputs) override {
    return make_work(type, outputs, outstanding_.begin());
  }
  GroupWorkPtr make_work(c10d::OpType type, const Tensors& outputs) {
    return make_work(type, std::vector<Tensors>{outputs});
  }
  GroupWorkPtr make_work(c10d::OpType type, const std::vector<Tensors>& outputs, std::uint64_t number);
  WorkPtr noted(const WorkPtr& work) override;

  /// Has the call's operations started in the order of the calls.
  WorkPtr start(const GroupWorkPtr& work, const std::function<void()>& add_operations);
  /// For a work that nobody gets, but that barriers count.
  static void give_up(GroupWork& work, const std::exception& error);

  /// Returns the tensor, or a copy whose elements follow each other. What is written to a copy is copied
  /// back.
  at::Tensor in_one_piece(GroupWork& work, const at::Tensor& t, bool written);
  /// Registers the tensor, and keeps it until the work is over.
  at::Tensor used(GroupWork& work, const at::Tensor& t) { return work.use(t, *buffers_); }

 private:
  std::optional<std::string> failure() const override;

  const AroundClose around_close_;
  std::atomic<std::chrono::nanoseconds> timeout_{};
  std::optional<std::vector<WorkPtr>> coalesced_;  // since startCoalescing()
  const std::shared_ptr<CallbackThreads> callbacks_ = std::make_shared<CallbackThreads>();
  Outstanding outstanding_;
  CallOrder order_;
  std::optional<nzcl::Communicator> communicator_;  // its callbacks use all above
  std::optional<Buffers> buffers_;
  std::optional<GroupStreams> streams_;
};

}  // namespace nzcl_torch

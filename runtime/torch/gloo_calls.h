// The calls of a process group that Gloo does.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/torch/fallback.h"
#include "runtime/torch/group_adapter.h"
#include "runtime/torch/group_work.h"

namespace nzcl_torch {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GroupWorkPtr = c10::intrusive_ptr<GroupWork>;
using Tensors = std::vector<at::Tensor>;

/// What nzcl's process group does not do itself: messages between two ranks, all-to-all, gather and scatter.
/// With NZCL_TORCH_FALLBACK=0 the base class refuses these calls by name.
///
/// Works of collectives are nzcl's, which are over when Gloo's are: so a barrier waits for them, and
/// callbacks of their futures may wait for other collectives. Works of messages are Gloo's own.
class GlooCalls : public GroupAdapter {
 public:
  using GroupAdapter::GroupAdapter;

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 protected:
  using Gloo = c10d::ProcessGroupGloo;

  /// Is told of every call's work, and returns it.
  virtual WorkPtr noted(const WorkPtr& work) = 0;
  virtual GroupWorkPtr make_work(c10d::OpType type, const std::vector<Tensors>& outputs) = 0;
  /// Why nzcl's communicator has failed: it often knows more than that Gloo's connection has closed.
  virtual std::optional<std::string> failure() const = 0;
  /// Must be called by the constructor.
  void make_fallback(const c10::intrusive_ptr<c10d::Store>& store, const Fallback::Settings& settings) {
    fallback_.emplace(store, settings);
  }
  Fallback& fallback() { return *fallback_; }

  /// Has Gloo do a part of the work, which is not over before. `call` is its name for the user.
  void add(const GroupWorkPtr& work, const char* call, const std::function<WorkPtr(Gloo&)>& start);
  /// Has Gloo do the rest of the work, which is over with that. If Gloo refuses, the error is thrown.
  WorkPtr start_gloo(const GroupWorkPtr& work, const char* call, const std::function<WorkPtr(Gloo&)>& start);
  /// Has Gloo do all of a call. `start` is given the memory that Gloo writes in place of the outputs.
  WorkPtr do_all(c10d::OpType type, const std::vector<Tensors>& outputs, const char* call,
                 const std::function<WorkPtr(Gloo&, std::vector<Tensors>& written)>& start);

 private:
  std::optional<Fallback> fallback_;
};

}  // namespace nzcl_torch

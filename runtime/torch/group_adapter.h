// Makes the process groups of libtorch 1.13 and those of 2.x look alike to nzcl's.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "runtime/torch/process_group.h"

namespace nzcl_torch {

#if TORCH_VERSION_MAJOR >= 2
/// c10d::Backend has every call that nzcl implements.
using GroupAdapter = GroupBase;
#else
/// 1.13's c10d::ProcessGroup, with the calls that came with c10d::Backend. In 1.13 only C++ can make them.
class GroupAdapter : public GroupBase {
 public:
  using GroupBase::GroupBase;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual WorkPtr allreduce_sparse(std::vector<at::Tensor>& tensors,
                                   const c10d::AllreduceOptions& options) = 0;
  virtual WorkPtr allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::AllgatherOptions& options) = 0;
  virtual WorkPtr reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::ReduceScatterOptions& options) = 0;
  using GroupBase::endCoalescing;
  virtual WorkPtr endCoalescing() = 0;
};
#endif

}  // namespace nzcl_torch

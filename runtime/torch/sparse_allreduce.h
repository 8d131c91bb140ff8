// The steps of an allreduce of sparse tensors.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/torch/buffers.h"
#include "runtime/torch/call_order.h"
#include "runtime/torch/group_work.h"
#include "runtime/torch/sparse.h"

namespace nzcl_torch {

/// Sums the sparse tensors of one group, which takes two operations of nzcl. In the first one the ranks tell
/// each other how many entries they have, and of which dimensions. So a tensor without entries fits any
/// others, the result has the room that it needs, and the way that suits the density is taken. The second one
/// sums the entries. Calls that are made in between are held back until it has been started, so the memory of
/// the first operation is used by one call at a time.
///
/// Threads: those of calls, which the group's CallOrder lets in one after the other, and the communicator's.
class SparseAllreduce {
 public:
  /// What it is given belongs to the group, and lives longer than this.
  SparseAllreduce(nzcl::Communicator& communicator, CallOrder& order, Buffers& buffers);
  SparseAllreduce(const SparseAllreduce&) = delete;
  SparseAllreduce& operator=(const SparseAllreduce&) = delete;

  /// Starts the first operation, and has the second one started when that has ended. `tensor`, in COO form,
  /// gets the result, without equal indices. Precondition: it is the turn of the work's call, and the group's
  /// streams are current. Throws nzcl::Error if the first operation cannot be started; what fails later is
  /// the work's error.
  void add_to(const c10::intrusive_ptr<GroupWork>& work, const at::Tensor& tensor, nzcl::ReduceOp op,
              std::chrono::nanoseconds timeout);

 private:
  using GroupWorkPtr = c10::intrusive_ptr<GroupWork>;
  /// One call. `input` has what `tensor` had.
  struct Call {
    GroupWorkPtr work;
    at::Tensor tensor, input;
    nzcl::ReduceOp op;
    std::chrono::nanoseconds timeout;
  };
  nzcl::Work gather_headers(const Call& call);
  void add_sum(const Call& call);

  nzcl::Communicator& communicator_;
  CallOrder& order_;
  Buffers& buffers_;
  std::vector<SparseHeader> headers_;  // this rank's, and behind it those of all ranks
  nzcl::RegisteredBuffer registered_headers_;
};

}  // namespace nzcl_torch

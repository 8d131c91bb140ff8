#include "runtime/torch/process_group.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/torch/arguments.h"
#include "runtime/torch/conversion.h"
#include "runtime/torch/error_text.h"
#include "runtime/torch/fallback_wanted.h"
#include "runtime/torch/group_core.h"
#include "runtime/torch/meeting.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/sparse_allreduce.h"
#include "runtime/torch/types.h"

namespace nzcl_torch {
namespace {

using c10d::OpType;

nzcl::Options options_for(std::chrono::milliseconds timeout) {
  nzcl::Options options;
  options.sum_order = nzcl::SumOrder::any;  // PyTorch promises no order of sums
  const double seconds = std::chrono::duration<double>(timeout).count();
  if (seconds > 0) options.timeout_s = std::min(seconds, 86400.0);
  if (seconds > 0) options.bootstrap_timeout_s = std::clamp(seconds, 1.0, 300.0);
  return nzcl::options_from_environment(options);
}

std::uint64_t count_of(const at::Tensor& t) { return static_cast<std::uint64_t>(t.numel()); }

/// The process group's calls. See process_group.h, and gloo_calls.h for the calls that are Gloo's.
///
/// A call checks its arguments, and then starts its operations in the order of the calls. Arguments that do
/// not fit are refused by the call, which takes its place in the order all the same, so that the other ranks
/// learn of it. What the communicator refuses, and what fails later, is the error of the work.
class NzclGroup final : public GroupCore {
 public:
  NzclGroup(nzcl::Communicator communicator, const c10::intrusive_ptr<c10d::Store>& store,
            std::chrono::milliseconds timeout, AroundClose around_close)
      : GroupCore(std::move(communicator), store, timeout, std::move(around_close)) {
    sparse_.emplace(this->communicator(), order(), buffers());
  }
  ~NzclGroup() override { end(); }
  /// Called in place of the destructor when the last owner lets go of the group, but somebody has a weak
  /// reference.
  void release_resources() override { end(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (tensors.size() > 1 && !fallback().forbidden())
      return do_all(OpType::ALLREDUCE, {tensors}, "all_reduce of several tensors",
                    [&](Gloo& gloo, std::vector<Tensors>& data) { return gloo.allreduce(data[0], options); });
    std::vector<Part> parts;
    check([&] { parts.push_back(part_of(only(tensors, "allreduce"), options.reduceOp, "allreduce")); });
    return reduce_parts(make_work(OpType::ALLREDUCE, tensors), parts, timeout_of(options));
  }

  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return allreduce(tensors, options);  // goes by the tensor's layout
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    std::vector<Part> parts;
    check([&] {
      TORCH_CHECK(!tensors.empty(), "nzcl's allreduce_coalesced requires non-empty tensor list");
      for (const at::Tensor& t : tensors) {
        check_dense(t, "allreduce_coalesced");
        parts.push_back(part_of(t, options.reduceOp, "allreduce_coalesced"));
      }
      separate(parts);
    });
    return reduce_parts(make_work(OpType::ALLREDUCE_COALESCED, tensors), parts, timeout_of(options));
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    if (tensors.size() > 1 && !fallback().forbidden())
      return do_all(OpType::BROADCAST, {tensors}, "broadcast of several tensors",
                    [&](Gloo& gloo, std::vector<Tensors>& data) { return gloo.broadcast(data[0], options); });
    check([&] {
      check_root("broadcast", options.rootRank, getSize(), options.rootTensor, tensors.size());
      check_dense(only(tensors, "broadcast"), "broadcast");
    });
    const auto work = make_work(OpType::BROADCAST, tensors);
    return start(work, [=, this, root = static_cast<int>(options.rootRank), timeout = timeout_of(options)] {
      const at::Tensor data = in_one_piece(*work, tensors.front(), getRank() != root);
      work->add(communicator().broadcast({.data = data.data_ptr(),
                                          .count = data.nbytes(),
                                          .type = kBytes,
                                          .root = root,
                                          .block_elems = kBlockBytes,
                                          .timeout = timeout,
                                          .stream = stream_handle(data)}));
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    std::optional<Part> part;
    check([&] {
      check_root("reduce", options.rootRank, getSize(), options.rootTensor, tensors.size());
      check_dense(only(tensors, "reduce"), "reduce");
      part = part_of(tensors.front(), options.reduceOp, "reduce");
    });
    const auto work = make_work(OpType::REDUCE, tensors);
    const int root = static_cast<int>(options.rootRank);
    if (getRank() == root) bring_back(*work, part->data);
    if (part->how.gloo) {
      return start_gloo(work, "reduce", [&](Gloo& gloo) {
        Tensors data{for_gloo(part->data.tensor)};
        if (getRank() == root && !data[0].is_same(part->data.tensor))
          work->at_end([to = part->data.tensor, from = data[0]]() mutable { to.copy_(from); });
        c10d::ReduceOptions other = options;
        other.reduceOp = *part->how.gloo;
        return gloo.reduce(data, other);
      });
    }
    return start(work, [=, this, part = *part, timeout = timeout_of(options)] {
      const at::Tensor data = in_one_piece(*work, part.data.tensor, getRank() == root);
      work->add(communicator().reduce({.input = data.data_ptr(),
                                       .output = data.data_ptr(),
                                       .count = count_of(data),
                                       .type = type_of(data),
                                       .op = part.how.op,
                                       .root = root,
                                       .block_elems = block_of(data),
                                       .timeout = timeout,
                                       .stream = stream_handle(data)}));
    });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    if (inputs.size() > 1 && !fallback().forbidden())
      return do_all(
          OpType::ALLGATHER, outputs, "all_gather of several tensors",
          [&](Gloo& gloo, std::vector<Tensors>& outs) { return gloo.allgather(outs, inputs, options); });
    check([&] {
      const at::Tensor& input = only(inputs, "allgather");
      check_dense(input, "allgather");
      check_list(outputs, "allgather", "output");
      for (std::size_t r = 0; r < outputs[0].size(); ++r)
        check_like(outputs[0][r], "allgather", "output", r, input, "this rank's input");
    });
    const auto work = make_work(OpType::ALLGATHER, outputs[0]);
    const at::Tensor input = inputs.front();
    return start(work, [=, this, outs = outputs[0], timeout = timeout_of(options)] {
      const at::Tensor all = at::empty({getSize() * input.numel()}, input.options());
      add_allgather(*work, used(*work, all), input, timeout);
      work->at_end([all, outs] { split(all, outs); });
    });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    check([&] { check_allgather(output, input); });
    const auto work = make_work(OpType::_ALLGATHER_BASE, {output});
    return start(work, [=, this, timeout = timeout_of(options)] {
      add_allgather(*work, in_one_piece(*work, output, true), input, timeout);
    });
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    check([&] {
      check_pairs(outputs, inputs, "allgather_into_tensor_coalesced");
      for (std::size_t i = 0; i < inputs.size(); ++i) check_allgather(outputs[i], inputs[i]);
    });
    const auto work = make_work(OpType::_ALLGATHER_BASE, outputs);
    return start(work, [=, this, timeout = timeout_of(options)] {
      for (std::size_t i = 0; i < inputs.size(); ++i)
        add_allgather(*work, in_one_piece(*work, outputs[i], true), inputs[i], timeout);
    });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    std::optional<Reduction> how;
    check([&] {
      const at::Tensor& output = only(outputs, "reduce_scatter");
      check_dense(output, "reduce_scatter");
      how = reduction(output, options.reduceOp);
      check_list(inputs, "reduce_scatter", "input");
      check_like(output, "reduce_scatter", "output of rank", static_cast<std::size_t>(getRank()),
                 inputs[0][static_cast<std::size_t>(getRank())], "the input for it");
      for (std::size_t r = 0; r < inputs[0].size(); ++r) {
        check_dense(inputs[0][r], "reduce_scatter");
        check_type(inputs[0][r], "reduce_scatter", "input", r, output, "the output");
      }
    });
    Tensors flat;
    std::vector<std::uint64_t> counts;
    for (const at::Tensor& t : inputs[0]) {
      flat.push_back(t.reshape({-1}));
      counts.push_back(count_of(t));
    }
    return reduce_scatter_all(make_work(OpType::REDUCE_SCATTER, outputs),
                              {{outputs.front(), at::cat(flat), counts, *how}}, timeout_of(options));
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    std::vector<Scatter> parts;
    check([&] { parts.push_back(scatter_of(output, input, options.reduceOp)); });
    return reduce_scatter_all(make_work(OpType::_REDUCE_SCATTER_BASE, {output}), parts, timeout_of(options));
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    std::vector<Scatter> parts;
    check([&] {
      check_pairs(outputs, inputs, "reduce_scatter_tensor_coalesced");
      for (std::size_t i = 0; i < inputs.size(); ++i)
        parts.push_back(scatter_of(outputs[i], inputs[i], options.reduceOp));
    });
    return reduce_scatter_all(make_work(OpType::_REDUCE_SCATTER_BASE, outputs), parts, timeout_of(options));
  }

  /// It is over when all earlier calls of this rank are.
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const std::uint64_t number = outstanding().begin();
    const auto work = make_work(OpType::BARRIER, {}, number);
    outstanding().when_earlier_end(number, [earlier = work->wait_also()]() mutable { earlier.reset(); });
    return start(work, [=, this, timeout = timeout_of(options)] {
      work->add(communicator().allreduce({.timeout = timeout}));
    });
  }

  WorkPtr average(const at::Tensor& tensor, std::uint64_t block_elems) {
    check([&] { check_dense(tensor, "average"); });
    const auto work = make_work(OpType::ALLREDUCE, {tensor});
    return start(work, [=, this] {
      add_dense_allreduce(work, tensor, nzcl::ReduceOp::avg, block_elems, default_timeout());
    });
  }

  WorkPtr average_compressed(nzcl::CompressorState& state, const at::Tensor& tensor) {
    check([&] {
      check_dense(tensor, "compressed allreduce");
      TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
                      count_of(tensor) == state.elements(),
                  "nzcl's compressed allreduce takes the state's ", state.elements(),
                  " elements of type float, one behind the other");
    });
    const auto work = make_work(OpType::ALLREDUCE, {tensor});
    return start(work, [=, this, state = &state] {
      auto* const data = static_cast<float*>(used(*work, tensor).data_ptr());
      work->add(communicator().allreduce_compressed({.state = state,
                                                     .input = data,
                                                     .output = data,
                                                     .op = nzcl::ReduceOp::avg,
                                                     .timeout = default_timeout(),
                                                     .stream = stream_handle(tensor)}));
    });
  }

 private:
  static constexpr nzcl::DataType kBytes = nzcl::DataType::uint8;  // are copied, whatever they stand for
  static constexpr std::uint64_t kBlockBytes = 1024;

  void end() {
    if (has_let_go()) return;
    close();
    sparse_.reset();
    let_go();
  }

  static void check_pairs(const Tensors& outputs, const Tensors& inputs, const char* call) {
    TORCH_CHECK(!inputs.empty() && outputs.size() == inputs.size(), "nzcl's ", call,
                " takes as many outputs as inputs, and at least one; this call has ", outputs.size(), " and ",
                inputs.size());
  }
  void check_allgather(const at::Tensor& output, const at::Tensor& input) const {
    check_dense(output, "allgather");
    check_dense(input, "allgather");
    TORCH_CHECK(output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type(),
                "nzcl's allgather: the output must have as many elements as all inputs, and their type");
    check_type(output, "allgather", "output", 0, input, "the input");
  }
  void check_list(const std::vector<Tensors>& lists, const char* call, const char* what) const {
    TORCH_CHECK(lists.size() == 1 && lists[0].size() == static_cast<std::size_t>(getSize()), "nzcl's ", call,
                " takes one list of ", getSize(), " ", what, "s");
  }

  static void split(const at::Tensor& all, const Tensors& outputs) {
    std::int64_t at = 0;
    for (at::Tensor out : outputs) {
      out.copy_(all.narrow(0, at, out.numel()).view(out.sizes()));
      at += out.numel();
    }
  }

  /// A tensor that is reduced: how, and what stands in for it.
  struct Part {
    Reduction how;
    StandIn data;
  };
  Reduction reduction(const at::Tensor& t, const c10d::ReduceOp& op) {
    return reduction_of(t.scalar_type(), op, !fallback().forbidden());
  }
  Part part_of(const at::Tensor& t, const c10d::ReduceOp& op, const char* call) {
    check_layout(t, call);
    const Reduction how = reduction(t, op);
    Part part{.how = how, .data = stand_in(t, how)};
    if (part.data.tensor.is_sparse()) header_of(part.data.tensor, 0);
    return part;
  }
  /// A list may have a tensor twice. Each is reduced as it was before the call, in memory of its own.
  static void separate(std::vector<Part>& parts) {
    Tensors before;
    for (Part& part : parts) {
      const at::Tensor own = part.data.tensor;
      if (overlaps(own, before)) {
        part.data.tensor = own.clone(at::MemoryFormat::Contiguous);
        part.data.back = [own, copy = part.data.tensor, back = part.data.back] {
          own.copy_(copy);
          if (back) back();
        };
      }
      before.push_back(own);
    }
  }
  static void bring_back(GroupWork& work, const StandIn& data) {
    if (data.back) work.at_last(data.back);
  }

  /// Reduces each of them on all ranks.
  WorkPtr reduce_parts(const GroupWorkPtr& work, const std::vector<Part>& parts,
                       std::chrono::nanoseconds timeout) {
    for (const Part& part : parts) bring_back(*work, part.data);
    std::vector<Part> own;
    try {
      for (const Part& part : parts) {
        if (part.how.gloo)
          add_gloo_allreduce(work, part.data.tensor, *part.how.gloo);
        else
          own.push_back(part);
      }
    } catch (const std::exception& e) {
      give_up(*work, e);
      throw;
    }
    return start(work, [=, this] {
      for (const Part& part : own) add_allreduce(work, part.data.tensor, part.how.op, timeout);
    });
  }

  void add_gloo_allreduce(const GroupWorkPtr& work, const at::Tensor& t, c10d::ReduceOp::RedOpType op) {
    Tensors data{for_gloo(t)};
    if (!data[0].is_same(t)) work->at_end([t, from = data[0]]() mutable { t.copy_(from); });
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    add(work, "all_reduce", [&](Gloo& gloo) { return gloo.allreduce(data, options); });
  }

  /// One reduce_scatter. `input` has the ranks' chunks one behind the other, of `counts` elements.
  struct Scatter {
    at::Tensor output, input;
    std::vector<std::uint64_t> counts;
    Reduction how;
  };
  Scatter scatter_of(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op) {
    check_dense(input, "reduce_scatter");
    check_dense(output, "reduce_scatter");
    const Reduction how = reduction(output, op);
    TORCH_CHECK(input.numel() == output.numel() * getSize() && output.scalar_type() == input.scalar_type(),
                "nzcl's reduce_scatter: the input must have as many elements as all outputs, and their type");
    check_type(input, "reduce_scatter", "input", 0, output, "the output");
    return {.output = output,
            .input = input.reshape({-1}),
            .counts = std::vector<std::uint64_t>(static_cast<std::size_t>(getSize()), count_of(output)),
            .how = how};
  }

  WorkPtr reduce_scatter_all(const GroupWorkPtr& work, const std::vector<Scatter>& parts,
                             std::chrono::nanoseconds timeout) {
    std::vector<Scatter> own;
    try {
      for (const Scatter& part : parts) {
        if (part.how.gloo)
          add_gloo_scatter(work, part);
        else
          own.push_back(with_stand_ins(*work, part));
      }
    } catch (const std::exception& e) {
      give_up(*work, e);
      throw;
    }
    return start(work, [=, this] {
      for (const Scatter& part : own)
        add_reduce_scatter(*work, part.output, part.input.contiguous(), part.counts, part.how.op, timeout);
    });
  }

  /// Gloo has no reduce_scatter: the chunk is taken from the sum of all.
  void add_gloo_scatter(const GroupWorkPtr& work, const Scatter& part) {
    const at::Tensor in = stand_in(part.input, part.how).tensor;
    std::int64_t before = 0;
    for (int r = 0; r < getRank(); ++r)
      before += static_cast<std::int64_t>(part.counts[static_cast<std::size_t>(r)]);
    const at::Tensor all = (in.is_alias_of(part.input) ? in.clone() : in).cpu();
    work->at_last([=, output = part.output]() mutable {
      output.copy_(all.narrow(0, before, output.numel()).view(output.sizes()));
    });
    c10d::AllreduceOptions options;
    options.reduceOp = *part.how.gloo;
    add(work, "reduce_scatter", [&](Gloo& gloo) {
      Tensors data{all};
      return gloo.allreduce(data, options);
    });
  }

  /// The same, with tensors of the type in which it is done.
  static Scatter with_stand_ins(GroupWork& work, Scatter part) {
    const at::Tensor output = part.output;
    part.input = stand_in(part.input, part.how).tensor;
    if (output.scalar_type() == at::kBool) {
      part.output = output.view(at::kByte);
    } else if (output.scalar_type() != part.how.type) {
      part.output = at::empty(output.sizes(), output.options().dtype(part.how.type));
      work.at_last([out = part.output, output]() mutable { output.copy_(out); });
    }
    if (part.how.odd) work.at_last([out = part.output]() mutable { out.bitwise_and_(1); });
    return part;
  }

  void add_allreduce(const GroupWorkPtr& work, const at::Tensor& t, nzcl::ReduceOp op,
                     std::chrono::nanoseconds timeout) {
    if (t.is_sparse()) return sparse_->add_to(work, t, op, timeout);
    add_dense_allreduce(work, t, op, block_of(t), timeout);
  }

  void add_dense_allreduce(const GroupWorkPtr& work, const at::Tensor& t, nzcl::ReduceOp op,
                           std::uint64_t block_elems, std::chrono::nanoseconds timeout) {
    const at::Tensor data = in_one_piece(*work, t, true);
    work->add(communicator().allreduce({.input = data.data_ptr(),
                                        .output = data.data_ptr(),
                                        .count = count_of(data),
                                        .type = type_of(data),
                                        .op = op,
                                        .block_elems = block_elems,
                                        .timeout = timeout,
                                        .stream = stream_handle(data)}));
  }

  void add_allgather(GroupWork& work, const at::Tensor& all, const at::Tensor& input,
                     std::chrono::nanoseconds timeout) {
    const at::Tensor own = in_one_piece(work, input, false);
    work.add(communicator().allgather({.input = own.data_ptr(),
                                       .output = all.data_ptr(),
                                       .count = own.nbytes(),
                                       .type = kBytes,
                                       .block_elems = kBlockBytes,
                                       .timeout = timeout,
                                       .stream = stream_handle(own)}));
  }

  void add_reduce_scatter(GroupWork& work, const at::Tensor& output, const at::Tensor& input,
                          std::span<const std::uint64_t> counts, nzcl::ReduceOp op,
                          std::chrono::nanoseconds timeout) {
    const at::Tensor out = in_one_piece(work, output, true), in = used(work, input);
    work.add(communicator().reduce_scatter({.input = in.data_ptr(),
                                            .output = out.data_ptr(),
                                            .counts = counts,
                                            .type = type_of(in),
                                            .op = op,
                                            .block_elems = block_of(out),
                                            .timeout = timeout,
                                            .stream = stream_handle(in)}));
  }

  std::optional<SparseAllreduce> sparse_;
};

NzclGroup& nzcl_group(GroupBase& group) {
  auto* const found = dynamic_cast<NzclGroup*>(&group);
  TORCH_CHECK(found != nullptr, "this process group is one of ", group.getBackendName(), ", not of nzcl");
  return *found;
}

}  // namespace

c10::intrusive_ptr<GroupBase> make_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                 int size, std::chrono::milliseconds timeout,
                                                 AroundClose around_close) {
  fallback_wanted();  // an error of its value comes before the ranks meet
  const nzcl::Options options = options_for(timeout);
  const std::chrono::duration<double> for_meeting(options.bootstrap_timeout_s);
  nzcl::Communicator communicator(
      options, rank, size,
      meeting_in(store, rank, size, std::chrono::duration_cast<std::chrono::milliseconds>(for_meeting)));
  return make_process_group(std::move(communicator), store, timeout, std::move(around_close));
}

c10::intrusive_ptr<GroupBase> make_process_group(nzcl::Communicator communicator,
                                                 const c10::intrusive_ptr<c10d::Store>& store,
                                                 std::chrono::milliseconds timeout,
                                                 AroundClose around_close) {
  return c10::make_intrusive<NzclGroup>(std::move(communicator), store, timeout, std::move(around_close));
}

nzcl::Communicator shrink(GroupBase& group) { return nzcl_group(group).shrink(); }

WorkPtr average_compressed(GroupBase& group, nzcl::CompressorState& state, const at::Tensor& tensor) {
  return nzcl_group(group).average_compressed(state, tensor);
}

WorkPtr average(GroupBase& group, const at::Tensor& tensor, std::uint64_t block_elems) {
  return nzcl_group(group).average(tensor, block_elems);
}

void abort(GroupBase& group, const std::string& reason) { nzcl_group(group).abort(reason); }

void set_timeout(GroupBase& group, std::chrono::milliseconds timeout) {
  nzcl_group(group).set_timeout(timeout);
}

void close(GroupBase& group) { nzcl_group(group).close(); }

WorkPtr failed(GroupBase& group, const std::string& reason) { return nzcl_group(group).failed(reason); }

nzcl::Statistics statistics(GroupBase& group) { return nzcl_group(group).statistics(); }

nzcl::OperationStatistics statistics(const c10d::Work& work) {
  const auto* const found = dynamic_cast<const GroupWork*>(&work);
  TORCH_CHECK(found != nullptr, "this work is not one of nzcl");
  return found->statistics();
}

std::size_t registered_storages(GroupBase& group) { return nzcl_group(group).registered_storages(); }

}  // namespace nzcl_torch

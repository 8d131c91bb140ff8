#include "runtime/torch/process_group.h"

#include <atomic>
#include <utility>

#include "nzcl/communicator.h"
#include "runtime/torch/buffers.h"
#include "runtime/torch/group_work.h"
#include "runtime/torch/meeting.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/types.h"

namespace nzcl_torch {
namespace {

using c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GroupWorkPtr = c10::intrusive_ptr<GroupWork>;
using Tensors = std::vector<at::Tensor>;
using AroundClose = std::function<void(const std::function<void()>& close)>;

const std::string kName = "nzcl";

nzcl::Options options_for(std::chrono::milliseconds timeout) {
  nzcl::Options options;
  options.sum_order = "any";  // PyTorch promises no order of sums
  const double seconds = std::chrono::duration<double>(timeout).count();
  if (seconds > 0) options.timeout_s = std::min(seconds, 86400.0);
  if (seconds > 0) options.bootstrap_timeout_s = std::clamp(seconds, 1.0, 300.0);
  return nzcl::options_from_environment(options);
}

std::chrono::nanoseconds timeout_of(const auto& options) {
  return options.timeout == c10d::kUnsetTimeout ? std::chrono::nanoseconds(0)
                                                : std::chrono::nanoseconds(options.timeout);
}

std::uint64_t count_of(const at::Tensor& t) { return static_cast<std::uint64_t>(t.numel()); }

const at::Tensor& only(const Tensors& tensors, const char* call) {
  TORCH_CHECK(tensors.size() == 1, "nzcl's ", call, " takes one tensor on each rank, not ", tensors.size());
  return tensors.front();
}

/// The process group. What it does not override, its base refuses by name: point-to-point messages,
/// all-to-all, gather and scatter. See process_group.h.
class NzclGroup final : public GroupBase {
 public:
  NzclGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
            std::chrono::milliseconds timeout, AroundClose around_close)
      : GroupBase(rank, size),
        around_close_(std::move(around_close)),
        options_(options_for(timeout)),
        communicator_(options_, rank, size,
                      meeting_in(store, rank, size,
                                 std::chrono::milliseconds(
                                     static_cast<std::int64_t>(options_.bootstrap_timeout_s * 1000)))),
        buffers_(communicator_) {}

  ~NzclGroup() override { close(); }

  void close() {
    const auto close = [this] {
      try {
        communicator_.close();
      } catch (const nzcl::Error& error) {
        TORCH_WARN("nzcl, rank ", getRank(), ": ", error.what());
      }
    };
    around_close_ ? around_close_(close) : close();
  }

  const std::string getBackendName() const override { return kName; }

  void abort(const std::string& reason) { communicator_.abort(reason); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto work = make_work(OpType::ALLREDUCE, tensors);
    add_allreduce(*work, only(tensors, "allreduce"), options.reduceOp, timeout_of(options));
    return GroupWork::start(work);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    const auto work = make_work(OpType::ALLREDUCE_COALESCED, tensors);
    for (const at::Tensor& t : tensors) add_allreduce(*work, t, options.reduceOp, timeout_of(options));
    return GroupWork::start(work);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = only(tensors, "broadcast");
    check_dense(tensor, "broadcast");
    const auto work = make_work(OpType::BROADCAST, tensors);
    const at::Tensor data = in_one_piece(*work, tensor, getRank() != options.rootRank);
    work->add(
        communicator_.broadcast({.data = data.data_ptr(),
                                 .count = data.nbytes(),
                                 .type = nzcl::DataType::uint8,  // bytes are copied, whatever they stand for
                                 .root = static_cast<int>(options.rootRank),
                                 .block_elems = block_of(data) * data.element_size(),
                                 .timeout = timeout_of(options)}));
    return GroupWork::start(work);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor& tensor = only(tensors, "reduce");
    check_dense(tensor, "reduce");
    const auto work = make_work(OpType::REDUCE, tensors);
    const at::Tensor data = in_one_piece(*work, tensor, getRank() == options.rootRank);
    work->add(communicator_.reduce({.input = data.data_ptr(),
                                    .output = data.data_ptr(),
                                    .count = count_of(data),
                                    .type = type_of(data),
                                    .op = op_of(options.reduceOp),
                                    .root = static_cast<int>(options.rootRank),
                                    .block_elems = block_of(data),
                                    .timeout = timeout_of(options)}));
    return GroupWork::start(work);
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    const at::Tensor input = only(inputs, "allgather");
    TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(getSize()),
                "nzcl's allgather takes one list of ", getSize(), " outputs");
    const auto work = make_work(OpType::ALLGATHER, outputs[0]);
    at::Tensor all = at::empty({getSize() * input.numel()}, input.options());
    add_allgather(*work, all, input, timeout_of(options));
    work->at_end([all, outs = outputs[0]] { split(all, outs); });
    return GroupWork::start(work);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    check_dense(output, "allgather");
    TORCH_CHECK(output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type(),
                "nzcl's allgather: the output must have as many elements as all inputs, and their type");
    const auto work = make_work(OpType::_ALLGATHER_BASE, {output});
    add_allgather(*work, in_one_piece(*work, output, true), input, timeout_of(options));
    return GroupWork::start(work);
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    const at::Tensor& output = only(outputs, "reduce_scatter");
    TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<std::size_t>(getSize()),
                "nzcl's reduce_scatter takes one list of ", getSize(), " inputs");
    const auto work = make_work(OpType::REDUCE_SCATTER, outputs);
    Tensors flat;
    std::vector<std::uint64_t> counts;
    for (const at::Tensor& t : inputs[0]) {
      check_dense(t, "reduce_scatter");
      flat.push_back(t.reshape({-1}));
      counts.push_back(count_of(t));
    }
    add_reduce_scatter(*work, output, at::cat(flat), counts, options);
    return GroupWork::start(work);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    check_dense(input, "reduce_scatter");
    TORCH_CHECK(input.numel() == output.numel() * getSize() && output.scalar_type() == input.scalar_type(),
                "nzcl's reduce_scatter: the input must have as many elements as all outputs, and their type");
    const auto work = make_work(OpType::_REDUCE_SCATTER_BASE, {output});
    const std::vector<std::uint64_t> counts(static_cast<std::size_t>(getSize()), count_of(output));
    add_reduce_scatter(*work, output, input.contiguous(), counts, options);
    return GroupWork::start(work);
  }

  WorkPtr average(const at::Tensor& tensor, std::uint64_t block_elems) {
    check_cpu(tensor);
    check_dense(tensor, "average");
    const auto work = make_work(OpType::ALLREDUCE, {tensor});
    add_dense_allreduce(*work, tensor, c10d::ReduceOp::AVG, block_elems, std::chrono::nanoseconds(0));
    return GroupWork::start(work);
  }

  WorkPtr average_compressed(nzcl::CompressorState& state, const at::Tensor& tensor) {
    check_dense(tensor, "compressed allreduce");
    TORCH_CHECK(
        tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && count_of(tensor) == state.elements(),
        "nzcl's compressed allreduce takes the state's ", state.elements(),
        " elements of type float, one behind the other");
    const auto work = make_work(OpType::ALLREDUCE, {tensor});
    float* const data = used(*work, tensor).data_ptr<float>();
    work->add(communicator_.allreduce_compressed(
        {.state = &state, .input = data, .output = data, .op = nzcl::ReduceOp::avg}));
    return GroupWork::start(work);
  }

  void expect_density(double share) {
    TORCH_CHECK(share >= 0 && share <= 1, "nzcl: the expected density is a share from 0 to 1, and not ",
                share);
    sparse_density_.store(share, std::memory_order_relaxed);
  }

  nzcl::Statistics statistics() const { return communicator_.statistics(); }
  std::size_t registered_storages() const { return buffers_.size(); }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const auto work = make_work(OpType::BARRIER, {});
    work->add(communicator_.allreduce({.timeout = timeout_of(options)}));
    return GroupWork::start(work);
  }

 private:
  GroupWorkPtr make_work(OpType type, const Tensors& outputs) {
    return c10::make_intrusive<GroupWork>(getRank(), type, outputs);
  }

  /// Returns the tensor, or a copy whose elements follow each other. What is written to a copy is copied
  /// back.
  at::Tensor in_one_piece(GroupWork& work, const at::Tensor& t, bool written) {
    const at::Tensor data = t.contiguous();
    if (written && !data.is_same(t)) work.at_end([t, data]() mutable { t.copy_(data); });
    return used(work, data);
  }
  /// Registers the tensor, and keeps it until the work is over.
  at::Tensor used(GroupWork& work, const at::Tensor& t) {
    buffers_.cover(t);
    work.keep(t);
    return t;
  }
  static void split(const at::Tensor& all, const Tensors& outputs) {
    std::int64_t at = 0;
    for (at::Tensor out : outputs) {
      out.copy_(all.narrow(0, at, out.numel()).view(out.sizes()));
      at += out.numel();
    }
  }

  void add_allreduce(GroupWork& work, const at::Tensor& t, const c10d::ReduceOp& op,
                     std::chrono::nanoseconds timeout) {
    check_cpu(t);
    if (t.is_sparse()) return add_sparse_allreduce(work, t, op, timeout);
    check_dense(t, "allreduce");
    add_dense_allreduce(work, t, op, block_of(t), timeout);
  }

  void add_dense_allreduce(GroupWork& work, const at::Tensor& t, const c10d::ReduceOp& op,
                           std::uint64_t block_elems, std::chrono::nanoseconds timeout) {
    const at::Tensor data = in_one_piece(work, t, true);
    work.add(communicator_.allreduce({.input = data.data_ptr(),
                                      .output = data.data_ptr(),
                                      .count = count_of(data),
                                      .type = type_of(data),
                                      .op = op_of(op),
                                      .block_elems = block_elems,
                                      .timeout = timeout}));
  }

  /// Entries with the same index are summed on the way. The result has room for as many entries as all ranks
  /// have if they are alike, and grows where that is too little.
  void add_sparse_allreduce(GroupWork& work, const at::Tensor& tensor, const c10d::ReduceOp& op,
                            std::chrono::nanoseconds timeout) {
    const nzcl::ReduceOp reduce_op = op_of(op);
    const bool sums = reduce_op == nzcl::ReduceOp::sum || reduce_op == nzcl::ReduceOp::avg;
    const SparseBlocks b = blocks_of(sums ? tensor : tensor.coalesce());  // in torch equal indices mean a sum
    const at::Tensor values = used(work, b.values);
    const auto empty_result = [like = b.values](std::int64_t entries) {
      auto sizes = like.sizes().vec();
      sizes[0] = entries;
      return at::empty(sizes, like.options());
    };
    const auto room = std::min(b.blocks, getSize() * static_cast<std::int64_t>(b.indices.size()));
    const auto result = std::make_shared<at::Tensor>(empty_result(room));
    nzcl::Work sum =
        communicator_.allreduce_sparse({.values = values.data_ptr(),
                                        .indices = std::span<const std::int64_t>(b.indices),
                                        .count = static_cast<std::uint64_t>(b.blocks * b.block_elems),
                                        .type = type_of(values),
                                        .op = reduce_op,
                                        .block_elems = static_cast<std::uint64_t>(b.block_elems),
                                        .packed_values = room > 0 ? result->data_ptr() : nullptr,
                                        .packed_capacity = static_cast<std::uint64_t>(room),
                                        .packed_grow =
                                            [result, empty_result](std::uint64_t blocks) {
                                              *result = empty_result(static_cast<std::int64_t>(blocks));
                                              return nzcl::PackedMemory{.values = result->data_ptr()};
                                            },
                                        .sum_duplicates = sums,
                                        .timeout = timeout,
                                        .expected_density = sparse_density_.load(std::memory_order_relaxed)});
    work.at_end([tensor, result, sum] { replace(tensor, sum.packed_indices(), *result); });
    work.add(std::move(sum));
  }

  void add_allgather(GroupWork& work, const at::Tensor& all, const at::Tensor& input,
                     std::chrono::nanoseconds timeout) {
    check_dense(input, "allgather");
    const at::Tensor own = in_one_piece(work, input, false);
    used(work, all);
    work.add(communicator_.allgather({.input = own.data_ptr(),
                                      .output = all.data_ptr(),
                                      .count = own.nbytes(),
                                      .type = nzcl::DataType::uint8,
                                      .block_elems = block_of(own) * own.element_size(),
                                      .timeout = timeout}));
  }

  void add_reduce_scatter(GroupWork& work, const at::Tensor& output, const at::Tensor& input,
                          std::span<const std::uint64_t> counts, const c10d::ReduceScatterOptions& options) {
    check_dense(output, "reduce_scatter");
    const at::Tensor out = in_one_piece(work, output, true), in = used(work, input);
    work.add(communicator_.reduce_scatter({.input = in.data_ptr(),
                                           .output = out.data_ptr(),
                                           .counts = counts,
                                           .type = type_of(in),
                                           .op = op_of(options.reduceOp),
                                           .block_elems = block_of(out),
                                           .timeout = timeout_of(options)}));
  }

  const AroundClose around_close_;
  const nzcl::Options options_;
  nzcl::Communicator communicator_;
  std::atomic<double> sparse_density_{0};  // what expect_density() has said; 0: nothing
  Buffers buffers_;  // destroyed before the communicator, whose operations keep what they use
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
  return c10::make_intrusive<NzclGroup>(store, rank, size, timeout, std::move(around_close));
}

WorkPtr average_compressed(GroupBase& group, nzcl::CompressorState& state, const at::Tensor& tensor) {
  return nzcl_group(group).average_compressed(state, tensor);
}

WorkPtr average(GroupBase& group, const at::Tensor& tensor, std::uint64_t block_elems) {
  return nzcl_group(group).average(tensor, block_elems);
}

void abort(GroupBase& group, const std::string& reason) { nzcl_group(group).abort(reason); }

void close(GroupBase& group) { nzcl_group(group).close(); }

void expect_density(GroupBase& group, double share) { nzcl_group(group).expect_density(share); }

nzcl::Statistics statistics(GroupBase& group) { return nzcl_group(group).statistics(); }

nzcl::OperationStatistics statistics(const c10d::Work& work) {
  const auto* const found = dynamic_cast<const GroupWork*>(&work);
  TORCH_CHECK(found != nullptr, "this work is not one of nzcl");
  return found->statistics();
}

std::size_t registered_storages(GroupBase& group) { return nzcl_group(group).registered_storages(); }

}  // namespace nzcl_torch

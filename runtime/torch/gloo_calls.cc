#include "runtime/torch/gloo_calls.h"

#include <gloo/common/error.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/torch/arguments.h"
#include "runtime/torch/error_text.h"
#include "runtime/torch/types.h"

namespace nzcl_torch {
namespace {

using c10d::OpType;

bool is_dense(const at::Tensor& t) { return t.layout() == at::kStrided; }

/// Gloo of 1.13 reads and writes some tensors as if their elements followed each other.
Tensors in_one_piece(const Tensors& list) {
  Tensors all;
  for (const at::Tensor& t : list) all.push_back(for_gloo(is_dense(t) ? as_moved(t) : t));
  return all;
}
std::vector<Tensors> in_one_piece(const std::vector<Tensors>& lists) {
  std::vector<Tensors> all;
  for (const Tensors& list : lists) all.push_back(in_one_piece(list));
  return all;
}

/// Copies back what Gloo has written, where it has not written to the tensor itself.
void copy_back(const std::vector<Tensors>& from, const std::vector<Tensors>& to) {
  for (std::size_t i = 0; i < to.size(); ++i)
    for (std::size_t j = 0; j < to[i].size(); ++j) {
      if (!is_dense(to[i][j])) continue;
      at::Tensor target = as_moved(to[i][j]);
      if (target.data_ptr() != from[i][j].data_ptr()) target.copy_(from[i][j]);
    }
}

void check_on_host(const Tensors& tensors, const char* call) {
  for (const at::Tensor& t : tensors)
    TORCH_CHECK(t.device().is_cpu(), "nzcl's ", call, " takes tensors in host memory; this one is on ",
                t.device(), ": send and receive its copy on the CPU");
}

std::vector<std::int64_t> counts_of(const Tensors& tensors) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& t : tensors) counts.push_back(as_moved(t).numel());
  return counts;
}

void check_alltoall(const Tensors& tensors, int size, const char* what, const at::Tensor& like) {
  TORCH_CHECK(tensors.size() == static_cast<std::size_t>(size), "nzcl's all_to_all takes ", size, " ", what,
              "s, and not ", tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_dense(tensors[i], "all_to_all");
    check_type(tensors[i], "all_to_all", what, i, like, "input 0");
  }
}

at::Tensor joined(const Tensors& tensors) {
  Tensors pieces;
  for (const at::Tensor& t : tensors) pieces.push_back(as_moved(t).reshape({-1}).cpu());
  return at::cat(pieces);
}

/// How Gloo's operation ended: nothing for success.
struct Ending {
  std::string error;
  bool connection = false;  // whether a connection failed
};

Ending ending_of(const c10::ivalue::Future& future) {
  if (!future.hasError()) return {};
  try {
    std::rethrow_exception(future.exception_ptr());
  } catch (const gloo::IoException& e) {
    return {.error = text_of(e), .connection = true};
  } catch (const std::exception& e) {
    return {.error = text_of(e)};
  } catch (...) {
    return {.error = "an error that says nothing"};
  }
}

}  // namespace

void GlooCalls::add(const GroupWorkPtr& work, const char* call, const std::function<WorkPtr(Gloo&)>& start) {
  const auto group = fallback().group(call);
  const WorkPtr part = start(*group);
  part->getFuture()->addCallback([this, work, call = std::string(call),
                                  going_on = work->wait_also()](c10::ivalue::Future& done) mutable {
    const Ending end = ending_of(done);
    if (!end.error.empty()) {
      const auto known = failure();
      work->fail("Gloo's " + call + " failed: " + end.error + (known ? "; nzcl: " + *known : ""));
      // Ranks that are not connected with the one that has gone would wait for this one.
      if (end.connection) fallback().abort();
    }
    going_on.reset();
  });
}

WorkPtr GlooCalls::start_gloo(const GroupWorkPtr& work, const char* call,
                              const std::function<WorkPtr(Gloo&)>& start) {
  try {
    add(work, call, start);
  } catch (const std::exception& e) {  // nobody has the work, but barriers count it
    work->fail(text_of(e));
    work->seal();
    throw;
  }
  work->seal();
  return work;
}

WorkPtr GlooCalls::do_all(OpType type, const std::vector<Tensors>& outputs, const char* call,
                          const std::function<WorkPtr(Gloo&, std::vector<Tensors>&)>& start) {
  auto written = std::make_shared<std::vector<Tensors>>(in_one_piece(outputs));
  const GroupWorkPtr work = make_work(type, outputs);
  work->at_end([written, outputs] { copy_back(*written, outputs); });
  return start_gloo(work, call, [&](Gloo& gloo) { return start(gloo, *written); });
}

WorkPtr GlooCalls::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                          const c10d::GatherOptions& options) {
  if (fallback().forbidden()) return GroupBase::gather(outputs, inputs, options);
  return do_all(OpType::GATHER, outputs, "gather", [&](Gloo& gloo, std::vector<Tensors>& outs) {
    auto ins = in_one_piece(inputs);
    return gloo.gather(outs, ins, options);
  });
}

WorkPtr GlooCalls::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                           const c10d::ScatterOptions& options) {
  if (fallback().forbidden()) return GroupBase::scatter(outputs, inputs, options);
  return do_all(OpType::SCATTER, {outputs}, "scatter", [&](Gloo& gloo, std::vector<Tensors>& outs) {
    auto ins = in_one_piece(inputs);
    return gloo.scatter(outs[0], ins, options);
  });
}

WorkPtr GlooCalls::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  if (fallback().forbidden()) return GroupBase::allgather_coalesced(outputs, inputs, options);
  return do_all(OpType::ALLGATHER_COALESCED, outputs, "all_gather_coalesced",
                [&](Gloo& gloo, std::vector<Tensors>& outs) {
                  auto ins = in_one_piece(inputs);
                  return gloo.allgather_coalesced(outs, ins, options);
                });
}

/// Gloo of 1.13 exchanges parts of one tensor only, so the tensors are copied into one.
WorkPtr GlooCalls::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  if (fallback().forbidden()) return GroupBase::alltoall(outputs, inputs, options);
  TORCH_CHECK(!inputs.empty(), "nzcl's all_to_all takes ", getSize(), " inputs, and not 0");
  check_alltoall(inputs, getSize(), "input", inputs.front());
  check_alltoall(outputs, getSize(), "output", inputs.front());
  return do_all(OpType::ALLTOALL, {outputs}, "all_to_all", [&](Gloo& gloo, std::vector<Tensors>& outs) {
    at::Tensor in = joined(inputs), out = joined(outs[0]);
    auto in_counts = counts_of(inputs), out_counts = counts_of(outputs);
    std::int64_t at = 0;
    for (at::Tensor& piece : outs[0]) {  // the result is taken from there
      const auto sizes = piece.sizes().vec();
      const std::int64_t n = piece.numel();
      piece = out.narrow(0, at, n).view(sizes);
      at += n;
    }
    return gloo.alltoall_base(out, in, out_counts, in_counts, options);
  });
}

WorkPtr GlooCalls::alltoall_base(at::Tensor& output, at::Tensor& input,
                                 std::vector<std::int64_t>& output_splits,
                                 std::vector<std::int64_t>& input_splits,
                                 const c10d::AllToAllOptions& options) {
  if (fallback().forbidden())
    return GroupBase::alltoall_base(output, input, output_splits, input_splits, options);
  return do_all(OpType::ALLTOALL_BASE, {{output}}, "all_to_all_single",
                [&](Gloo& gloo, std::vector<Tensors>& outs) {
                  at::Tensor in = in_one_piece({input}).front();
                  return gloo.alltoall_base(outs[0][0], in, output_splits, input_splits, options);
                });
}

WorkPtr GlooCalls::send(Tensors& tensors, int to, int tag) {
  if (fallback().forbidden()) return GroupBase::send(tensors, to, tag);
  check_on_host(tensors, "send");
  return noted(fallback().group("send")->send(tensors, to, tag));
}

WorkPtr GlooCalls::recv(Tensors& tensors, int from, int tag) {
  if (fallback().forbidden()) return GroupBase::recv(tensors, from, tag);
  check_on_host(tensors, "recv");
  return noted(fallback().group("recv")->recv(tensors, from, tag));
}

WorkPtr GlooCalls::recvAnysource(Tensors& tensors, int tag) {
  if (fallback().forbidden()) return GroupBase::recvAnysource(tensors, tag);
  check_on_host(tensors, "recv");
  return noted(fallback().group("recv from any rank")->recvAnysource(tensors, tag));
}

void GlooCalls::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  if (fallback().forbidden()) return GroupBase::monitoredBarrier(options, wait_all_ranks);
  fallback().group("monitored_barrier")->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace nzcl_torch

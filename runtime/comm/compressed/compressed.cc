// How compressed gradients travel. A tensor that is exchanged in tiles is compressed slice by slice, while
// the slices before are on their way already, and its values are coded. A tensor of one message, or of one
// rank, is compressed as a whole, and its values travel as they are, with their indices in the sparse
// allreduce of single elements. The switch exchange takes dense tensors only, so of compressors only those
// that send everything.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "nzcl/communicator.h"
#include "nzcl/compress.h"
#include "runtime/base/plain_floats.h"
#include "runtime/comm/communicator/inside_communicator.h"
#include "runtime/comm/compressed/coded_results.h"
#include "runtime/comm/compressed/compressed_tiles.h"
#include "runtime/comm/compressed/compressor_state.h"
#include "runtime/compress/check.h"
#include "runtime/gpu/find_gpu.h"
#include "runtime/plan/tuning.h"

namespace nzcl {
namespace {

using StateImpl = CompressorStateAccess::Impl;

/// Registers `data`, which has room for `capacity` floats, for the first `count` of them or more. The
/// registered part doubles as it grows, so that few steps register anything.
void register_at_least(Communicator& communicator, StateImpl& state, float* data, std::size_t count,
                       std::size_t capacity) {
  const std::size_t room = std::min(capacity, std::bit_ceil(std::max(count, engine::kLeastRegisteredValues)));
  // This costs nearly nothing where the memory is registered already, and the state may have been used with
  // another communicator before.
  auto registered = communicator.register_buffer(data, room * sizeof(float));
  state.registered = std::move(registered);
}

/// What is sent, as a dense tensor.
float* expand(StateImpl& state, const CompressedGradient& sent, std::size_t elements) {
  if (!state.dense) state.dense = std::make_unique_for_overwrite<float[]>(elements);
  std::fill_n(state.dense.get(), elements, 0.0f);
  for (std::size_t i = 0; i < sent.indices.size(); ++i)
    state.dense[static_cast<std::size_t>(sent.indices[i])] = sent.values[i];
  return state.dense.get();
}

/// One way in which what is sent travels: what is asked of the communicator, first to see whether it would
/// take it, and then with the values. These travel as they are, whatever the option says: the residual does
/// not have what another rounding would lose.
struct DenseWay {
  using Request = AllreduceRequest;
  /// In place, because there is no input yet.
  static Request shape(const CompressedAllreduceRequest& r) {
    return {.input = r.output,
            .output = r.output,
            .count = r.state->elements(),
            .op = r.op,
            .timeout = r.timeout,
            .tag = r.tag,
            .wire_type = WireType::as_is};
  }
  static void take_values(Communicator& communicator, StateImpl& state, const CompressedGradient& sent,
                          Request& request) {
    float* const values = expand(state, sent, request.count);
    if (request.count > 0) register_at_least(communicator, state, values, request.count, request.count);
    request.input = values;
  }
};

struct SparseWay {
  using Request = SparseAllreduceRequest;
  static Request shape(const CompressedAllreduceRequest& r) {
    // Without an output, this would be the shape of a packed result. Any address will do, as such a request
    // is refused before it is used.
    void* const output = r.output != nullptr ? static_cast<void*>(r.output) : r.state;
    return {.count = r.state->elements(),
            .op = r.op,
            .block_elems = 1,
            .output = output,
            .wire_type = WireType::as_is,
            .timeout = r.timeout,
            .tag = r.tag,
            .stream = r.stream};
  }
  static void take_values(Communicator& communicator, StateImpl& state, const CompressedGradient& sent,
                          Request& request) {
    if (!sent.values.empty())
      register_at_least(communicator, state, state.whole.values(), sent.values.size(), request.count);
    request.values = sent.values.data();
    request.indices = sent.indices;
  }
};

/// The communicator's own checks do not see the input, because no operation reads it.
void check_input(Communicator& communicator, const CompressedAllreduceRequest& r, const StateImpl& state) {
  const auto input = std::as_bytes(std::span(r.input, r.state->elements()));
  if (r.input != r.output &&
      comm::overlap(input, std::as_bytes(std::span(r.output, input.size() / sizeof(float)))))
    throw Error(ErrorCode::invalid_argument, "allreduce: input and output overlap without being the same");
  comm::require_unwritten(communicator, input, state.arrays != nullptr);
  if (!state.arrays) return;
  std::string why;
  try {
    if (gpu::find_gpu(input) == state.arrays->gpu()) return;
  } catch (const Error& e) {
    why = std::string(": ") + e.what();
  }
  throw Error(ErrorCode::unsupported, "allreduce: input is not on the GPU of the state, which is " +
                                          state.arrays->gpu()->name() + why);
}

void check(Communicator& communicator, const CompressedAllreduceRequest& r, StateImpl& state) {
  state.require_idle("allreduce");
  if (r.op != ReduceOp::sum && r.op != ReduceOp::avg)
    throw Error(ErrorCode::invalid_argument,
                "allreduce: op is " + std::string(name_of(r.op)) + "; a compressed one may be sum or avg");
  if (r.state->elements() == 0) return;
  if (r.input == nullptr) throw Error(ErrorCode::invalid_argument, "allreduce: input is null");
  if (r.output == nullptr) throw Error(ErrorCode::invalid_argument, "allreduce: output is null");
  check_input(communicator, r, state);
}

/// Does a part of the call before the operation is started. If that fails, the request takes its place in the
/// order of operations all the same.
void or_refuse(Communicator& communicator, const auto& request, auto part) {
  try {
    part();
  } catch (const Error& e) {
    comm::refuse(communicator, &request, e);
    throw;
  } catch (const std::bad_alloc&) {
    const Error refusal(ErrorCode::system, "allreduce: out of memory");
    comm::refuse(communicator, &request, refusal);
    throw Error(refusal);
  }
}

/// What could be refused is refused before the gradient is compressed, because that cannot be undone.
template <class Way>
Work run_whole(Communicator& communicator, StateImpl& state, const CompressedAllreduceRequest& r) {
  const typename Way::Request shape = Way::shape(r);
  CompressedGradient sent;
  or_refuse(communicator, shape, [&] {
    check(communicator, r, state);
    comm::check(communicator, &shape);
    sent = state.whole.compress(state.tensor, {r.input, r.state->elements()}, communicator.rank(),
                                communicator.size());
  });
  try {
    typename Way::Request request = shape;
    or_refuse(communicator, shape, [&] { Way::take_values(communicator, state, sent, request); });
    state.work = comm::start(communicator, &request, state.checksum());
  } catch (...) {
    state.tensor.take_back(sent);
    throw;
  }
  return state.work;
}

comm::CompressedRequest coded_request(const CompressedAllreduceRequest& r) {
  const StateImpl& inside = CompressorStateAccess::of(*r.state);
  return {.output = r.output,
          .count = r.state->elements(),
          .op = r.op,
          .timeout = r.timeout,
          .tag = r.tag,
          .value_rule = comm::value_rule_of(r.state->compressor()),
          .checksum = inside.checksum_in_tiles(),
          .stream = r.stream};
}

/// The other ranks only have to know how large the tensor is.
comm::CompressedRequest size_of(const CompressedAllreduceRequest& r) {
  comm::CompressedRequest request = coded_request(r);
  request.op = ReduceOp::sum;
  return request;
}

/// Refuses results that are to be coded where owners cannot do that. All ranks do so alike.
void check_results(Communicator& communicator, const CompressedAllreduceRequest& r) {
  const char* const why_not = comm::why_no_coded_results(communicator);
  if (why_not == nullptr || !compress::codes_results(r.state->compressor())) return;
  const Error refusal(ErrorCode::unsupported,
                      std::string("allreduce: the compressor codes results, and ") + why_not);
  comm::CompressedRequest request = size_of(r);
  request.value_rule = wire::ValueRule::coded;  // which owners understand
  comm::refuse(communicator, &request, refusal);
  throw refusal;
}

/// The operation begins before anything is compressed. This thread then compresses, together with the scan
/// threads, and lets the lanes send what is ready. When the call returns, the gradient has been read.
Work run_in_tiles(Communicator& communicator, StateImpl& state, const CompressedAllreduceRequest& r) {
  comm::CompressedRequest request = coded_request(r);
  or_refuse(communicator, size_of(r), [&] {
    check(communicator, r, state);
    comm::check(communicator, &request);
    if (!state.step) state.step = std::make_shared<compress::CompressionStep>(state.tensor);
    state.step->begin({r.input, r.state->elements()}, communicator.rank(), communicator.size());
  });
  try {
    or_refuse(communicator, size_of(r), [&] {
      request.source = std::make_shared<comm::CompressedTiles>(state.step, r.state->compressor(),
                                                               comm::owners_are_ranks(communicator));
      if (wire::has_coded_results(request.value_rule))
        request.result_coder = std::make_shared<comm::CodedResults>(state.tensor);
    });
    state.work = comm::start(communicator, &request);
  } catch (...) {
    state.step->abandon();
    throw;
  }
  while (state.step->make_next()) comm::send_made(state.work);
  state.step->end();
  comm::send_made(state.work);
  return state.work;
}

/// The step is put into the caller's stream, and all else is done when it has come there. What is not
/// exchanged in tiles travels as that of run_whole<SparseWay>().
Work run_on_gpu(Communicator& communicator, StateImpl& state, const CompressedAllreduceRequest& r,
                bool in_tiles) {
  comm::CompressedRequest request = coded_request(r);
  if (!in_tiles) {
    request.value_rule = wire::ValueRule::as_is;
    request.checksum = state.checksum();
  }
  comm::CompressedRequest size = request;  // all that the other ranks have to know
  size.op = ReduceOp::sum;
  or_refuse(communicator, size, [&] {
    check(communicator, r, state);
    request.step = std::make_shared<comm::GpuStep>(state.tensor, *state.arrays, r.input, r.stream,
                                                   communicator.rank(), communicator.size());
    if (!in_tiles) return;
    request.source = std::make_shared<comm::CompressedTiles>(request.step, r.state->compressor(),
                                                             comm::owners_are_ranks(communicator));
    if (wire::has_coded_results(request.value_rule))
      request.result_coder = std::make_shared<comm::CodedResults>(state.tensor);
  });
  state.work = comm::start(communicator, &request);
  state.gpu_step = std::move(request.step);
  return state.work;
}

/// Refuses a request that has no state, which alone knows what tensor it is about.
[[noreturn]] void refuse_unknown(Communicator& communicator, const Error& refusal) {
  comm::refuse_unknown(communicator, refusal);
  throw Error(refusal);
}

}  // namespace

Work Communicator::allreduce_compressed(const CompressedAllreduceRequest& r) {
  const PlainFloats floats;
  if (r.state == nullptr)
    refuse_unknown(*this, {ErrorCode::invalid_argument, "allreduce: no state is given"});
  if (CompressorStateAccess::is_empty(*r.state))
    refuse_unknown(*this,
                   {ErrorCode::invalid_usage, "allreduce: this CompressorState is empty: it was moved from"});
  StateImpl& inside = CompressorStateAccess::of(*r.state);
  inside.sent_share = comm::remote_share(*this);
  check_results(*this, r);
  const bool in_tiles = comm::takes(*this, size_of(r));
  if (inside.arrays) return run_on_gpu(*this, inside, r, in_tiles);
  if (in_tiles) return run_in_tiles(*this, inside, r);
  const bool everything = std::holds_alternative<Everything>(r.state->compressor().selection);
  return everything && !comm::takes_lists(*this) ? run_whole<DenseWay>(*this, inside, r)
                                                 : run_whole<SparseWay>(*this, inside, r);
}

}  // namespace nzcl

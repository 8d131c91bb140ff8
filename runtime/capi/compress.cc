// States of compressors, and nzclAllReduceCompressed.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/capi/call.h"
#include "runtime/capi/sized.h"

namespace {

using nzcl::ErrorCode;
using nzcl::capi::guarded;
using nzcl::capi::require;
using nzcl::capi::started;

/// The size of nzclCompressionReport in its first version.
constexpr std::size_t kLeastReport = offsetof(nzclCompressionReport, steps) + sizeof(std::uint64_t);
/// Far more than any model has, and few enough that a negative number is none of them.
constexpr std::size_t kMostLayers = std::size_t{1} << 32;

std::vector<nzcl::Layer> checked_layers(const char* call, const char* compressor, const nzclLayer_t* layers,
                                        size_t layer_count, const nzclCompressorState_t* state) {
  require(call, compressor, state);
  if (layer_count > 0) require(call, layers);
  if (layer_count > kMostLayers)
    throw nzcl::Error(ErrorCode::invalid_argument, fmt::format("{}: layer_count is {}; it may be at most {}",
                                                               call, layer_count, kMostLayers));
  std::vector<nzcl::Layer> all;
  for (size_t i = 0; i < layer_count; ++i) {
    // A bin that does not fit is as wrong as the largest one that does.
    const std::uint64_t bin = std::min<std::uint64_t>(layers[i].bin, UINT32_MAX);
    all.push_back({.elements = layers[i].elements, .bin = static_cast<std::uint32_t>(bin)});
  }
  return all;
}

nzclResult_t start_compressed(const char* call, const float* send, float* recv, size_t count, nzclRedOp_t op,
                              nzclCompressorState_t state, nzclComm_t comm, void* stream, nzclWork_t* work) {
  return started(
      call, comm, work,
      [&] {
        require(call, state);
        if (count != state->state.elements())
          throw nzcl::Error(ErrorCode::invalid_argument,
                            fmt::format("{}: count is {}, and the state has {} elements", call, count,
                                        state->state.elements()));
        return nzcl::CompressedAllreduceRequest{.state = &state->state,
                                                .input = send,
                                                .output = recv,
                                                .op = nzcl::capi::reduce_op(call, op),
                                                .stream = stream};
      },
      [](nzcl::Communicator& c, const nzcl::CompressedAllreduceRequest& r) {
        return c.allreduce_compressed(r);
      });
}

}  // namespace

extern "C" {

nzclResult_t nzclCompressorStateCreate(const char* compressor, const nzclLayer_t* layers, size_t layer_count,
                                       nzclCompressorState_t* state) {
  return guarded([&] {
    const auto all = checked_layers("nzclCompressorStateCreate", compressor, layers, layer_count, state);
    *state = new nzclCompressorState{nzcl::CompressorState(nzcl::compressor_from_text(compressor), all)};
  });
}

nzclResult_t nzclCompressorStateCreateOnGpu(const char* compressor, const nzclLayer_t* layers,
                                            size_t layer_count, const void* memory,
                                            nzclCompressorState_t* state) {
  return guarded([&] {
    constexpr const char* kName = "nzclCompressorStateCreateOnGpu";
    require(kName, memory);
    const auto all = checked_layers(kName, compressor, layers, layer_count, state);
    *state = new nzclCompressorState{
        nzcl::CompressorState(nzcl::compressor_from_text(compressor), all, nzcl::GpuOf{memory})};
  });
}

nzclResult_t nzclCompressorStateDestroy(nzclCompressorState_t state) {
  delete state;
  return nzclSuccess;
}

nzclResult_t nzclCompressorStateReset(nzclCompressorState_t state) {
  return guarded([&] {
    require("nzclCompressorStateReset", state);
    state->state.reset();
  });
}

nzclResult_t nzclCompressorStateSetRate(nzclCompressorState_t state, float rate) {
  return guarded([&] {
    require("nzclCompressorStateSetRate", state);
    state->state.set_rate(rate);
  });
}

nzclResult_t nzclCompressorStateSave(nzclCompressorState_t state, void* data, size_t* bytes) {
  return guarded([&] {
    require("nzclCompressorStateSave", state, bytes);
    const auto saved = state->state.save();
    const size_t room = *bytes;
    *bytes = saved.size();
    if (data == nullptr) return;
    if (room < saved.size())
      throw nzcl::Error(
          ErrorCode::invalid_argument,
          fmt::format("nzclCompressorStateSave: the state takes {} bytes, and there is room for {}",
                      saved.size(), room));
    std::memcpy(data, saved.data(), saved.size());
  });
}

nzclResult_t nzclCompressorStateRestore(nzclCompressorState_t state, const void* data, size_t bytes) {
  return guarded([&] {
    require("nzclCompressorStateRestore", state, data);
    state->state.restore({static_cast<const std::byte*>(data), bytes});
  });
}

nzclResult_t nzclCompressorStateGetReport(nzclCompressorState_t state, nzclCompressionReport* report) {
  return guarded([&] {
    require("nzclCompressorStateGetReport", state, report);
    const nzcl::CompressionReport r = state->state.report();
    const nzclCompressionReport ours{
        sizeof ours,           r.steps,         r.elements,          r.sent,
        r.sent_total,          r.non_finite,    r.coded_bytes,       r.element_ratio,
        r.coded_ratio,         r.residual_norm, double{r.threshold}, double{r.scale},
        r.result_residual_norm};
    nzcl::capi::write_sized("nzclCompressorStateGetReport", "nzclCompressionReport", ours, report,
                            kLeastReport);
  });
}

nzclResult_t nzclAllReduceCompressed(const float* send, float* recv, size_t count, nzclRedOp_t op,
                                     nzclCompressorState_t state, nzclComm_t comm, nzclWork_t* work) {
  return start_compressed("nzclAllReduceCompressed", send, recv, count, op, state, comm, nullptr, work);
}

nzclResult_t nzclAllReduceCompressedOnStream(const float* send, float* recv, size_t count, nzclRedOp_t op,
                                             nzclCompressorState_t state, nzclComm_t comm, void* stream,
                                             nzclWork_t* work) {
  return start_compressed("nzclAllReduceCompressedOnStream", send, recv, count, op, state, comm, stream,
                          work);
}

}  // extern "C"

// The C API, on top of the C++ API: its handles own C++ objects, and exceptions become status codes. All
// other work is done by the C++ API.
#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "nzcl/communicator.h"
#include "nzcl/compress.h"
#include "nzcl/log.h"
#include "nzcl/nzcl.h"
#include "runtime/capi/sized.h"
#include "runtime/capi/unique_id.h"
#include "runtime/comm/refuse.h"

struct nzclComm {
  nzcl::Communicator communicator;
};
struct nzclWork {
  nzcl::Work work;
};
struct nzclBuffer {
  nzcl::RegisteredBuffer buffer;
};
struct nzclCompressorState {
  nzcl::CompressorState state;
};

namespace {

using nzcl::ErrorCode;

thread_local std::string last_error;  // the text that nzclGetLastError() returns on this thread

nzclResult_t failed(nzclResult_t code, const char* text) {
  last_error = text;
  return code;
}

/// Runs `body` and returns a status code. An exception becomes the status code of its error.
template <typename Body>
nzclResult_t guarded(Body body) {
  try {
    body();
    return nzclSuccess;
  } catch (const nzcl::Error& e) {
    return failed(static_cast<nzclResult_t>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return failed(nzclSystemError, "out of memory");
  } catch (const std::exception& e) {
    return failed(nzclInternalError, e.what());
  }
}

/// Throws Error{invalid_argument} if one of the pointers is null.
template <typename... Pointers>
void require(const char* call, const Pointers*... pointers) {
  if (((pointers == nullptr) || ...))
    throw nzcl::Error(ErrorCode::invalid_argument, fmt::format("{}: a null pointer was passed", call));
}

/// The C callback gathers the same number of bytes from every rank. So it is called twice: first for the
/// sizes, then for the bytes, which every rank pads to the largest size.
std::vector<std::string> gather(nzclAllgather_t allgather, void* context, int ranks, std::string_view mine) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::uint64_t size = mine.size();
  std::vector<std::uint64_t> sizes(n);
  const auto call = [&](const void* send, void* recv, std::size_t bytes) {
    if (allgather(send, recv, bytes, context) != 0)
      throw nzcl::Error(ErrorCode::system, "the caller's allgather failed");
  };
  call(&size, sizes.data(), sizeof size);
  const std::size_t largest = std::max<std::size_t>(1, *std::max_element(sizes.begin(), sizes.end()));
  std::string padded(mine);
  padded.resize(largest);
  std::string all(largest * n, '\0');
  call(padded.data(), all.data(), largest);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < n; ++i) parts.push_back(all.substr(i * largest, sizes[i]));
  return parts;
}

/// Runs a call that starts an operation: request() checks the call's arguments and returns the request, and
/// start(request) starts it. If request() throws, the call takes its place in the order of operations all the
/// same, as every refused request does.
template <typename MakeRequest, typename Start>
nzclResult_t started(const char* call, nzclComm_t comm, nzclWork_t* work, MakeRequest make_request,
                     Start start) {
  return guarded([&] {
    require(call, comm);
    std::unique_ptr<nzclWork> handle;
    decltype(make_request()) request;
    try {
      require(call, work);
      handle = std::make_unique<nzclWork>();
      request = make_request();
    } catch (const nzcl::Error& e) {
      nzcl::comm::refuse_operation(comm->communicator, e);
      throw;
    } catch (const std::bad_alloc&) {
      nzcl::comm::refuse_operation(comm->communicator, {ErrorCode::system, "out of memory"});
      throw;
    }
    handle->work = start(comm->communicator, request);
    *work = handle.release();
  });
}

nzclResult_t start_dense(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return started(call, comm, work, make_request,
                 [](nzcl::Communicator& c, const nzcl::AllreduceRequest& r) { return c.allreduce(r); });
}

nzclResult_t start_sparse(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return started(
      call, comm, work, make_request,
      [](nzcl::Communicator& c, const nzcl::SparseAllreduceRequest& r) { return c.allreduce_sparse(r); });
}

nzclResult_t start_broadcast(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return started(call, comm, work, make_request,
                 [](nzcl::Communicator& c, const nzcl::BroadcastRequest& r) { return c.broadcast(r); });
}

nzclResult_t start_reduce(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return started(call, comm, work, make_request,
                 [](nzcl::Communicator& c, const nzcl::ReduceRequest& r) { return c.reduce(r); });
}

nzclResult_t start_reduce_scatter(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return started(
      call, comm, work, make_request,
      [](nzcl::Communicator& c, const nzcl::ReduceScatterRequest& r) { return c.reduce_scatter(r); });
}

nzclResult_t start_allgather(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return started(call, comm, work, make_request,
                 [](nzcl::Communicator& c, const nzcl::AllgatherRequest& r) { return c.allgather(r); });
}

/// The sizes of the structures in their first version.
constexpr std::size_t kLeastArgs = offsetof(nzclAllReduceArgs, op) + sizeof(nzclRedOp_t);
constexpr std::size_t kLeastReport = offsetof(nzclCompressionReport, steps) + sizeof(std::uint64_t);
constexpr std::size_t kLeastCollective = sizeof(nzclCollectiveArgs);
constexpr std::size_t kLeastSparseArgs = offsetof(nzclAllReduceSparseArgs, tag) + sizeof(std::uint64_t);
constexpr std::size_t kLeastStatistics = offsetof(nzclStatistics, operations) + sizeof(std::uint64_t);

nzcl::SparseAllreduceRequest sparse_request(const char* call, const void* send, const int64_t* indices,
                                            size_t block_count, size_t block_length, size_t count,
                                            nzclDataType_t type, nzclRedOp_t op) {
  if (block_count > 0) require(call, indices);  // null values and results are refused with the other memory
  nzcl::SparseAllreduceRequest r;
  r.values = send;
  r.indices = {indices, indices == nullptr ? 0 : block_count, nzcl::IndexType::int64};
  r.count = count;
  r.type = static_cast<nzcl::DataType>(type);
  r.op = static_cast<nzcl::ReduceOp>(op);
  r.block_elems = block_length;
  return r;
}

nzclCollectiveArgs read_collective(const char* call, const nzclCollectiveArgs* args) {
  require(call, args);
  return nzcl::capi::read_sized(call, "nzclCollectiveArgs", args, kLeastCollective);
}

/// Fills what all requests have. `ranks` is the number of counts, if there are any.
template <typename Request>
Request collective_request(const nzclCollectiveArgs& a, std::size_t ranks) {
  Request r;
  r.count = a.count;
  r.type = static_cast<nzcl::DataType>(a.type);
  if constexpr (requires { r.op; }) r.op = static_cast<nzcl::ReduceOp>(a.op);
  if constexpr (requires { r.root; }) r.root = a.root;
  if constexpr (requires { r.counts; }) {
    if (a.counts != nullptr) r.counts = {a.counts, ranks};
  }
  if constexpr (requires { r.data; }) {
    r.data = a.recv;
  } else {
    r.input = a.send;
    r.output = a.recv;
  }
  if (a.block_elems != 0) r.block_elems = a.block_elems;
  if (a.bitmap != nullptr) r.bitmap = {a.bitmap, a.bitmap_words};
  r.dense = a.dense != 0;
  r.timeout = std::chrono::nanoseconds(a.timeout_ns);
  r.tag = a.tag;
  return r;
}

/// The same for a call, whose arguments may be wrong.
template <typename Request>
auto collective_request(const char* call, const nzclCollectiveArgs* args, nzclComm_t comm) {
  return [=] {
    return collective_request<Request>(read_collective(call, args),
                                       static_cast<std::size_t>(comm->communicator.size()));
  };
}

}  // namespace

extern "C" {

const char* nzclGetVersion(void) { return NZCL_VERSION_STRING; }

const char* nzclGetErrorString(nzclResult_t result) {
  if (result == nzclSuccess) return "success";
  if (result == nzclInProgress) return "in progress";
  return nzcl::name_of(static_cast<ErrorCode>(result)).data();
}

const char* nzclGetLastError(void) { return last_error.c_str(); }

nzclResult_t nzclSetLogCallback(nzclLogCallback_t callback, void* context) {
  return guarded([&] {
    if (callback == nullptr) return nzcl::set_log_callback({});
    nzcl::set_log_callback([=](nzcl::LogLevel level, std::string_view text) {
      callback(static_cast<nzclLogLevel_t>(level), std::string(text).c_str(), context);
    });
  });
}

nzclResult_t nzclCommInitEnv(nzclComm_t* comm) {
  return guarded([&] {
    require("nzclCommInitEnv", comm);
    *comm = new nzclComm{nzcl::Communicator()};
  });
}

nzclResult_t nzclGetUniqueId(nzclUniqueId* id) {
  return guarded([&] {
    require("nzclGetUniqueId", id);
    nzcl::capi::write_unique_id(nzcl::capi::make_unique_id(), *id);
  });
}

nzclResult_t nzclCommInitRank(nzclComm_t* comm, int nranks, nzclUniqueId id, int rank) {
  return guarded([&] {
    require("nzclCommInitRank", comm);
    const nzcl::capi::UniqueId content = nzcl::capi::read_unique_id(id);
    nzcl::Options options = nzcl::options_from_environment();
    options.bootstrap = "socket";
    options.rank = rank;
    options.world_size = nranks;
    options.master_addr = content.host;
    options.master_port = content.port;
    options.secret = content.secret;
    *comm = new nzclComm{nzcl::Communicator(options)};
  });
}

nzclResult_t nzclCommInitOob(nzclComm_t* comm, int nranks, int rank, nzclAllgather_t allgather,
                             void* context) {
  return guarded([&] {
    require("nzclCommInitOob", comm, reinterpret_cast<const void*>(allgather));
    *comm = new nzclComm{
        nzcl::Communicator(nzcl::options_from_environment(), rank, nranks,
                           [=](std::string_view mine) { return gather(allgather, context, nranks, mine); })};
  });
}

nzclResult_t nzclCommSplit(nzclComm_t comm, int color, int key, nzclComm_t* newcomm) {
  return guarded([&] {
    require("nzclCommSplit", comm, newcomm);
    nzcl::Communicator made = comm->communicator.split(color, key);
    *newcomm = made.valid() ? new nzclComm{std::move(made)} : nullptr;
  });
}

nzclResult_t nzclCommDestroy(nzclComm_t comm) {
  if (comm == nullptr) return nzclSuccess;
  const nzclResult_t result = guarded([&] { comm->communicator.close(); });
  delete comm;
  return result;
}

nzclResult_t nzclCommAbort(nzclComm_t comm, const char* reason) {
  return guarded([&] {
    require("nzclCommAbort", comm);
    comm->communicator.abort(reason == nullptr ? "no reason given" : reason);
  });
}

nzclResult_t nzclCommGetAsyncError(nzclComm_t comm, nzclResult_t* async) {
  return guarded([&] {
    require("nzclCommGetAsyncError", comm, async);
    const auto error = comm->communicator.async_error();
    *async = error ? failed(static_cast<nzclResult_t>(error->code()), error->what()) : nzclSuccess;
  });
}

nzclResult_t nzclCommCount(nzclComm_t comm, int* count) {
  return guarded([&] {
    require("nzclCommCount", comm, count);
    *count = comm->communicator.size();
  });
}

nzclResult_t nzclCommUserRank(nzclComm_t comm, int* rank) {
  return guarded([&] {
    require("nzclCommUserRank", comm, rank);
    *rank = comm->communicator.rank();
  });
}

nzclResult_t nzclCommRegister(nzclComm_t comm, void* data, size_t bytes, nzclBuffer_t* buffer) {
  return guarded([&] {
    require("nzclCommRegister", comm, data, buffer);
    *buffer = new nzclBuffer{comm->communicator.register_buffer(data, bytes)};
  });
}

nzclResult_t nzclCommDeregister(nzclComm_t comm, nzclBuffer_t buffer) {
  if (buffer == nullptr) return nzclSuccess;
  return guarded([&] {
    require("nzclCommDeregister", comm);
    delete buffer;
  });
}

nzclResult_t nzclAllReduce(const void* send, void* recv, size_t count, nzclDataType_t type, nzclRedOp_t op,
                           nzclComm_t comm, nzclWork_t* work) {
  return start_dense("nzclAllReduce", comm, work, [&] {
    nzcl::AllreduceRequest r;
    r.input = send;
    r.output = recv;
    r.count = count;
    r.type = static_cast<nzcl::DataType>(type);
    r.op = static_cast<nzcl::ReduceOp>(op);
    return r;
  });
}

nzclResult_t nzclAllReduceEx(const nzclAllReduceArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start_dense("nzclAllReduceEx", comm, work, [&] {
    require("nzclAllReduceEx", args);
    const auto a = nzcl::capi::read_sized("nzclAllReduceEx", "nzclAllReduceArgs", args, kLeastArgs);
    nzcl::AllreduceRequest r;
    r.input = a.send;
    r.output = a.recv;
    r.count = a.count;
    r.type = static_cast<nzcl::DataType>(a.type);
    r.op = static_cast<nzcl::ReduceOp>(a.op);
    if (a.block_elems != 0) r.block_elems = a.block_elems;
    if (a.bitmap != nullptr) r.bitmap = {a.bitmap, a.bitmap_words};
    r.dense = a.dense != 0;
    r.timeout = std::chrono::nanoseconds(a.timeout_ns);
    r.tag = a.tag;
    r.wire_type = static_cast<nzcl::WireType>(a.wire_type);
    r.algorithm = static_cast<nzcl::Algorithm>(a.algorithm);
    return r;
  });
}

nzclResult_t nzclAllReduceSparse(const nzclAllReduceSparseArgs* args, nzclComm_t comm, nzclWork_t* work) {
  constexpr const char* kName = "nzclAllReduceSparse";
  return start_sparse(kName, comm, work, [&] {
    require(kName, args);
    const auto a = nzcl::capi::read_sized(kName, "nzclAllReduceSparseArgs", args, kLeastSparseArgs);
    if (a.index_count > 0) require(kName, a.indices);
    nzcl::SparseAllreduceRequest r;
    r.values = a.values;
    r.indices = {a.indices, a.indices == nullptr ? 0 : a.index_count,
                 static_cast<nzcl::IndexType>(a.index_type)};
    r.count = a.count;
    r.type = static_cast<nzcl::DataType>(a.type);
    r.op = static_cast<nzcl::ReduceOp>(a.op);
    r.block_elems = a.block_elems == 0 ? 1 : a.block_elems;
    r.output = a.output;
    r.packed_values = a.packed_values;
    r.packed_indices = {a.packed_indices, static_cast<nzcl::IndexType>(a.index_type)};
    r.packed_capacity = a.packed_capacity;
    if (a.packed_grow != nullptr) {
      r.packed_grow = [grow = a.packed_grow, context = a.packed_grow_context,
                       type = a.index_type](std::uint64_t blocks) -> nzcl::PackedMemory {
        void *values = nullptr, *indices = nullptr;
        if (grow(blocks, &values, &indices, context) != 0)
          throw nzcl::Error(ErrorCode::system, "the caller's packed_grow failed");
        return {values, {indices, static_cast<nzcl::IndexType>(type)}};
      };
    }
    r.sum_duplicates = a.sum_duplicates != 0;
    r.wire_type = static_cast<nzcl::WireType>(a.wire_type);
    r.algorithm = static_cast<nzcl::Algorithm>(a.algorithm);
    r.timeout = std::chrono::nanoseconds(a.timeout_ns);
    r.tag = a.tag;
    return r;
  });
}

nzclResult_t nzclAllReduceSparseBlock(const void* send, const int64_t* indices, size_t block_count,
                                      size_t block_length, void* recv, size_t recv_count, nzclDataType_t type,
                                      nzclRedOp_t op, nzclComm_t comm, nzclWork_t* work) {
  constexpr const char* kName = "nzclAllReduceSparseBlock";
  return start_sparse(kName, comm, work, [&] {
    auto r = sparse_request(kName, send, indices, block_count, block_length, recv_count, type, op);
    r.output = recv;
    return r;
  });
}

nzclResult_t nzclAllReduceSparseBlockPacked(const void* send, const int64_t* indices, size_t block_count,
                                            size_t block_length, void* recv, size_t recv_block_capacity,
                                            size_t count, nzclDataType_t type, nzclRedOp_t op,
                                            nzclComm_t comm, nzclWork_t* work) {
  constexpr const char* kName = "nzclAllReduceSparseBlockPacked";
  return start_sparse(kName, comm, work, [&] {
    auto r = sparse_request(kName, send, indices, block_count, block_length, count, type, op);
    r.packed_values = recv;
    r.packed_capacity = recv_block_capacity;
    return r;
  });
}

nzclResult_t nzclBroadcast(void* data, size_t count, nzclDataType_t type, int root, nzclComm_t comm,
                           nzclWork_t* work) {
  return start_broadcast("nzclBroadcast", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.recv = data;
    a.count = count;
    a.type = type;
    a.root = root;
    return collective_request<nzcl::BroadcastRequest>(a, 0);
  });
}

nzclResult_t nzclReduce(const void* send, void* recv, size_t count, nzclDataType_t type, nzclRedOp_t op,
                        int root, nzclComm_t comm, nzclWork_t* work) {
  return start_reduce("nzclReduce", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.send = send;
    a.recv = recv;
    a.count = count;
    a.type = type;
    a.op = op;
    a.root = root;
    return collective_request<nzcl::ReduceRequest>(a, 0);
  });
}

nzclResult_t nzclReduceScatter(const void* send, void* recv, size_t recv_count, nzclDataType_t type,
                               nzclRedOp_t op, nzclComm_t comm, nzclWork_t* work) {
  return start_reduce_scatter("nzclReduceScatter", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.send = send;
    a.recv = recv;
    a.count = recv_count;
    a.type = type;
    a.op = op;
    return collective_request<nzcl::ReduceScatterRequest>(a, 0);
  });
}

nzclResult_t nzclAllGather(const void* send, void* recv, size_t send_count, nzclDataType_t type,
                           nzclComm_t comm, nzclWork_t* work) {
  return start_allgather("nzclAllGather", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.send = send;
    a.recv = recv;
    a.count = send_count;
    a.type = type;
    return collective_request<nzcl::AllgatherRequest>(a, 0);
  });
}

nzclResult_t nzclBroadcastEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start_broadcast("nzclBroadcastEx", comm, work,
                         collective_request<nzcl::BroadcastRequest>("nzclBroadcastEx", args, comm));
}

nzclResult_t nzclReduceEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start_reduce("nzclReduceEx", comm, work,
                      collective_request<nzcl::ReduceRequest>("nzclReduceEx", args, comm));
}

nzclResult_t nzclReduceScatterEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start_reduce_scatter(
      "nzclReduceScatterEx", comm, work,
      collective_request<nzcl::ReduceScatterRequest>("nzclReduceScatterEx", args, comm));
}

nzclResult_t nzclAllGatherEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start_allgather("nzclAllGatherEx", comm, work,
                         collective_request<nzcl::AllgatherRequest>("nzclAllGatherEx", args, comm));
}

nzclResult_t nzclBarrier(nzclComm_t comm) {
  return guarded([&] {
    require("nzclBarrier", comm);
    comm->communicator.barrier();
  });
}

nzclResult_t nzclWorkTest(nzclWork_t work, int* done) {
  return guarded([&] {
    require("nzclWorkTest", work, done);
    *done = work->work.test() ? 1 : 0;
  });
}

nzclResult_t nzclWorkWait(nzclWork_t work, int64_t timeout_ns) {
  bool done = true;
  const nzclResult_t result = guarded([&] {
    require("nzclWorkWait", work);
    if (timeout_ns < 0) {
      work->work.wait();
    } else {
      done = work->work.wait(std::chrono::nanoseconds(timeout_ns));
    }
  });
  return result == nzclSuccess && !done ? nzclInProgress : result;
}

nzclResult_t nzclWorkUnionBitmap(nzclWork_t work, const uint64_t** words, size_t* blocks) {
  return guarded([&] {
    require("nzclWorkUnionBitmap", work, words, blocks);
    *words = work->work.union_bitmap().data();
    *blocks = work->work.result_blocks();
  });
}

nzclResult_t nzclWorkPackedIndices(nzclWork_t work, const int64_t** indices, size_t* blocks) {
  return guarded([&] {
    require("nzclWorkPackedIndices", work, indices, blocks);
    const auto all = work->work.packed_indices();
    *indices = all.data();
    *blocks = all.size();
  });
}

nzclResult_t nzclWorkOnComplete(nzclWork_t work, nzclCallback_t callback, void* context) {
  return guarded([&] {
    require("nzclWorkOnComplete", work, reinterpret_cast<const void*>(callback));
    work->work.on_complete([=](const nzcl::Error* error) {
      callback(error == nullptr ? nzclSuccess : static_cast<nzclResult_t>(error->code()),
               error == nullptr ? "" : error->what(), context);
    });
  });
}

nzclResult_t nzclWorkFree(nzclWork_t work) {
  delete work;
  return nzclSuccess;
}

nzclResult_t nzclCommGetStatistics(nzclComm_t comm, nzclStatistics* statistics) {
  return guarded([&] {
    require("nzclCommGetStatistics", comm, statistics);
    const nzcl::Statistics s = comm->communicator.statistics();
    const nzclStatistics ours{sizeof ours,      s.operations,   s.messages_sent, s.bytes_sent,
                              s.bytes_received, s.bytes_copied, s.blocks_scanned};
    nzcl::capi::write_sized("nzclCommGetStatistics", "nzclStatistics", ours, statistics, kLeastStatistics);
  });
}

nzclResult_t nzclCompressorStateCreate(const char* compressor, const nzclLayer_t* layers, size_t layer_count,
                                       nzclCompressorState_t* state) {
  return guarded([&] {
    require("nzclCompressorStateCreate", compressor, state);
    if (layer_count > 0) require("nzclCompressorStateCreate", layers);
    std::vector<nzcl::Layer> all;
    for (size_t i = 0; i < layer_count; ++i) {
      // A bin that does not fit is as wrong as the largest one that does.
      const std::uint64_t bin = std::min<std::uint64_t>(layers[i].bin, UINT32_MAX);
      all.push_back({.elements = layers[i].elements, .bin = static_cast<std::uint32_t>(bin)});
    }
    *state = new nzclCompressorState{nzcl::CompressorState(nzcl::compressor_from_text(compressor), all)};
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
    const nzclCompressionReport ours{sizeof ours,   r.steps,         r.elements,          r.sent,
                                     r.sent_total,  r.non_finite,    r.coded_bytes,       r.element_ratio,
                                     r.coded_ratio, r.residual_norm, double{r.threshold}, double{r.scale}};
    nzcl::capi::write_sized("nzclCompressorStateGetReport", "nzclCompressionReport", ours, report,
                            kLeastReport);
  });
}

nzclResult_t nzclAllReduceCompressed(const float* send, float* recv, size_t count, nzclRedOp_t op,
                                     nzclCompressorState_t state, nzclComm_t comm, nzclWork_t* work) {
  constexpr const char* kName = "nzclAllReduceCompressed";
  return started(
      kName, comm, work,
      [&] {
        require(kName, state);
        if (count != state->state.elements())
          throw nzcl::Error(ErrorCode::invalid_argument,
                            fmt::format("{}: count is {}, and the state has {} elements", kName, count,
                                        state->state.elements()));
        return nzcl::CompressedAllreduceRequest{
            .state = &state->state, .input = send, .output = recv, .op = static_cast<nzcl::ReduceOp>(op)};
      },
      [](nzcl::Communicator& c, const nzcl::CompressedAllreduceRequest& r) {
        return c.allreduce_compressed(r);
      });
}

}  // extern "C"

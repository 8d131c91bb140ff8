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

/// The sizes of the structures in their first version.
constexpr std::size_t kLeastArgs = offsetof(nzclAllReduceArgs, op) + sizeof(nzclRedOp_t);
constexpr std::size_t kLeastStatistics = offsetof(nzclStatistics, operations) + sizeof(std::uint64_t);

nzcl::SparseAllreduceRequest sparse_request(const char* call, const void* send, const int64_t* indices,
                                            size_t block_count, size_t block_length, size_t count,
                                            nzclDataType_t type, nzclRedOp_t op) {
  if (block_count > 0) require(call, indices);  // null values and results are refused with the other memory
  nzcl::SparseAllreduceRequest r;
  r.values = send;
  r.indices = {indices, indices == nullptr ? 0 : block_count};
  r.count = count;
  r.type = static_cast<nzcl::DataType>(type);
  r.op = static_cast<nzcl::ReduceOp>(op);
  r.block_elems = block_length;
  return r;
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
    *blocks = work->work.statistics().blocks;
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

}  // extern "C"

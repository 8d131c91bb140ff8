// The C API over the C++ one: handles own C++ objects, exceptions become status codes, nothing else happens
// here.
#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "nzcl/communicator.h"
#include "nzcl/nzcl.h"
#include "runtime/capi/unique_id.h"

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

thread_local std::string last_error;  // of this thread, as documented

nzclResult_t failed(nzclResult_t code, const char* text) {
  last_error = text;
  return code;
}

/// Runs `body`; every exception becomes a status.
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

template <typename... Pointers>
void require(const char* call, const Pointers*... pointers) {
  if (((pointers == nullptr) || ...))
    throw nzcl::Error(ErrorCode::invalid_argument, fmt::format("{}: a null pointer was passed", call));
}

/// The C callback moves equal sizes: sizes first, then bytes padded to the largest.
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

nzclResult_t start(nzclComm_t comm, nzclWork_t* work, const auto& request) {
  return guarded([&] {
    require("allreduce", comm, work);
    *work = new nzclWork{comm->communicator.allreduce(request)};
  });
}

nzcl::SparseAllreduceRequest sparse_request(const void* send, const int64_t* indices, size_t block_count,
                                            size_t block_length, size_t count, nzclDataType_t type,
                                            nzclRedOp_t op) {
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

const char* nzclGetVersion(void) { return NZCL_VERSION; }

const char* nzclGetErrorString(nzclResult_t result) {
  if (result == nzclSuccess) return "success";
  if (result == nzclInProgress) return "in progress";
  return nzcl::name_of(static_cast<ErrorCode>(result)).data();
}

const char* nzclGetLastError(void) { return last_error.c_str(); }

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
    const nzcl::capi::UniqueId place = nzcl::capi::read_unique_id(id);
    nzcl::Options options = nzcl::options_from_environment();
    options.bootstrap = "socket";
    options.rank = rank;
    options.world_size = nranks;
    options.master_addr = place.host;
    options.master_port = place.port;
    options.secret = place.secret;
    *comm = new nzclComm{nzcl::Communicator(options)};
  });
}

nzclResult_t nzclCommInitOob(nzclComm_t* comm, int nranks, int rank, nzclAllgather_t allgather,
                             void* context) {
  return guarded([&] {
    require("nzclCommInitOob", comm);
    if (allgather == nullptr)
      throw nzcl::Error(ErrorCode::invalid_argument, "nzclCommInitOob: allgather is null");
    *comm = new nzclComm{
        nzcl::Communicator(nzcl::options_from_environment(), rank, nranks,
                           [=](std::string_view mine) { return gather(allgather, context, nranks, mine); })};
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
    require("nzclCommRegister", comm, buffer);
    *buffer = new nzclBuffer{comm->communicator.register_buffer(data, bytes)};
  });
}

nzclResult_t nzclCommDeregister(nzclComm_t, nzclBuffer_t buffer) {
  delete buffer;
  return nzclSuccess;
}

nzclResult_t nzclAllReduce(const void* send, void* recv, size_t count, nzclDataType_t type, nzclRedOp_t op,
                           nzclComm_t comm, nzclWork_t* work) {
  nzcl::AllreduceRequest r;
  r.input = send;
  r.output = recv;
  r.count = count;
  r.type = static_cast<nzcl::DataType>(type);
  r.op = static_cast<nzcl::ReduceOp>(op);
  return start(comm, work, r);
}

nzclResult_t nzclAllReduceEx(const nzclAllReduceArgs* args, nzclComm_t comm, nzclWork_t* work) {
  if (args == nullptr || args->size < sizeof(nzclAllReduceArgs)) {
    return failed(nzclInvalidArgument, "nzclAllReduceEx: args->size is not sizeof(nzclAllReduceArgs)");
  }
  nzcl::AllreduceRequest r;
  r.input = args->send;
  r.output = args->recv;
  r.count = args->count;
  r.type = static_cast<nzcl::DataType>(args->type);
  r.op = static_cast<nzcl::ReduceOp>(args->op);
  if (args->block_elems != 0) r.block_elems = args->block_elems;
  if (args->bitmap != nullptr) r.bitmap = {args->bitmap, args->bitmap_words};
  r.dense = args->dense != 0;
  return start(comm, work, r);
}

nzclResult_t nzclAllReduceSparseBlock(const void* send, const int64_t* indices, size_t block_count,
                                      size_t block_length, void* recv, size_t recv_count, nzclDataType_t type,
                                      nzclRedOp_t op, nzclComm_t comm, nzclWork_t* work) {
  if (recv == nullptr && recv_count > 0)
    return failed(nzclInvalidArgument, "nzclAllReduceSparseBlock: recv is null");
  if (indices == nullptr && block_count > 0)
    return failed(nzclInvalidArgument, "nzclAllReduceSparseBlock: indices is null");
  auto r = sparse_request(send, indices, block_count, block_length, recv_count, type, op);
  r.output = recv;
  return start(comm, work, r);
}

nzclResult_t nzclAllReduceSparseBlockPacked(const void* send, const int64_t* indices, size_t block_count,
                                            size_t block_length, void* recv, size_t recv_block_capacity,
                                            size_t count, nzclDataType_t type, nzclRedOp_t op,
                                            nzclComm_t comm, nzclWork_t* work) {
  if (indices == nullptr && block_count > 0)
    return failed(nzclInvalidArgument, "nzclAllReduceSparseBlockPacked: indices is null");
  auto r = sparse_request(send, indices, block_count, block_length, count, type, op);
  r.packed_values = recv;
  r.packed_capacity = recv_block_capacity;
  return start(comm, work, r);
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
    if (statistics->size < sizeof(nzclStatistics)) {
      throw nzcl::Error(ErrorCode::invalid_argument,
                        "nzclCommGetStatistics: statistics->size is not sizeof(nzclStatistics)");
    }
    const nzcl::Statistics s = comm->communicator.statistics();
    *statistics = {statistics->size, s.operations,   s.messages_sent, s.bytes_sent,
                   s.bytes_received, s.bytes_packed, s.blocks_scanned};
  });
}

}  // extern "C"

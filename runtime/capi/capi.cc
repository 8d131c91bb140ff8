// The C API, on top of the C++ API, which does all the work: communicators, buffers and works. Operations
// are started in allreduce.cc, collectives.cc and compress.cc.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/log.h"
#include "runtime/capi/call.h"
#include "runtime/capi/sized.h"
#include "runtime/capi/unique_id.h"

namespace {

using nzcl::ErrorCode;
using nzcl::capi::failed;
using nzcl::capi::guarded;
using nzcl::capi::require;

/// The size of nzclStatistics in its first version.
constexpr std::size_t kLeastStatistics = offsetof(nzclStatistics, operations) + sizeof(std::uint64_t);

thread_local std::string last_error;  // the text that nzclGetLastError() returns on this thread

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

}  // namespace

nzclResult_t nzcl::capi::failed(nzclResult_t code, const char* text) {
  last_error = text;
  return code;
}

extern "C" {

const char* nzclGetVersion(void) { return NZCL_VERSION_STRING; }

const char* nzclGetErrorString(nzclResult_t result) {
  if (result == nzclSuccess) return "success";
  if (result == nzclInProgress) return "in progress";
  if (result < nzclSuccess || result > nzclInProgress) return "no status that nzcl returns";
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
    if (nranks < 1 || rank < 0 || rank >= nranks)  // a negative number would stand for the launcher's
      throw nzcl::Error(
          ErrorCode::invalid_argument,
          fmt::format("nzclCommInitRank: rank {} of {} does not exist; ranks count from 0", rank, nranks));
    const nzcl::capi::UniqueId content = nzcl::capi::read_unique_id(id);
    nzcl::Options options = nzcl::options_from_environment();
    options.bootstrap = nzcl::Bootstrap::socket;
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

nzclResult_t nzclCommShrink(nzclComm_t comm, const int* excludeRanksList, int excludeRanksCount,
                            nzclComm_t* newcomm, int shrinkFlags) {
  return guarded([&] {
    require("nzclCommShrink", comm, newcomm);
    if (excludeRanksCount < 0 || (excludeRanksCount > 0 && excludeRanksList == nullptr))
      throw nzcl::Error(nzcl::ErrorCode::invalid_argument,
                        "nzclCommShrink: the list of ranks is null or has a negative length");
    if (shrinkFlags != NZCL_SHRINK_DEFAULT && shrinkFlags != NZCL_SHRINK_ABORT)
      throw nzcl::Error(nzcl::ErrorCode::invalid_argument, "nzclCommShrink: unknown flags");
    if (shrinkFlags == NZCL_SHRINK_ABORT) comm->communicator.abort("nzclCommShrink with NZCL_SHRINK_ABORT");
    *newcomm = new nzclComm{comm->communicator.shrink(
        {.leave_out = {excludeRanksList, static_cast<std::size_t>(excludeRanksCount)}})};
  });
}

nzclResult_t nzclCommGrow(nzclComm_t comm, int nranks, const char* place, nzclComm_t* newcomm) {
  return guarded([&] {
    require("nzclCommGrow", comm, newcomm);
    *newcomm =
        new nzclComm{comm->communicator.grow({.size = nranks, .place = place == nullptr ? "" : place})};
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

nzclResult_t nzclCommRegisterDevice(nzclComm_t comm, void* data, size_t bytes, nzclBuffer_t* buffer) {
  return guarded([&] {
    require("nzclCommRegisterDevice", comm, data, buffer);
    *buffer = new nzclBuffer{comm->communicator.register_buffer(data, bytes, nzcl::MemoryKind::device)};
  });
}

nzclResult_t nzclCommDeviceStream(nzclComm_t comm, nzclBuffer_t buffer, void** stream) {
  return guarded([&] {
    require("nzclCommDeviceStream", comm, buffer, stream);
    *stream = comm->communicator.device_stream(buffer->buffer);
  });
}

nzclResult_t nzclCommDeregister(nzclComm_t comm, nzclBuffer_t buffer) {
  if (buffer == nullptr) return nzclSuccess;
  return guarded([&] {
    require("nzclCommDeregister", comm);
    delete buffer;
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

nzclResult_t nzclWorkEnqueueWait(nzclWork_t work, void* stream) {
  return guarded([&] {
    require("nzclWorkEnqueueWait", work);
    work->work.enqueue_wait(stream);
  });
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
    const nzclStatistics ours{sizeof ours,      s.operations,     s.messages_sent,
                              s.bytes_sent,     s.bytes_received, s.bytes_copied,
                              s.blocks_scanned, s.gpu_sums,       s.gpu_direct_bytes};
    nzcl::capi::write_sized("nzclCommGetStatistics", "nzclStatistics", ours, statistics, kLeastStatistics);
  });
}

}  // extern "C"

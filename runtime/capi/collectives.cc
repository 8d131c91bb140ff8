// nzclBroadcast, nzclReduce, nzclReduceScatter and nzclAllGather.
#include <chrono>
#include <cstddef>

#include "runtime/capi/call.h"
#include "runtime/capi/sized.h"

namespace {

using nzcl::capi::require;

/// The size of nzclCollectiveArgs in its first version.
constexpr std::size_t kLeastCollective = offsetof(nzclCollectiveArgs, tag) + sizeof(uint64_t);

nzcl::Work start(nzcl::Communicator& c, const nzcl::BroadcastRequest& r) { return c.broadcast(r); }
nzcl::Work start(nzcl::Communicator& c, const nzcl::ReduceRequest& r) { return c.reduce(r); }
nzcl::Work start(nzcl::Communicator& c, const nzcl::ReduceScatterRequest& r) { return c.reduce_scatter(r); }
nzcl::Work start(nzcl::Communicator& c, const nzcl::AllgatherRequest& r) { return c.allgather(r); }

/// Starts the collective whose request make_request() returns.
nzclResult_t start(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return nzcl::capi::started(call, comm, work, make_request,
                             [](nzcl::Communicator& c, const auto& request) { return start(c, request); });
}

nzclCollectiveArgs read_collective(const char* call, const nzclCollectiveArgs* args) {
  require(call, args);
  return nzcl::capi::read_sized(call, "nzclCollectiveArgs", args, kLeastCollective);
}

/// Fills what all requests have. `call` is the name of the call, and `ranks` is the number of counts, if
/// there are any.
template <typename Request>
Request collective_request(const char* call, const nzclCollectiveArgs& a, std::size_t ranks) {
  Request r;
  r.count = a.count;
  r.type = nzcl::capi::data_type(call, a.type);
  if constexpr (requires { r.op; }) r.op = nzcl::capi::reduce_op(call, a.op);
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
  r.stream = a.stream;
  return r;
}

/// The same for a call, whose arguments may be wrong.
template <typename Request>
auto collective_request(const char* call, const nzclCollectiveArgs* args, nzclComm_t comm) {
  return [=] {
    return collective_request<Request>(call, read_collective(call, args),
                                       static_cast<std::size_t>(comm->communicator.size()));
  };
}

}  // namespace

extern "C" {

nzclResult_t nzclBroadcast(void* data, size_t count, nzclDataType_t type, int root, nzclComm_t comm,
                           nzclWork_t* work) {
  return start("nzclBroadcast", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.recv = data;
    a.count = count;
    a.type = type;
    a.root = root;
    return collective_request<nzcl::BroadcastRequest>("nzclBroadcast", a, 0);
  });
}

nzclResult_t nzclReduce(const void* send, void* recv, size_t count, nzclDataType_t type, nzclRedOp_t op,
                        int root, nzclComm_t comm, nzclWork_t* work) {
  return start("nzclReduce", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.send = send;
    a.recv = recv;
    a.count = count;
    a.type = type;
    a.op = op;
    a.root = root;
    return collective_request<nzcl::ReduceRequest>("nzclReduce", a, 0);
  });
}

nzclResult_t nzclReduceScatter(const void* send, void* recv, size_t recv_count, nzclDataType_t type,
                               nzclRedOp_t op, nzclComm_t comm, nzclWork_t* work) {
  return start("nzclReduceScatter", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.send = send;
    a.recv = recv;
    a.count = recv_count;
    a.type = type;
    a.op = op;
    return collective_request<nzcl::ReduceScatterRequest>("nzclReduceScatter", a, 0);
  });
}

nzclResult_t nzclAllGather(const void* send, void* recv, size_t send_count, nzclDataType_t type,
                           nzclComm_t comm, nzclWork_t* work) {
  return start("nzclAllGather", comm, work, [&] {
    nzclCollectiveArgs a{};
    a.send = send;
    a.recv = recv;
    a.count = send_count;
    a.type = type;
    return collective_request<nzcl::AllgatherRequest>("nzclAllGather", a, 0);
  });
}

nzclResult_t nzclBroadcastEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start("nzclBroadcastEx", comm, work,
               collective_request<nzcl::BroadcastRequest>("nzclBroadcastEx", args, comm));
}

nzclResult_t nzclReduceEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start("nzclReduceEx", comm, work,
               collective_request<nzcl::ReduceRequest>("nzclReduceEx", args, comm));
}

nzclResult_t nzclReduceScatterEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start("nzclReduceScatterEx", comm, work,
               collective_request<nzcl::ReduceScatterRequest>("nzclReduceScatterEx", args, comm));
}

nzclResult_t nzclAllGatherEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work) {
  return start("nzclAllGatherEx", comm, work,
               collective_request<nzcl::AllgatherRequest>("nzclAllGatherEx", args, comm));
}

}  // extern "C"

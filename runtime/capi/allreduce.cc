// nzclAllReduce and its variants.
#include <chrono>
#include <cstddef>

#include "runtime/capi/call.h"
#include "runtime/capi/sized.h"

namespace {

using nzcl::ErrorCode;
using nzcl::capi::data_type;
using nzcl::capi::enumerator;
using nzcl::capi::reduce_op;
using nzcl::capi::require;

/// The sizes of the structures in their first version.
constexpr std::size_t kLeastArgs = offsetof(nzclAllReduceArgs, op) + sizeof(nzclRedOp_t);
constexpr std::size_t kLeastSparseArgs = offsetof(nzclAllReduceSparseArgs, tag) + sizeof(std::uint64_t);

/// Starts the allreduce, dense or sparse, that make_request() returns.
nzclResult_t start_allreduce(const char* call, nzclComm_t comm, nzclWork_t* work, auto make_request) {
  return nzcl::capi::started(call, comm, work, make_request, [](nzcl::Communicator& c, const auto& request) {
    if constexpr (requires { request.indices; }) {
      return c.allreduce_sparse(request);
    } else {
      return c.allreduce(request);
    }
  });
}

nzcl::SparseAllreduceRequest sparse_request(const char* call, const void* send, const int64_t* indices,
                                            size_t block_count, size_t block_length, size_t count,
                                            nzclDataType_t type, nzclRedOp_t op) {
  if (block_count > 0) require(call, indices);  // null values and results are refused with the other memory
  nzcl::SparseAllreduceRequest r;
  r.values = send;
  r.indices = {indices, indices == nullptr ? 0 : block_count, nzcl::IndexType::int64};
  r.count = count;
  r.type = data_type(call, type);
  r.op = reduce_op(call, op);
  r.block_elems = block_length;
  return r;
}

}  // namespace

extern "C" {

nzclResult_t nzclAllReduce(const void* send, void* recv, size_t count, nzclDataType_t type, nzclRedOp_t op,
                           nzclComm_t comm, nzclWork_t* work) {
  return start_allreduce("nzclAllReduce", comm, work, [&] {
    nzcl::AllreduceRequest r;
    r.input = send;
    r.output = recv;
    r.count = count;
    r.type = data_type("nzclAllReduce", type);
    r.op = reduce_op("nzclAllReduce", op);
    return r;
  });
}

nzclResult_t nzclAllReduceEx(const nzclAllReduceArgs* args, nzclComm_t comm, nzclWork_t* work) {
  constexpr const char* kName = "nzclAllReduceEx";
  return start_allreduce(kName, comm, work, [&] {
    require(kName, args);
    const auto a = nzcl::capi::read_sized(kName, "nzclAllReduceArgs", args, kLeastArgs);
    nzcl::AllreduceRequest r;
    r.input = a.send;
    r.output = a.recv;
    r.count = a.count;
    r.type = data_type(kName, a.type);
    r.op = reduce_op(kName, a.op);
    if (a.block_elems != 0) r.block_elems = a.block_elems;
    if (a.bitmap != nullptr) r.bitmap = {a.bitmap, a.bitmap_words};
    r.dense = a.dense != 0;
    r.timeout = std::chrono::nanoseconds(a.timeout_ns);
    r.tag = a.tag;
    r.wire_type = enumerator<nzcl::WireType>(kName, "wire_type", a.wire_type);
    r.algorithm = enumerator<nzcl::Algorithm>(kName, "algorithm", a.algorithm);
    r.expected_density = a.expected_density;
    r.stream = a.stream;
    return r;
  });
}

nzclResult_t nzclAllReduceSparse(const nzclAllReduceSparseArgs* args, nzclComm_t comm, nzclWork_t* work) {
  constexpr const char* kName = "nzclAllReduceSparse";
  return start_allreduce(kName, comm, work, [&] {
    require(kName, args);
    const auto a = nzcl::capi::read_sized(kName, "nzclAllReduceSparseArgs", args, kLeastSparseArgs);
    if (a.index_count > 0) require(kName, a.indices);
    nzcl::SparseAllreduceRequest r;
    r.values = a.values;
    const auto index_type = enumerator<nzcl::IndexType>(kName, "index type", a.index_type);
    r.indices = {a.indices, a.indices == nullptr ? 0 : a.index_count, index_type};
    r.count = a.count;
    r.type = data_type(kName, a.type);
    r.op = reduce_op(kName, a.op);
    r.block_elems = a.block_elems == 0 ? 1 : a.block_elems;
    r.output = a.output;
    r.packed_values = a.packed_values;
    r.packed_indices = {a.packed_indices, index_type};
    r.packed_capacity = a.packed_capacity;
    if (a.packed_grow != nullptr) {
      r.packed_grow = [grow = a.packed_grow, context = a.packed_grow_context,
                       index_type](std::uint64_t blocks) -> nzcl::PackedMemory {
        void *values = nullptr, *indices = nullptr;
        if (grow(blocks, &values, &indices, context) != 0)
          throw nzcl::Error(ErrorCode::system, "the caller's packed_grow failed");
        return {values, {indices, index_type}};
      };
    }
    r.sum_duplicates = a.sum_duplicates != 0;
    r.wire_type = enumerator<nzcl::WireType>(kName, "wire_type", a.wire_type);
    r.algorithm = enumerator<nzcl::Algorithm>(kName, "algorithm", a.algorithm);
    r.expected_density = a.expected_density;
    r.timeout = std::chrono::nanoseconds(a.timeout_ns);
    r.tag = a.tag;
    r.stream = a.stream;
    r.packed_count = a.packed_count;
    return r;
  });
}

nzclResult_t nzclAllReduceSparseBlock(const void* send, const int64_t* indices, size_t block_count,
                                      size_t block_length, void* recv, size_t recv_count, nzclDataType_t type,
                                      nzclRedOp_t op, nzclComm_t comm, nzclWork_t* work) {
  constexpr const char* kName = "nzclAllReduceSparseBlock";
  return start_allreduce(kName, comm, work, [&] {
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
  return start_allreduce(kName, comm, work, [&] {
    auto r = sparse_request(kName, send, indices, block_count, block_length, count, type, op);
    r.packed_values = recv;
    r.packed_capacity = recv_block_capacity;
    return r;
  });
}

}  // extern "C"

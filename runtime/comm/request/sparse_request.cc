// Checks a request for an allreduce of a sparse stream.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "nzcl/error.h"
#include "runtime/base/divide.h"
#include "runtime/comm/request/request_checks.h"
#include "runtime/comm/request/requests.h"
#include "runtime/gpu/find_gpu.h"
#include "runtime/operation/index_memory.h"
#include "runtime/wire/checks.h"

namespace nzcl::comm {
namespace {

constexpr std::string_view kStreamCall = "allreduce";

[[noreturn]] void reject_stream(const std::string& text) { reject_request(kStreamCall, text); }

bool is_aligned(const void* at, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(at) % alignment == 0;
}

/// The list, wherever it is. One of which a part is on a GPU is looked at later.
void take_list(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const std::uint64_t n = r.indices.size() * r.block_elems * element_bytes(r.type);
  if (static_cast<int>(r.indices.type()) >= kIndexTypes)
    reject_stream(fmt::format("index type {} does not exist", static_cast<int>(r.indices.type())));
  auto values = covered_anywhere(kStreamCall, registrations, r.values, n, element_bytes(r.type), "values");
  p.input_bytes = bytes_at(r.values, n);
  const std::uint64_t each = index_bytes(r.indices.type());
  auto index_gpu = registrations.gpu_of(bytes_at(r.indices.data(), r.indices.size() * each));
  if (!values.gpu && !index_gpu) {
    p.input.base = p.input_bytes.data();
    p.input.region = values.region.get();
    p.regions[0] = std::move(values.region);
    return;
  }
  if (r.indices.data() == nullptr) reject_stream("indices is null");
  if (!is_aligned(r.indices.data(), each))
    reject_stream(fmt::format("indices is not aligned to its element's {} bytes", each));
  p.stream_on_gpu->list = GpuList{.values = p.input_bytes.data(),
                                  .value_bytes = n,
                                  .indices = r.indices,
                                  .values_on_gpu = values.gpu != nullptr,
                                  .indices_on_gpu = index_gpu != nullptr,
                                  .sum_duplicates = r.sum_duplicates};
  if (values.gpu) take_gpu(std::move(values.gpu), "values", p);
  if (index_gpu) take_gpu(std::move(index_gpu), "indices", p);
  p.known = Prepared::Input::staged_list;
}

/// A packed result is on a GPU with all that belongs to it, or not at all.
void take_packed_on_gpu(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const auto gpu_of = [&](const void* at, std::uint64_t bytes) {
    return at == nullptr ? nullptr : registrations.gpu_of(bytes_at(at, std::max<std::uint64_t>(bytes, 1)));
  };
  auto values = gpu_of(r.packed_values, p.output_bytes.size());
  auto indices = gpu_of(r.packed_indices.data(), r.packed_capacity * index_bytes(r.packed_indices.type()));
  if (!values && !indices) return;
  const auto refuse_host = [&](const char* name, const std::shared_ptr<gpu::Gpu>& other) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: {} is host memory, or not registered, and the rest of the packed result is memory "
                    "of {}; both must be on the same GPU",
                    kStreamCall, name, other->name()));
  };
  if (!values) refuse_host("packed_values", indices);
  if (!indices && r.packed_indices.data() != nullptr) refuse_host("packed_indices", values);
  if (r.packed_grow)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: packed_grow cannot make memory of a GPU larger; give enough packed_capacity, "
                    "and leave packed_grow out",
                    kStreamCall));
  p.stream_on_gpu->packed = GpuPacked{.values = static_cast<std::byte*>(r.packed_values),
                                      .indices = r.packed_indices,
                                      .capacity = r.packed_capacity};
  if (indices) take_gpu(std::move(indices), "packed_indices", p);
  take_gpu(std::move(values), "packed_values", p);
}

void take_packed_count(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  if (r.packed_count == nullptr) return;
  if (!p.stream_on_gpu->packed)
    reject_stream("packed_count is given, and there is no packed result in memory of a GPU");
  if (!is_aligned(r.packed_count, sizeof *r.packed_count))
    reject_stream("packed_count is not aligned to 8 bytes");
  const auto range = bytes_at(r.packed_count, sizeof *r.packed_count);
  auto gpu = registrations.gpu_of(range);
  if (!gpu && gpu::is_gpu_memory(range))
    reject_stream("packed_count is memory of a GPU, and is not inside a registered buffer");
  p.stream_on_gpu->packed->count = r.packed_count;
  p.stream_on_gpu->packed->count_on_gpu = gpu != nullptr;
  if (gpu) take_gpu(std::move(gpu), "packed_count", p);
}

void take_packed(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const std::uint64_t block_bytes = r.block_elems * element_bytes(r.type);
  p.output = {
      .packed = true, .capacity = r.packed_capacity, .indices = r.packed_indices, .grow = r.packed_grow};
  if (const auto wrong = engine::wrong_with_index_memory(r.packed_indices, ceil_div(r.count, r.block_elems)))
    reject_stream("packed_indices: " + *wrong);
  if (p.output.capacity > wire::kMostBytes / block_bytes)
    reject_stream("packed_capacity is larger than memory can be");
  if (p.output.capacity > 0) {
    if (r.packed_values == nullptr) reject_stream("packed_values is null, and packed_capacity is not 0");
    p.output.base = static_cast<std::byte*>(r.packed_values);
    p.output_bytes = bytes_at(r.packed_values, p.output.capacity * block_bytes);
  }
  take_packed_on_gpu(r, registrations, p);
}

void take_dense(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const std::uint64_t bytes = r.count * element_bytes(r.type);
  auto memory =
      covered_anywhere(kStreamCall, registrations, r.output, bytes, element_bytes(r.type), "output");
  if (memory.gpu) p.stream_on_gpu->output = static_cast<std::byte*>(r.output);
  take_output(r.output, bytes, std::move(memory), {}, p);
}

/// A rank that has nothing to give this time may pass the stream that it passes at other times.
void take_stream_of(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  if (!p.gpu && r.values != nullptr && r.indices.empty()) {
    if (auto gpu = registrations.gpu_of(bytes_at(r.values, 1))) take_gpu(std::move(gpu), "values", p);
  }
  if (!p.gpu && r.stream != nullptr && !r.indices.empty())
    reject_stream("a stream is given, and the memory is not registered as that of a GPU");
  p.stream_on_gpu->stream = r.stream;
}

}  // namespace

void prepare(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const std::uint64_t block_bytes = r.block_elems * element_bytes(r.type);
  p.timeout = check_timeout(kStreamCall, r.timeout);
  if (r.output != nullptr && r.packed_values != nullptr)
    reject_stream("output and packed_values exclude each other");
  if (r.count > 0 && r.output == nullptr && r.packed_values == nullptr && !r.packed_grow)
    reject_stream(
        "no memory is given for the result: set output for a dense result, or packed_values for a packed "
        "one");

  p.known = Prepared::Input::indices;
  p.input.sparse = true;
  p.stream_on_gpu.emplace();
  if (r.indices.size() > wire::kMostBytes / block_bytes)
    reject_stream(fmt::format("{} indices are given, and their values are larger than memory can be",
                              r.indices.size()));
  if (!r.indices.empty()) take_list(r, registrations, p);
  if (p.known == Prepared::Input::indices) {
    // After the values, because as many of these as there are indices lie in registered memory, whereas a
    // number of indices that is wrong would be found out only by reading beyond them.
    p.indices = IndexList(r.indices, ceil_div(r.count, r.block_elems), r.sum_duplicates);
    p.caller_indices = r.indices;
    p.sum_duplicates = r.sum_duplicates;
    if (!r.indices.empty()) p.indices.check_sums(r.values, r.count, r.block_elems, r.type, r.op);
  }
  if (p.record.packed_result != 0) {
    take_packed(r, registrations, p);
  } else if (r.count > 0) {
    take_dense(r, registrations, p);
  }
  take_packed_count(r, registrations, p);
  take_stream_of(r, registrations, p);
  if (overlap(p.input_bytes, p.output_bytes)) reject_stream("values and the result overlap");
}

void cut_indices(Prepared& p, const engine::SliceLayout& layout) {
  const auto type = static_cast<DataType>(p.record.type);
  const auto op = static_cast<ReduceOp>(p.record.op);
  if (layout.tiled()) {
    p.stream = p.indices.stream(layout, p.input.base, p.record.block_elems, p.input.region, type, op);
    return;
  }
  p.known = Prepared::Input::bitmap;
  p.bitmap = p.indices.bitmap(layout.blocks());
  if (p.indices.has_duplicates()) {
    p.own_values = p.indices.sorted_values(p.input.base, p.record.block_elems, type, op);
    p.input.base = p.own_values.data();
    p.input.region = nullptr;
  } else {
    p.input.order = p.indices.order();
  }
}

}  // namespace nzcl::comm

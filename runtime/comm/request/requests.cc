#include "runtime/comm/request/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/base/divide.h"
#include "runtime/comm/request/request_checks.h"
#include "runtime/operation/index_memory.h"
#include "runtime/wire/checks.h"

namespace nzcl::comm {
namespace {

/// A request of more blocks is refused as one that does not say what tensor it is about: it takes memory and
/// messages in proportion to them to refuse it as what it is, and its count is hardly meant.
constexpr std::uint64_t kMostRefusedBlocks = std::uint64_t{1} << 32;

/// What errors of requests begin with.
constexpr std::string_view kCall = "allreduce";

[[noreturn]] void reject_allreduce(const std::string& text) { reject_request(kCall, text); }

/// Returns the rule that a call or the option asks for. What only the option asks for does not
/// concern other types than float32.
wire::ValueRule value_rule(WireType wire_type, DataType type, WireType by_option) {
  if (static_cast<int>(wire_type) >= kWireTypes)
    reject_allreduce(fmt::format("wire_type {} does not exist", static_cast<int>(wire_type)));
  const bool asked = wire_type != WireType::by_option && wire_type != WireType::as_is;
  if (asked && type != DataType::float32)
    reject_allreduce(fmt::format("wire_type is for float32, and the type is {}", name_of(type)));
  if (wire_type == WireType::by_option && type == DataType::float32) wire_type = by_option;
  return wire_type == WireType::float16    ? wire::ValueRule::float16
         : wire_type == WireType::bfloat16 ? wire::ValueRule::bfloat16
                                           : wire::ValueRule::as_is;
}

wire::Density density(double expected) {
  if (!(expected >= 0 && expected <= 1))  // also true for NaN
    reject_allreduce(fmt::format(
        "expected_density is {:g}; it is a share from 0 to 1, and 0 if it is not known", expected));
  return wire::Density::of_share(expected);
}

/// Checks element type, operation, block size and expected density.
template <typename Request>
wire::OperationRecord make_shape(const Request& r, WireType by_option) {
  wire::OperationRecord shape = check_shape(kCall, r.count, r.type, r.op, r.block_elems, r.tag);
  shape.root_or_density = density(r.expected_density).code();
  shape.value_rule = value_rule(r.wire_type, r.type, by_option);
  return shape;
}

}  // namespace

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

wire::OperationRecord shape_of(const AllreduceRequest& r, WireType wire_type) {
  return make_shape(r, wire_type);
}

wire::OperationRecord shape_of(const SparseAllreduceRequest& r, WireType wire_type) {
  wire::OperationRecord shape = make_shape(r, wire_type);
  // A tensor without elements has no result, so the form of its result is the same on all ranks whatever the
  // pointers are: data() of an empty vector may be null on one rank and not on another.
  shape.packed_result = r.count > 0 && r.output == nullptr ? 1 : 0;
  return shape;
}

Prepared refused(const wire::OperationRecord& shape, int rank, const Error& error) {
  Prepared p;
  const bool too_many = shape.count / shape.block_elems > kMostRefusedBlocks;
  p.record = too_many ? shape_of(AllreduceRequest{}, WireType::as_is) : shape;
  p.known = Prepared::Input::none;
  std::string_view text = error.what();
  const std::string call = std::string(wire::name_of(shape.collective)) + ": ";
  if (text.starts_with(call)) text.remove_prefix(call.size());
  p.refusal = std::make_unique<wire::Refusal>(static_cast<std::uint16_t>(rank),
                                              static_cast<std::uint16_t>(error.code()), text);
  return p;
}

/// One operation has one stream of the caller's, so all that it has on GPUs is on the same one.
void take_gpu(std::shared_ptr<gpu::Gpu> gpu, const char* name, Prepared& p) {
  if (p.gpu && p.gpu != gpu)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: {} is memory of {}, and {} is memory of {}; they must be on the same GPU, or one "
                    "of them in host memory",
                    wire::name_of(p.record.collective), p.gpu_argument, p.gpu->name(), name, gpu->name()));
  if (!p.gpu) p.gpu_argument = name;
  p.gpu = std::move(gpu);
}

void take_input(const void* data, std::uint64_t bytes, CoveredMemory memory, GpuTensors::Chunks chunks,
                Prepared& p) {
  p.input_bytes = bytes_at(data, bytes);
  if (memory.gpu) {
    take_gpu(std::move(memory.gpu), "input", p);
    p.on_gpu.input = p.input_bytes.data();
    p.on_gpu.input_chunks = chunks;
    return;
  }
  p.input = {.base = p.input_bytes.data(), .region = memory.region.get()};
  p.regions[0] = std::move(memory.region);
}

void take_output(void* data, std::uint64_t bytes, CoveredMemory memory, GpuTensors::Chunks chunks,
                 Prepared& p) {
  p.output_bytes = bytes_at(data, bytes);
  if (memory.gpu) {
    take_gpu(std::move(memory.gpu), "output", p);
    p.on_gpu.output = static_cast<std::byte*>(data);
    p.on_gpu.output_chunks = chunks;
    return;
  }
  p.output = {.base = static_cast<std::byte*>(data), .region = memory.region.get()};
  set_output_region(std::move(memory.region), p);
}

void set_output_region(SharedRegion region, Prepared& p) {
  const verbs::RemoteMemory remote = p.output.remote(verbs::Level::between);
  p.record.output_address = remote.address;
  p.record.output_key = remote.key;
  p.regions[1] = std::move(region);
}

void take_stream(std::string_view call, void* stream, Prepared& p) {
  if (!p.gpu && stream != nullptr)
    reject_request(call, "a stream is given, and the memory is not registered as that of a GPU");
  p.on_gpu.stream = stream;
}

void take_buffers(const AllreduceRequest& r, CoveredMemory input, CoveredMemory output, Prepared& p) {
  const std::uint64_t bytes = p.record.count * element_bytes(r.type);
  p.known = r.dense ? Prepared::Input::all : Prepared::Input::scan;
  take_input(r.input, bytes, std::move(input), {.count = 1}, p);
  take_output(r.output, bytes, std::move(output), {.count = 1}, p);
}

void prepare(const AllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const wire::OperationRecord& shape = p.record;
  const std::uint64_t bytes = shape.count * element_bytes(r.type);
  p.timeout = check_timeout(kCall, r.timeout);
  check_bitmap(kCall, r.bitmap.size(), ceil_div(r.count, r.block_elems), r.dense);
  if (r.count == 0) {
    p.known = Prepared::Input::all;
    return;
  }
  auto in = covered_anywhere(kCall, registrations, r.input, bytes, element_bytes(r.type), "input");
  auto out = r.output == r.input
                 ? in
                 : covered_anywhere(kCall, registrations, r.output, bytes, element_bytes(r.type), "output");
  if (r.input != r.output && overlap(bytes_at(r.input, bytes), bytes_at(r.output, bytes)))
    reject_allreduce("input and output overlap without being the same");
  take_buffers(r, std::move(in), std::move(out), p);
  take_stream(kCall, r.stream, p);
  if (!r.bitmap.empty()) {
    p.known = Prepared::Input::bitmap;
    p.bitmap = copy_bitmap(r.bitmap, ceil_div(r.count, r.block_elems));
  }
}

}  // namespace nzcl::comm

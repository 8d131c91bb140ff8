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

std::span<const std::byte> bytes_at(const void* data, std::uint64_t n) {
  return {static_cast<const std::byte*>(data), n};
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

void take_buffers(const AllreduceRequest& r, SharedRegion in, SharedRegion out, Prepared& p) {
  const std::uint64_t bytes = p.record.count * element_bytes(r.type);
  p.known = r.dense ? Prepared::Input::all : Prepared::Input::scan;
  p.input_bytes = bytes_at(r.input, bytes);
  p.output_bytes = bytes_at(r.output, bytes);
  p.input = {.base = static_cast<const std::byte*>(r.input), .region = in.get()};
  p.output = {.base = static_cast<std::byte*>(r.output), .region = out.get()};
  const auto remote = out->remote().offset(static_cast<std::uint64_t>(p.output.base - out->bytes().data()));
  p.record.output_address = remote.address;
  p.record.output_key = remote.key;
  p.regions = {std::move(in), std::move(out)};
}

namespace {

/// Checks a request of which input or output is memory of a GPU.
void prepare_on_gpu(const AllreduceRequest& r, std::uint64_t bytes, std::shared_ptr<gpu::Gpu> input,
                    const std::shared_ptr<gpu::Gpu>& output, Prepared& p) {
  const auto where = [](const auto& gpu) { return gpu ? "memory of " + gpu->name() : "host memory"; };
  if (input != output)
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: input is {}, and output is {}; they must be on the same GPU", kCall,
                            where(input), where(output)));
  for (const void* const at : {r.input, static_cast<const void*>(r.output)}) {
    if (reinterpret_cast<std::uintptr_t>(at) % element_bytes(r.type) != 0)
      reject_allreduce(
          fmt::format("memory at {} is not aligned to its element's {} bytes", at, element_bytes(r.type)));
  }
  p.gpu = std::move(input);
  p.on_gpu = {.input = static_cast<const std::byte*>(r.input),
              .output = static_cast<std::byte*>(r.output),
              .stream = r.stream};
  p.known = r.dense ? Prepared::Input::all : Prepared::Input::scan;
  p.input_bytes = bytes_at(r.input, bytes);
  p.output_bytes = bytes_at(r.output, bytes);
}

}  // namespace

void prepare(const AllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const wire::OperationRecord& shape = p.record;
  const std::uint64_t bytes = shape.count * element_bytes(r.type);
  p.timeout = check_timeout(kCall, r.timeout);
  check_bitmap(kCall, r.bitmap.size(), ceil_div(r.count, r.block_elems), r.dense);
  if (r.count == 0) {
    p.known = Prepared::Input::all;
    return;
  }
  auto input_gpu = registrations.gpu_of(bytes_at(r.input, bytes));
  const auto output_gpu = registrations.gpu_of(bytes_at(r.output, bytes));
  const auto check_overlap = [&] {
    if (r.input != r.output && overlap(bytes_at(r.input, bytes), bytes_at(r.output, bytes)))
      reject_allreduce("input and output overlap without being the same");
  };
  if (input_gpu || output_gpu) {
    check_overlap();
    prepare_on_gpu(r, bytes, std::move(input_gpu), output_gpu, p);
  } else {
    auto in = covered(kCall, registrations, r.input, bytes, element_bytes(r.type), "input");
    auto out = r.output == r.input
                   ? in
                   : covered(kCall, registrations, r.output, bytes, element_bytes(r.type), "output");
    check_overlap();
    if (r.stream != nullptr)
      reject_allreduce("a stream is given, and the memory is not registered as that of a GPU");
    take_buffers(r, std::move(in), std::move(out), p);
  }
  if (!r.bitmap.empty()) {
    p.known = Prepared::Input::bitmap;
    p.bitmap = copy_bitmap(r.bitmap, ceil_div(r.count, r.block_elems));
  }
}

void prepare(const SparseAllreduceRequest& r, const Registrations& registrations, Prepared& p) {
  const wire::OperationRecord& shape = p.record;
  const std::uint64_t bytes = shape.count * element_bytes(r.type);
  const std::uint64_t block_bytes = r.block_elems * element_bytes(r.type);
  const std::uint64_t blocks = ceil_div(r.count, r.block_elems);
  p.timeout = check_timeout(kCall, r.timeout);
  if (r.output != nullptr && r.packed_values != nullptr)
    reject_allreduce("output and packed_values exclude each other");
  if (r.count > 0 && r.output == nullptr && r.packed_values == nullptr && !r.packed_grow)
    reject_allreduce(
        "no memory is given for the result: set output for a dense result, or packed_values for a packed "
        "one");

  p.known = Prepared::Input::indices;
  p.input.sparse = true;
  if (r.indices.size() > wire::kMostBytes / block_bytes)
    reject_allreduce(fmt::format("{} indices are given, and their values are larger than memory can be",
                                 r.indices.size()));
  if (!r.indices.empty()) {
    const std::uint64_t n = r.indices.size() * block_bytes;
    auto in = covered(kCall, registrations, r.values, n, element_bytes(r.type), "values");
    p.input.base = static_cast<const std::byte*>(r.values);
    p.input.region = in.get();
    p.input_bytes = bytes_at(r.values, n);
    p.regions[0] = std::move(in);
  }
  // After the values, because as many of these as there are indices lie in registered memory, whereas a
  // number of indices that is wrong would be found out only by reading beyond them.
  p.indices = IndexList(r.indices, blocks, r.sum_duplicates);
  p.caller_indices = r.indices;
  p.sum_duplicates = r.sum_duplicates;
  if (!r.indices.empty()) p.indices.check_sums(r.values, r.count, r.block_elems, r.type, r.op);

  if (p.record.packed_result != 0) {
    p.output = {
        .packed = true, .capacity = r.packed_capacity, .indices = r.packed_indices, .grow = r.packed_grow};
    if (const auto wrong = engine::wrong_with_index_memory(r.packed_indices, blocks))
      reject_allreduce("packed_indices: " + *wrong);
    if (p.output.capacity > wire::kMostBytes / block_bytes)
      reject_allreduce("packed_capacity is larger than memory can be");
    if (p.output.capacity > 0) {
      if (r.packed_values == nullptr) reject_allreduce("packed_values is null, and packed_capacity is not 0");
      p.output.base = static_cast<std::byte*>(r.packed_values);
      p.output_bytes = bytes_at(r.packed_values, p.output.capacity * block_bytes);
      refuse_gpu_memory(kCall, registrations, p.output_bytes, "packed_values");
    }
  } else if (r.count > 0) {
    auto out = covered(kCall, registrations, r.output, bytes, element_bytes(r.type), "output");
    p.output = {.base = static_cast<std::byte*>(r.output), .region = out.get()};
    p.output_bytes = bytes_at(r.output, bytes);
    const auto remote = out->remote().offset(static_cast<std::uint64_t>(p.output.base - out->bytes().data()));
    p.record.output_address = remote.address;
    p.record.output_key = remote.key;
    p.regions[1] = std::move(out);
  }
  if (overlap(p.input_bytes, p.output_bytes)) reject_allreduce("values and the result overlap");
}

void cut_indices(Prepared& p, const engine::SliceLayout& layout) {
  const auto type = static_cast<DataType>(p.record.type);
  const auto op = static_cast<ReduceOp>(p.record.op);
  const auto sorted = [&] { return p.indices.sorted_values(p.input.base, p.record.block_elems, type, op); };
  if (layout.tiled()) {
    p.stream = p.indices.tiles(layout);
    p.stream.values = p.input.base;
    p.stream.region = p.input.region;
    if (!p.indices.order().empty()) {
      p.stream.own_values = sorted();
      p.stream.values = p.stream.own_values.data();
      p.stream.region = nullptr;
    }
    return;
  }
  p.known = Prepared::Input::bitmap;
  p.bitmap = p.indices.bitmap(layout.blocks());
  if (p.indices.has_duplicates()) {
    p.own_values = sorted();
    p.input.base = p.own_values.data();
    p.input.region = nullptr;
  } else {
    p.input.order = p.indices.order();
  }
}

}  // namespace nzcl::comm

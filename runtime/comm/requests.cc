#include "runtime/comm/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/checks.h"

namespace nzcl::comm {
namespace {

/// What errors of requests begin with.
constexpr std::string_view kCall = "allreduce: ";

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, std::string(kCall) + text);
}

/// Checks element type, operation and block size.
wire::OperationRecord make_shape(std::uint64_t count, DataType type, ReduceOp op, std::uint64_t block_elems,
                                 std::uint64_t tag) {
  if (static_cast<int>(type) >= kDataTypes)
    refuse(fmt::format("type {} does not exist", static_cast<int>(type)));
  if (static_cast<int>(op) >= kReduceOps) refuse(fmt::format("op {} does not exist", static_cast<int>(op)));
  if (block_elems == 0) refuse("block_elems is 0; a block has at least one element");
  if (!wire::can_be_laid_out(count, block_elems, element_bytes(type)))
    refuse(fmt::format("a tensor of {} elements in blocks of {} is larger than memory can be", count,
                       block_elems));
  return {.count = count,
          .block_elems = block_elems,
          .type = static_cast<std::uint8_t>(type),
          .op = static_cast<std::uint8_t>(op),
          .tag = tag};
}

/// Checks that a timeout is in the range of the option, or 0, which stands for the option's value.
std::chrono::nanoseconds check_timeout(std::chrono::nanoseconds timeout) {
  using namespace std::chrono_literals;
  if (timeout != 0ns && (timeout < engine::kShortestTimeout || timeout > 24h)) {
    refuse(fmt::format("timeout is {:g} s; it may be 0.001 to 86400 s, or 0 for the option's",
                       std::chrono::duration<double>(timeout).count()));
  }
  return timeout;
}

std::uint64_t blocks_of(std::uint64_t count, std::uint64_t block_elems) {
  return count / block_elems + (count % block_elems != 0);
}

/// The end of the sentence that says that a range is not registered.
const char* why_not_registered(const Registrations& registrations, std::span<const std::byte> range) {
  if (registrations.was_released(range)) {
    return " any more: its RegisteredBuffer is gone; keep the handle as long as operations use the buffer";
  }
  if (registrations.is_covered_elsewhere(range)) {
    return " of this communicator, but in one of another communicator; register it with this one as well "
           "(only communicators that are split from one another share their buffers)";
  }
  return " of this communicator; call its register_buffer first";
}

/// Returns the region that contains [data, data + bytes), or refuses the argument `name`.
SharedRegion covered(const Registrations& registrations, const void* data, std::uint64_t bytes,
                     std::size_t alignment, const char* name) {
  if (data == nullptr) refuse(fmt::format("{} is null", name));
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    refuse(fmt::format("{} is not aligned to its element's {} bytes", name, alignment));
  }
  const std::span range{static_cast<const std::byte*>(data), bytes};
  auto region = registrations.find(range);
  if (!region) {
    refuse(fmt::format("{} ({} bytes at {}) is not inside a registered buffer{}", name, bytes, data,
                       why_not_registered(registrations, range)));
  }
  return region;
}

std::span<const std::byte> bytes_at(const void* data, std::uint64_t n) {
  return {static_cast<const std::byte*>(data), n};
}

}  // namespace

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

wire::OperationRecord shape_of(const AllreduceRequest& r) {
  return make_shape(r.count, r.type, r.op, r.block_elems, r.tag);
}

wire::OperationRecord shape_of(const SparseAllreduceRequest& r) {
  wire::OperationRecord shape = make_shape(r.count, r.type, r.op, r.block_elems, r.tag);
  // A tensor without elements has no result, so the form of its result is the same on all ranks whatever the
  // pointers are: data() of an empty vector may be null on one rank and not on another.
  shape.packed_result = r.count > 0 && r.output == nullptr ? 1 : 0;
  return shape;
}

Prepared refused(const wire::OperationRecord& shape, int rank, const Error& error) {
  Prepared p;
  p.record = shape;
  p.known = Prepared::Input::none;
  std::string_view text = error.what();
  if (text.starts_with(kCall)) text.remove_prefix(kCall.size());
  p.refusal = std::make_unique<wire::Refusal>(static_cast<std::uint16_t>(rank),
                                              static_cast<std::uint16_t>(error.code()), text);
  return p;
}

Prepared prepare(const AllreduceRequest& r, const wire::OperationRecord& shape,
                 const Registrations& registrations) {
  const std::uint64_t bytes = shape.count * element_bytes(r.type);
  Prepared p;
  p.record = shape;
  p.timeout = check_timeout(r.timeout);
  if (r.dense && !r.bitmap.empty()) refuse("dense and a bitmap exclude each other");
  const std::uint64_t words = words_for(blocks_of(r.count, r.block_elems));
  if (!r.bitmap.empty() && r.bitmap.size() != words) {
    refuse(fmt::format("bitmap has {} words; {} blocks need {}", r.bitmap.size(),
                       blocks_of(r.count, r.block_elems), words));
  }
  if (r.count == 0) {
    p.known = Prepared::Input::all;
    return p;
  }
  auto in = covered(registrations, r.input, bytes, element_bytes(r.type), "input");
  auto out =
      r.output == r.input ? in : covered(registrations, r.output, bytes, element_bytes(r.type), "output");
  p.input_bytes = bytes_at(r.input, bytes);
  p.output_bytes = bytes_at(r.output, bytes);
  if (r.input != r.output && overlap(p.input_bytes, p.output_bytes))
    refuse("input and output overlap without being the same");
  p.input = {.base = static_cast<const std::byte*>(r.input), .region = in.get()};
  p.output = {.base = static_cast<std::byte*>(r.output), .region = out.get()};
  const auto remote = out->remote().offset(static_cast<std::uint64_t>(p.output.base - out->bytes().data()));
  p.record.output_address = remote.address;
  p.record.output_key = remote.key;
  if (r.dense) {
    p.known = Prepared::Input::all;
  } else if (!r.bitmap.empty()) {
    p.known = Prepared::Input::bitmap;
    p.bitmap.assign(r.bitmap.begin(), r.bitmap.end());
  }
  p.regions = {std::move(in), std::move(out)};
  return p;
}

Prepared prepare(const SparseAllreduceRequest& r, const wire::OperationRecord& shape,
                 const Registrations& registrations) {
  const std::uint64_t bytes = shape.count * element_bytes(r.type);
  const std::uint64_t block_bytes = r.block_elems * element_bytes(r.type);
  const std::uint64_t blocks = blocks_of(r.count, r.block_elems);
  Prepared p;
  p.record = shape;
  p.timeout = check_timeout(r.timeout);
  if (r.output != nullptr && r.packed_values != nullptr)
    refuse("output and packed_values exclude each other");
  if (r.count > 0 && r.output == nullptr && r.packed_values == nullptr)
    refuse(
        "no memory is given for the result: set output for a dense result, or packed_values for a packed "
        "one");

  // Blocks are sent in ascending order of their indices, so indices in another order are sorted.
  p.known = Prepared::Input::bitmap;
  p.bitmap.assign(words_for(blocks), 0);
  for (const std::int64_t index : r.indices) {
    if (index < 0 || static_cast<std::uint64_t>(index) >= blocks) {
      refuse(fmt::format("block index {} is not below the block count {}", index, blocks));
    }
    if (test_bit(std::span<const std::uint64_t>(p.bitmap), static_cast<std::uint64_t>(index))) {
      refuse(fmt::format("block index {} is there twice; every index may occur once", index));
    }
    set_bit(std::span(p.bitmap), static_cast<std::uint64_t>(index));
  }
  p.input.sparse = true;
  if (!std::is_sorted(r.indices.begin(), r.indices.end())) {
    p.input.order.resize(r.indices.size());
    std::iota(p.input.order.begin(), p.input.order.end(), std::uint64_t{0});
    std::sort(p.input.order.begin(), p.input.order.end(),
              [&](std::uint64_t a, std::uint64_t b) { return r.indices[a] < r.indices[b]; });
  }
  if (!r.indices.empty()) {
    const std::uint64_t n = r.indices.size() * block_bytes;
    auto in = covered(registrations, r.values, n, element_bytes(r.type), "values");
    p.input.base = static_cast<const std::byte*>(r.values);
    p.input.region = in.get();
    p.input_bytes = bytes_at(r.values, n);
    p.regions[0] = std::move(in);
  }

  if (p.record.packed_result != 0) {
    p.output = {.base = nullptr, .region = nullptr, .packed = true, .capacity = r.packed_capacity};
    if (p.output.capacity > wire::kMostBytes / block_bytes)
      refuse("packed_capacity is larger than memory can be");
    if (p.output.capacity > 0) {
      const std::uint64_t n = p.output.capacity * block_bytes;
      auto out = covered(registrations, r.packed_values, n, element_bytes(r.type), "packed_values");
      p.output.base = static_cast<std::byte*>(r.packed_values);
      p.output.region = out.get();
      p.output_bytes = bytes_at(r.packed_values, n);
      p.regions[1] = std::move(out);
    }
  } else if (r.count > 0) {
    auto out = covered(registrations, r.output, bytes, element_bytes(r.type), "output");
    p.output = {.base = static_cast<std::byte*>(r.output), .region = out.get()};
    p.output_bytes = bytes_at(r.output, bytes);
    const auto remote = out->remote().offset(static_cast<std::uint64_t>(p.output.base - out->bytes().data()));
    p.record.output_address = remote.address;
    p.record.output_key = remote.key;
    p.regions[1] = std::move(out);
  }
  if (overlap(p.input_bytes, p.output_bytes)) refuse("values and the result overlap");
  return p;
}

}  // namespace nzcl::comm

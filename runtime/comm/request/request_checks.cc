#include "runtime/comm/request/request_checks.h"

#include <fmt/format.h>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/checks.h"

namespace nzcl::comm {
namespace {

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

}  // namespace

void reject_request(std::string_view call, const std::string& text) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", call, text));
}

wire::OperationRecord check_shape(std::string_view call, std::uint64_t count, DataType type, ReduceOp op,
                                  std::uint64_t block_elems, std::uint64_t tag) {
  if (static_cast<int>(type) >= kDataTypes)
    reject_request(call, fmt::format("type {} does not exist", static_cast<int>(type)));
  if (static_cast<int>(op) >= kReduceOps)
    reject_request(call, fmt::format("op {} does not exist", static_cast<int>(op)));
  if (block_elems == 0) reject_request(call, "block_elems is 0; a block has at least one element");
  if (!wire::can_be_laid_out(count, block_elems, element_bytes(type)))
    reject_request(call,
                   fmt::format("a tensor of {} elements in blocks of {} is larger than memory can be, or "
                               "has more than {} blocks",
                               count, block_elems, wire::kMostBlocks));
  return {.count = count,
          .block_elems = block_elems,
          .type = static_cast<std::uint8_t>(type),
          .op = static_cast<std::uint8_t>(op),
          .tag = tag};
}

std::chrono::nanoseconds check_timeout(std::string_view call, std::chrono::nanoseconds timeout) {
  using namespace std::chrono_literals;
  if (timeout != 0ns && (timeout < engine::kShortestTimeout || timeout > 24h)) {
    reject_request(call, fmt::format("timeout is {:g} s; it may be 0.001 to 86400 s, or 0 for the option's",
                                     std::chrono::duration<double>(timeout).count()));
  }
  return timeout;
}

void check_bitmap(std::string_view call, std::size_t words, std::uint64_t blocks, bool dense) {
  if (words == 0) return;
  if (dense) reject_request(call, "dense and a bitmap exclude each other");
  if (words != words_for(blocks))
    reject_request(call,
                   fmt::format("bitmap has {} words; {} blocks need {}", words, blocks, words_for(blocks)));
}

std::vector<std::uint64_t> copy_bitmap(std::span<const std::uint64_t> bitmap, std::uint64_t blocks) {
  std::vector<std::uint64_t> copy(bitmap.begin(), bitmap.end());
  if (blocks % 64 != 0) copy.back() &= low_bits(blocks % 64);
  return copy;
}

void refuse_gpu_memory(std::string_view call, const Registrations& registrations,
                       std::span<const std::byte> range, const char* name) {
  if (const auto gpu = registrations.gpu_of(range))
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: {} is memory of {}, which it cannot be so far; copy it to host memory", call,
                            name, gpu->name()));
}

namespace {

/// Returns the range, if it is one and aligned to its elements.
std::span<const std::byte> checked_range(std::string_view call, const void* data, std::uint64_t bytes,
                                         std::size_t alignment, const char* name) {
  if (data == nullptr) reject_request(call, fmt::format("{} is null", name));
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    reject_request(call, fmt::format("{} is not aligned to its element's {} bytes", name, alignment));
  return {static_cast<const std::byte*>(data), bytes};
}

}  // namespace

CoveredMemory covered_anywhere(std::string_view call, const Registrations& registrations, const void* data,
                               std::uint64_t bytes, std::size_t alignment, const char* name) {
  if (auto gpu = registrations.gpu_of(checked_range(call, data, bytes, alignment, name)))
    return {.gpu = std::move(gpu)};
  return {.region = covered(call, registrations, data, bytes, alignment, name)};
}

SharedRegion covered(std::string_view call, const Registrations& registrations, const void* data,
                     std::uint64_t bytes, std::size_t alignment, const char* name) {
  const std::span range = checked_range(call, data, bytes, alignment, name);
  auto region = registrations.find(range);
  if (!region) {
    refuse_gpu_memory(call, registrations, range, name);
    reject_request(call, fmt::format("{} ({} bytes at {}) is not inside a registered buffer{}", name, bytes,
                                     data, why_not_registered(registrations, range)));
  }
  return region;
}

}  // namespace nzcl::comm

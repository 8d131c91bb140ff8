// Checks that the requests of all collectives have in common.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/session/registrations.h"
#include "runtime/wire/message.h"

namespace nzcl::comm {

/// Throws Error{invalid_argument}. Its text begins with the name of the `call`.
[[noreturn]] void reject_request(std::string_view call, const std::string& text);

/// Checks element type, operation and block size. Returns what they say of the operation.
wire::OperationRecord check_shape(std::string_view call, std::uint64_t count, DataType type, ReduceOp op,
                                  std::uint64_t block_elems, std::uint64_t tag);

/// Checks that a timeout is in the range of the option, or 0, which stands for the option's value.
std::chrono::nanoseconds check_timeout(std::string_view call, std::chrono::nanoseconds timeout);

/// Checks that a bitmap is for `blocks` blocks, or empty, and that it does not come with `dense`.
void check_bitmap(std::string_view call, std::size_t words, std::uint64_t blocks, bool dense);

/// Copies a bitmap that has been checked. The bits behind its last block, which a caller may have set because
/// whole words are easier to fill, are left out: nothing behind this point has to expect them.
std::vector<std::uint64_t> copy_bitmap(std::span<const std::uint64_t> bitmap, std::uint64_t blocks);

/// Throws Error{unsupported} if the range is registered memory of a GPU, for an argument that may not be.
void refuse_gpu_memory(std::string_view call, const Registrations& registrations,
                       std::span<const std::byte> range, const char* name);

inline std::span<const std::byte> bytes_at(const void* data, std::uint64_t n) {
  return {static_cast<const std::byte*>(data), n};
}

/// What a range of memory is registered as: the host's, in a region, or a GPU's.
struct CoveredMemory {
  SharedRegion region = nullptr;
  std::shared_ptr<gpu::Gpu> gpu = nullptr;
};

/// Returns what [data, data + bytes) is, or refuses the argument `name`.
CoveredMemory covered_anywhere(std::string_view call, const Registrations& registrations, const void* data,
                               std::uint64_t bytes, std::size_t alignment, const char* name);

/// Returns the region that contains [data, data + bytes), or refuses the argument `name`.
SharedRegion covered(std::string_view call, const Registrations& registrations, const void* data,
                     std::uint64_t bytes, std::size_t alignment, const char* name);

}  // namespace nzcl::comm

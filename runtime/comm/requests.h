// Checks a caller's request, and turns it into what an Operation is made from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nzcl/communicator.h"
#include "nzcl/error.h"
#include "runtime/comm/registrations.h"
#include "runtime/operation/operation.h"
#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"

namespace nzcl::comm {

/// A checked request. It has a copy of the caller's bitmap or indices, because the caller may change these
/// after the call.
struct Prepared {
  wire::OperationRecord record;
  engine::InputView input;
  engine::OutputView output;
  std::chrono::nanoseconds timeout{};  // 0: the value of the option
  /// Which blocks are non-zero: those that a scan finds, all of them, those of `bitmap`, or none.
  enum class Input { scan, all, bitmap, none } known = Input::scan;
  std::vector<std::uint64_t> bitmap;
  std::span<const std::byte> input_bytes, output_bytes;  // to find conflicts with operations in flight
  std::array<SharedRegion, 2> regions;                   // those of input and output
  std::unique_ptr<const wire::Refusal> refusal;          // why the request was refused, if it was
};

/// Returns true if two ranges have a byte in common.
bool overlap(std::span<const std::byte> a, std::span<const std::byte> b);

/// Returns what the request says of the tensor and of the operation, without its memory. Throws an
/// Error{invalid_argument} that names the argument if there cannot be such a tensor.
wire::OperationRecord shape_of(const AllreduceRequest& request);
wire::OperationRecord shape_of(const SparseAllreduceRequest& request);

/// Check everything else, and return what the operation is made from. `shape` is the request's own. Both
/// throw an Error{invalid_argument} that names the argument.
Prepared prepare(const AllreduceRequest& request, const wire::OperationRecord& shape,
                 const Registrations& registrations);
Prepared prepare(const SparseAllreduceRequest& request, const wire::OperationRecord& shape,
                 const Registrations& registrations);

/// Returns what takes the place of a request that was refused on `rank` with `error`.
Prepared refused(const wire::OperationRecord& shape, int rank, const Error& error);

}  // namespace nzcl::comm

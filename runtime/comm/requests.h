// Checks a caller's request, and turns it into what an Operation is made from.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/comm/registrations.h"
#include "runtime/operation/operation.h"
#include "runtime/wire/message.h"

namespace nzcl::comm {

/// A checked request. It has a copy of the caller's bitmap or indices, because the caller may change these
/// after the call.
struct Prepared {
  wire::OperationRecord record;
  engine::InputView input;
  engine::OutputView output;
  std::chrono::nanoseconds timeout{};  // 0: the value of the option
  /// Which blocks are non-zero: those that a scan finds, all of them, or those of `bitmap`.
  enum class Input { scan, all, bitmap } known = Input::scan;
  std::vector<std::uint64_t> bitmap;
  std::span<const std::byte> input_bytes, output_bytes;  // to find conflicts with operations in flight
  std::array<SharedRegion, 2> regions;                   // those of input and output
};

/// Returns true if two ranges have a byte in common.
bool overlap(std::span<const std::byte> a, std::span<const std::byte> b);

/// Check a request, and return what its operation is made from. Both throw an Error{invalid_argument} that
/// names the argument.
Prepared prepare(const AllreduceRequest& request, const Registrations& registrations);
Prepared prepare(const SparseAllreduceRequest& request, const Registrations& registrations);

}  // namespace nzcl::comm

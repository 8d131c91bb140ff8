// Turns a caller's request into what an Operation needs, or says what is wrong with it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/comm/registrations.h"
#include "runtime/engine/operation.h"
#include "runtime/wire/message.h"

namespace nzcl::comm {

/// A checked request. `input_bitmap` is owned here: callers' bitmaps and indices are copied.
struct Prepared {
  wire::OperationRecord record;
  engine::InputView input;
  engine::OutputView output;
  enum class Input { scan, all, bitmap } known = Input::scan;
  std::vector<std::uint64_t> bitmap;
  std::span<const std::byte> input_bytes, output_bytes;        // for conflicts between operations in flight
  std::array<std::shared_ptr<Registration>, 2> registrations;  // of input and output
};

/// Both throw Error{invalid_argument} naming the argument.
Prepared prepare(const AllreduceRequest& request, Registrations& registrations);
Prepared prepare(const SparseAllreduceRequest& request, Registrations& registrations);

}  // namespace nzcl::comm

// What coded results must be, in plain loops, written from runtime/compress/README.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/compress.h"

namespace perf {

/// A step, as one rank has seen it. All spans have the elements of the tensor.
struct CodedStep {
  std::span<const float> sums;    // of what all ranks sent, before it was coded
  std::span<const float> before;  // what this rank held of errors before the step, and after it
  std::span<const float> after;
  std::span<const float> results;
};

/// Which rank owned an element is not known here, and where buckets begin neither. So this says of each
/// element what it can have been on this rank. In a correct step exactly one rank can have owned each
/// element that was sent, or several of which all but one have not changed, and no other has changed
/// anything.
enum class Part : std::uint8_t {
  owned,      // it holds what coding sums + before has lost, and the result is such a code
  untouched,  // nothing has changed here
  both,       // that which it holds now is what it held before, and the result is such a code
  wrong,      // none of these
};
std::vector<Part> parts_in(const nzcl::Compressor& compressor, const CodedStep& step);

}  // namespace perf

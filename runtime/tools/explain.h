// What nzcl_info --explain shows: how an allreduce would be exchanged, and why.
#pragma once

#include <cstdint>
#include <string>

#include "nzcl/options.h"
#include "nzcl/types.h"

namespace nzcl::tools {

/// The allreduce that is asked about.
struct Question {
  std::uint64_t bytes = 0;  // of the tensor
  /// AllreduceRequest::expected_density: the share of blocks that are not zero on a rank, 0 .. 1, or 0 if it
  /// is not known.
  double density = 0;
  bool packed = false;  // the result is packed, as only that of streams can be
  int ranks = 1;
  int hosts = 1;
  int cores = 0;  // of each host
  std::uint64_t cache_bytes = 0;
  double device_gbps = 0;  // what the device says of each rank's link; 0: nothing
  DataType type = DataType::float32;
  std::uint64_t block_elems = 256;
};

/// Returns the answer for these options, as some lines of text with a table. Throws Error for options that
/// cannot be combined, and Error{invalid_argument} for a question that cannot be asked.
std::string explain(const Question& question, const Options& options);

}  // namespace nzcl::tools

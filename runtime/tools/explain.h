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
  double density = 1;       // the share of blocks that are not zero on a rank, 0 .. 1
  int ranks = 1;
  int hosts = 1;
  int cores = 0;  // of each host
  std::uint64_t cache_bytes = 0;
  DataType type = DataType::float32;
  std::uint64_t block_elems = 256;
};

/// Returns the answer for these options, as some lines of text with a table. Throws Error for options that
/// cannot be combined.
std::string explain(const Question& question, const Options& options);

}  // namespace nzcl::tools

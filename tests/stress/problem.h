// What every rank contributes to a request, and the plain result of that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/stress/request.h"

namespace nzcl::stress {

/// How a rank says which of its blocks are not zero.
enum class Form : std::uint8_t { scan, bitmap, dense };

/// One rank's contribution. Of an input in the shape of the tensor: its bytes, chunk behind chunk, and which
/// blocks of it take part. Of a list: its indices, and as many whole blocks of values.
struct RankPart {
  Form form = Form::scan;
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> bits;  // also what a call with a bitmap passes
  std::vector<std::int64_t> indices;
};

/// The result of one chunk: its bytes, and which of its blocks any rank has.
struct Result {
  std::vector<std::byte> bytes;
  std::vector<bool> blocks;
};

/// Values are small whole numbers, so that sums are exact in every type and in every order.
struct Problem {
  Request request;
  std::vector<RankPart> parts;  // by rank
  std::vector<Result> results;  // by chunk
  std::uint64_t union_blocks(int rank) const;
};

Problem make_problem(const Request& request, int ranks);

}  // namespace nzcl::stress

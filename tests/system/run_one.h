// Runs one operation on one rank, in any form of call, and compares the result with the oracle bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/base/bitmap.h"
#include "tests/system/oracle.h"

namespace nzcl::test {

enum class Form { in_place, out_of_place, with_bitmap, dense_flag };

/// Runs one operation on one rank and compares the result bit by bit. Reports the first differences only.
inline void run_one(Communicator& communicator, const Problem& p, const Expected& expected, Form form,
                    Algorithm algorithm = Algorithm::automatic) {
  std::vector<std::byte> input = make_input(p, communicator.rank());
  std::vector<std::byte> output(p.bytes(), std::byte{0x5a});
  if (p.bytes() == 0) {
    communicator.allreduce(AllreduceRequest{.type = p.type, .op = p.op, .block_elems = p.block}).wait();
    return;
  }
  const bool in_place = form != Form::out_of_place;
  auto& result = in_place ? input : output;
  const auto in = communicator.register_buffer(input.data(), input.size());
  const auto out = communicator.register_buffer(output.data(), output.size());
  std::vector<std::uint64_t> bitmap;
  AllreduceRequest request{.input = input.data(),
                           .output = result.data(),
                           .count = p.count,
                           .type = p.type,
                           .op = p.op,
                           .block_elems = p.block,
                           .algorithm = algorithm};
  if (form == Form::with_bitmap) {
    bitmap = bitmap_of(p, communicator.rank());
    request.bitmap = bitmap;
  }
  request.dense = form == Form::dense_flag;
  Work work = communicator.allreduce(request);
  work.wait();
  // With the dense flag zeros are sent too, so that the union has all blocks and differs from the oracle's.
  // The result is the same, because min and max also count the zeros of blocks that are left out.
  if (form != Form::dense_flag) {
    const auto bits = work.union_bitmap();
    EXPECT_TRUE(std::equal(bits.begin(), bits.end(), expected.bits.begin(), expected.bits.end())) << p.text();
    EXPECT_EQ(work.statistics().union_blocks, count_bits(expected.bits)) << p.text();
  }
  EXPECT_EQ(first_difference(result, expected.data), -1)
      << p.text() << ", form " << static_cast<int>(form) << ", rank " << communicator.rank();
}

}  // namespace nzcl::test

// Runs an operation of any kind on one rank whose memory is on a GPU, wholly or in part, and compares it bit
// by bit with plain sums and copies.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "tests/system/gpu_tensor.h"
#include "tests/system/oracle.h"
#include "tests/system/run_collective.h"

namespace nzcl::test {

inline std::string text_of(Form form, Sides sides, int rank) {
  return ", form " + std::to_string(static_cast<int>(form)) + ", input on " + (sides.input ? "GPU" : "host") +
         ", output on " + (sides.output ? "GPU" : "host") + ", rank " + std::to_string(rank);
}

/// An allreduce. With `in_stream`, a result on the GPU is read behind enqueue_wait(), and not after wait().
/// Sides of different kinds are out of place, whatever the form says.
inline void run_one_on_gpu(Communicator& communicator, OnGpu& on, const Problem& p, const Expected& expected,
                           Form form, bool in_stream, Sides sides = {},
                           Algorithm algorithm = Algorithm::automatic) {
  AnyTensor input(communicator, on, make_input(p, communicator.rank()), sides.input);
  AnyTensor other(communicator, on, std::vector<std::byte>(p.bytes(), std::byte{0x5a}), sides.output);
  AnyTensor& result = form == Form::out_of_place || sides.input != sides.output ? other : input;
  const bool gpu = sides.input || sides.output;
  AllreduceRequest request{.input = input.data(),
                           .output = result.data(),
                           .count = p.count,
                           .type = p.type,
                           .op = p.op,
                           .block_elems = p.block,
                           .dense = form == Form::dense_flag,
                           .algorithm = algorithm,
                           .stream = gpu ? on.stream() : nullptr};
  const auto bitmap = bitmap_of(p, communicator.rank());
  if (form == Form::with_bitmap) request.bitmap = bitmap;
  Work work = communicator.allreduce(request);
  if (in_stream && gpu) work.enqueue_wait(on.stream());
  if (in_stream && gpu && !sides.output) on.gpu().synchronize(on.stream());  // the host may read it then
  if (!in_stream || !gpu) work.wait();
  EXPECT_EQ(first_difference(result.read(), expected.data), -1)
      << p.text() << text_of(form, sides, communicator.rank());
  work.wait();
  if (form != Form::dense_flag) {
    const auto bits = work.union_bitmap();
    EXPECT_TRUE(std::equal(bits.begin(), bits.end(), expected.bits.begin(), expected.bits.end())) << p.text();
    EXPECT_EQ(work.statistics().union_blocks, count_bits(expected.bits)) << p.text();
  }
}

/// One rank's memory for another collective, each part on a GPU or on the host.
class AnyMemory : public Places {
 public:
  AnyMemory(Communicator& c, OnGpu& on, const Call& call, const Joined& in, const Joined& out, bool in_place,
            Sides sides)
      : contents_(call, c.rank(), in, out, in_place),
        one_(c, on, contents_.one, of_one(c, call, sides)),
        two_(c, on, contents_.two, contents_.output_in_two ? sides.output : of_one(c, call, sides)) {
    input = one_.data() + contents_.input_at;
    if (contents_.has_output) output = output_tensor().data() + contents_.output_at;
    if (one_.on_gpu() || (contents_.has_output && two_.on_gpu())) stream = on.stream();
  }
  /// Returns the output in the order of the stream, or as it is now on the host. What is no output must be as
  /// it was.
  std::vector<std::byte> read_output() {
    const auto rest = (contents_.output_in_two ? one_ : two_).read();
    EXPECT_EQ(first_difference(rest, contents_.output_in_two ? contents_.one : contents_.two), -1);
    const auto all = output_tensor().read();
    const auto begin = all.begin() + static_cast<long>(contents_.output_at);
    return {begin, begin + static_cast<long>(contents_.output_bytes)};
  }
  bool output_on_gpu() { return output_tensor().on_gpu(); }

 private:
  static bool of_one(const Communicator& c, const Call& call, Sides sides) {
    return call.kind == Kind::broadcast && c.rank() != call.root ? sides.output : sides.input;
  }
  AnyTensor& output_tensor() { return contents_.output_in_two ? two_ : one_; }

  const Contents contents_;
  AnyTensor one_, two_;
};

/// Makes the call on this rank, and compares its result, bitmap and statistics with the oracle.
inline void run_collective_on_gpu(Communicator& c, OnGpu& on, const Call& call, Form form, bool in_stream,
                                  Sides sides = {}) {
  if (sides.input != sides.output && form == Form::in_place) form = Form::out_of_place;
  const Joined in = input_of(call, c.rank()), out = output_of(call, c.rank());
  AnyMemory m(c, on, call, in, out, form == Form::in_place, sides);
  const auto bitmap = form == Form::with_bitmap ? given_bitmap(in) : std::vector<std::uint64_t>();
  Work work = start(c, call, m, bitmap, form == Form::dense_flag, counts_of(call));
  // Where a side is empty, and the other one is the host's or there is none, no stream can wait.
  in_stream &= m.stream != nullptr && !in.data.empty() && !out.data.empty();
  if (in_stream) work.enqueue_wait(on.stream());
  if (in_stream && !m.output_on_gpu()) on.gpu().synchronize(on.stream());
  if (!in_stream) work.wait();
  const auto where = call.text() + text_of(form, sides, c.rank());
  const bool gets = gets_result(call, c.rank(), c.size());
  if (gets) {
    ASSERT_EQ(first_difference(m.read_output(), out.data), -1) << where;
  }
  work.wait();
  if (form != Form::dense_flag) check_union(work, out, gets, where);
}

}  // namespace nzcl::test

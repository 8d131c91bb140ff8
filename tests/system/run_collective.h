// Runs a broadcast, reduce, reduce-scatter or allgather on one rank, and compares it bit by bit with plain
// sums and copies.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/base/bitmap.h"
#include "tests/system/oracle.h"
#include "tests/system/run_one.h"

namespace nzcl::test {

enum class Kind { broadcast, reduce, reduce_scatter, allgather };
inline constexpr Kind kKinds[] = {Kind::broadcast, Kind::reduce, Kind::reduce_scatter, Kind::allgather};

/// One call on all ranks. `chunks` holds one problem for each chunk: N of them, or one.
struct Call {
  Kind kind;
  int root = 0;
  std::vector<Problem> chunks;
  bool given_counts = false;

  bool chunked() const { return kind == Kind::reduce_scatter || kind == Kind::allgather; }
  std::string text() const {
    return std::to_string(static_cast<int>(kind)) + " root " + std::to_string(root) + ": " + chunks[0].text();
  }
  /// The rank whose data a chunk is where data is copied.
  int source(std::size_t chunk) const { return kind == Kind::broadcast ? root : static_cast<int>(chunk); }
  bool copies() const { return kind == Kind::broadcast || kind == Kind::allgather; }
};

inline Call make_call(Kind kind, int root, Problem p, bool given_counts) {
  Call call{.kind = kind, .root = root, .chunks = {}, .given_counts = given_counts};
  if (!call.chunked()) {
    call.chunks = {p};
    return call;
  }
  const std::uint64_t count = p.count;
  for (int c = 0; c < p.ranks; ++c) {
    p.seed = static_cast<unsigned>(c + 5);
    if (given_counts) p.count = c == 1 ? 0 : count + 37 * static_cast<std::uint64_t>(c % 3);
    call.chunks.push_back(p);
  }
  return call;
}

/// What a chunk's result must be.
inline Expected expected_of(const Call& call, std::size_t chunk) {
  const Problem& p = call.chunks[chunk];
  if (!call.copies()) return make_expected(p);
  Expected e{std::vector<std::uint64_t>(words_for(p.blocks())), make_input(p, call.source(chunk))};
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    if (holds(p, call.source(chunk), b)) set_bit(std::span(e.bits), b);
  }
  return e;
}

/// Bytes, and bits of blocks, of several chunks one behind the other.
struct Joined {
  std::vector<std::byte> data;
  std::vector<std::uint64_t> bits;
  std::uint64_t blocks = 0;

  void add(std::span<const std::byte> bytes, std::uint64_t n, const auto& is_set) {
    data.insert(data.end(), bytes.begin(), bytes.end());
    bits.resize(words_for(blocks + n));
    for (std::uint64_t b = 0; b < n; ++b) {
      if (is_set(b)) set_bit(std::span(bits), blocks + b);
    }
    blocks += n;
  }
};

inline Joined input_of(const Call& call, int rank) {
  Joined in;
  for (std::size_t c = 0; c < call.chunks.size(); ++c) {
    if (call.copies() && call.source(c) != rank) continue;
    const Problem& p = call.chunks[c];
    in.add(make_input(p, rank), p.blocks(), [&](std::uint64_t b) { return holds(p, rank, b); });
  }
  return in;
}

inline Joined output_of(const Call& call, int rank) {
  Joined out;
  if (call.kind == Kind::reduce && rank != call.root) return out;
  for (std::size_t c = 0; c < call.chunks.size(); ++c) {
    if (call.kind == Kind::reduce_scatter && static_cast<int>(c) != rank) continue;
    const Expected e = expected_of(call, c);
    out.add(e.data, call.chunks[c].blocks(),
            [&](std::uint64_t b) { return test_bit(std::span<const std::uint64_t>(e.bits), b); });
  }
  return out;
}

/// What one rank's memory for a call holds before it, and where in it input and output lie. They share what
/// they can if the call is in place.
struct Contents {
  std::vector<std::byte> one, two;  // the input is in the first
  bool output_in_two = false, has_output = true;
  std::size_t input_at = 0, output_at = 0, output_bytes = 0;

  Contents(const Call& call, int rank, const Joined& in, const Joined& out, bool in_place)
      : output_bytes(out.data.size()) {
    std::size_t before = 0;  // bytes of the chunks before this rank's
    for (int r = 0; call.chunked() && r < rank; ++r)
      before += call.chunks[static_cast<std::size_t>(r)].bytes();
    const bool root = rank == call.root;
    one = in.data;
    if (call.kind == Kind::broadcast && !root) one.assign(out.data.size(), std::byte{0x5a});
    if (call.kind == Kind::allgather && in_place) {
      one.assign(out.data.size(), std::byte{0x5a});
      std::copy(in.data.begin(), in.data.end(), one.begin() + static_cast<long>(before));
    }
    one.resize(one.size() + 8);
    two.assign(out.data.size() + 8, std::byte{0x5a});
    if (call.kind == Kind::allgather && in_place) input_at = before;
    if (call.kind == Kind::reduce_scatter && in_place) output_at = before;
    output_in_two = !in_place && call.kind != Kind::broadcast;
    has_output = call.kind != Kind::reduce || root;
  }
};

/// Where a call finds its memory.
struct Places {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  void* stream = nullptr;
};

/// One rank's memory for a call, on the host.
struct Memory : Places {
  std::vector<std::byte> one, two;
  std::size_t output_bytes = 0;
  RegisteredBuffer first, second;

  Memory(Communicator& c, const Call& call, const Joined& in, const Joined& out, bool in_place) {
    Contents contents(call, c.rank(), in, out, in_place);
    output_bytes = contents.output_bytes;
    one = std::move(contents.one);
    two = std::move(contents.two);
    input = one.data() + contents.input_at;
    if (contents.has_output) output = (contents.output_in_two ? two : one).data() + contents.output_at;
    first = c.register_buffer(one.data(), one.size());
    second = c.register_buffer(two.data(), two.size());
  }
};

/// `bitmap` and `counts` may be empty.
inline Work start(Communicator& c, const Call& call, const Places& m, std::span<const std::uint64_t> bitmap,
                  bool dense, std::span<const std::uint64_t> counts) {
  const Problem& p = call.chunks[0];
  switch (call.kind) {
    case Kind::broadcast:
      return c.broadcast({.data = m.output,
                          .count = p.count,
                          .type = p.type,
                          .root = call.root,
                          .block_elems = p.block,
                          .bitmap = bitmap,
                          .dense = dense,
                          .stream = m.stream});
    case Kind::reduce:
      return c.reduce({.input = m.input,
                       .output = m.output,
                       .count = p.count,
                       .type = p.type,
                       .op = p.op,
                       .root = call.root,
                       .block_elems = p.block,
                       .bitmap = bitmap,
                       .dense = dense,
                       .stream = m.stream});
    case Kind::reduce_scatter:
      return c.reduce_scatter({.input = m.input,
                               .output = m.output,
                               .count = p.count,
                               .counts = counts,
                               .type = p.type,
                               .op = p.op,
                               .block_elems = p.block,
                               .bitmap = bitmap,
                               .dense = dense,
                               .stream = m.stream});
    case Kind::allgather:
      break;
  }
  return c.allgather({.input = m.input,
                      .output = m.output,
                      .count = p.count,
                      .counts = counts,
                      .type = p.type,
                      .block_elems = p.block,
                      .bitmap = bitmap,
                      .dense = dense,
                      .stream = m.stream});
}

/// Elements of the chunks of a call that says them.
inline std::vector<std::uint64_t> counts_of(const Call& call) {
  std::vector<std::uint64_t> counts;
  if (call.given_counts) {
    for (const Problem& p : call.chunks) counts.push_back(p.count);
  }
  return counts;
}

/// Whether a rank gets a result.
inline bool gets_result(const Call& call, int rank, int ranks) {
  if (call.kind == Kind::broadcast) return rank != call.root || ranks == 1;
  return call.kind != Kind::reduce || rank == call.root;
}

/// The bitmap of what a rank has, with the bits behind its end that count for nothing.
inline std::vector<std::uint64_t> given_bitmap(const Joined& in) {
  std::vector<std::uint64_t> bitmap = in.bits;
  set_bits_behind(bitmap, in.blocks);
  return bitmap;
}

/// Compares what a call says of its result.
inline void check_union(Work& work, const Joined& out, bool gets, const std::string& where) {
  const auto bits = work.union_bitmap();
  if (gets) {
    EXPECT_TRUE(std::equal(bits.begin(), bits.end(), out.bits.begin(), out.bits.end())) << where;
  } else {
    EXPECT_TRUE(std::ranges::all_of(bits, [](std::uint64_t w) { return w == 0; })) << where;
  }
  EXPECT_EQ(work.statistics().union_blocks, gets ? count_bits(out.bits) : 0) << where;
}

/// Makes the call on this rank, and compares its result, bitmap and statistics with the oracle.
inline void run_collective(Communicator& c, const Call& call, Form form) {
  const Joined in = input_of(call, c.rank()), out = output_of(call, c.rank());
  const Memory m(c, call, in, out, form == Form::in_place);
  const std::vector<std::byte> before = m.one;
  const auto counts = counts_of(call);
  const auto bitmap = form == Form::with_bitmap ? given_bitmap(in) : std::vector<std::uint64_t>();
  Work work = start(c, call, m, bitmap, form == Form::dense_flag, counts);
  work.wait();
  const auto where =
      call.text() + ", form " + std::to_string(static_cast<int>(form)) + ", rank " + std::to_string(c.rank());
  const bool gets = gets_result(call, c.rank(), c.size());
  if (gets) {
    const std::vector<std::byte> result(m.output, m.output + m.output_bytes);
    ASSERT_EQ(first_difference(result, out.data), -1) << where;
  }
  if (form != Form::in_place && !(call.kind == Kind::broadcast && gets)) {
    ASSERT_EQ(first_difference(m.one, before), -1) << "the input of " << where;
  }
  if (form != Form::dense_flag) check_union(work, out, gets, where);
}

}  // namespace nzcl::test

// Broadcast, reduce, reduce-scatter and allgather of real ranks, over transports and placements of
// aggregators, compared bit by bit with plain sums and copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/system/oracle.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

enum class Kind { broadcast, reduce, reduce_scatter, allgather };
constexpr Kind kKinds[] = {Kind::broadcast, Kind::reduce, Kind::reduce_scatter, Kind::allgather};
enum class Form { in_place, out_of_place, with_bitmap, dense_flag };

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

Call make_call(Kind kind, int root, Problem p, bool given_counts) {
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
Expected expected_of(const Call& call, std::size_t chunk) {
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

Joined input_of(const Call& call, int rank) {
  Joined in;
  for (std::size_t c = 0; c < call.chunks.size(); ++c) {
    if (call.copies() && call.source(c) != rank) continue;
    const Problem& p = call.chunks[c];
    in.add(make_input(p, rank), p.blocks(), [&](std::uint64_t b) { return holds(p, rank, b); });
  }
  return in;
}

Joined output_of(const Call& call, int rank) {
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

/// One rank's memory for a call: input and output, which share what they can if the call is in place.
struct Memory {
  std::vector<std::byte> one, two;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t output_bytes = 0;
  RegisteredBuffer first, second;

  Memory(Communicator& c, const Call& call, const Joined& in, const Joined& out, bool in_place) {
    std::size_t before = 0;  // bytes of the chunks before this rank's
    for (int r = 0; call.chunked() && r < c.rank(); ++r)
      before += call.chunks[static_cast<std::size_t>(r)].bytes();
    output_bytes = out.data.size();
    const bool root = c.rank() == call.root;
    one = in.data;
    if (call.kind == Kind::broadcast && !root) one.assign(out.data.size(), std::byte{0x5a});
    if (call.kind == Kind::allgather && in_place) {
      one.assign(out.data.size(), std::byte{0x5a});
      std::copy(in.data.begin(), in.data.end(), one.begin() + static_cast<long>(before));
    }
    one.resize(one.size() + 8);
    two.assign(out.data.size() + 8, std::byte{0x5a});
    input = output = one.data();
    if (call.kind == Kind::allgather && in_place) input += before;
    if (call.kind == Kind::reduce_scatter && in_place) output += before;
    if (!in_place && call.kind != Kind::broadcast) output = two.data();
    if (call.kind == Kind::reduce && !root) output = nullptr;
    first = c.register_buffer(one.data(), one.size());
    second = c.register_buffer(two.data(), two.size());
  }
};

Work start(Communicator& c, const Call& call, const Memory& m, std::span<const std::uint64_t> bitmap,
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
                          .dense = dense});
    case Kind::reduce:
      return c.reduce({.input = m.input,
                       .output = m.output,
                       .count = p.count,
                       .type = p.type,
                       .op = p.op,
                       .root = call.root,
                       .block_elems = p.block,
                       .bitmap = bitmap,
                       .dense = dense});
    case Kind::reduce_scatter:
      return c.reduce_scatter({.input = m.input,
                               .output = m.output,
                               .count = p.count,
                               .counts = counts,
                               .type = p.type,
                               .op = p.op,
                               .block_elems = p.block,
                               .bitmap = bitmap,
                               .dense = dense});
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
                      .dense = dense});
}

void check(Communicator& c, const Call& call, Form form) {
  const Joined in = input_of(call, c.rank()), out = output_of(call, c.rank());
  const Memory m(c, call, in, out, form == Form::in_place);
  const std::vector<std::byte> before = m.one;
  std::vector<std::uint64_t> counts;
  if (call.given_counts) {
    for (const Problem& p : call.chunks) counts.push_back(p.count);
  }
  std::vector<std::uint64_t> bitmap;
  if (form == Form::with_bitmap) bitmap = in.bits;
  Work work = start(c, call, m, bitmap, form == Form::dense_flag, counts);
  work.wait();
  const auto where =
      call.text() + ", form " + std::to_string(static_cast<int>(form)) + ", rank " + std::to_string(c.rank());
  const bool gets =
      !(call.kind == Kind::broadcast && c.rank() == call.root && c.size() > 1) && m.output != nullptr;
  if (gets) {
    const std::vector<std::byte> result(m.output, m.output + m.output_bytes);
    ASSERT_EQ(first_difference(result, out.data), -1) << where;
  }
  if (form != Form::in_place && !(call.kind == Kind::broadcast && gets)) {
    ASSERT_EQ(first_difference(m.one, before), -1) << "the input of " << where;
  }
  if (form != Form::dense_flag) {
    const auto bits = work.union_bitmap();
    if (gets) {
      EXPECT_TRUE(std::equal(bits.begin(), bits.end(), out.bits.begin(), out.bits.end())) << where;
    } else {
      EXPECT_TRUE(std::ranges::all_of(bits, [](std::uint64_t w) { return w == 0; })) << where;
    }
    EXPECT_EQ(work.statistics().union_blocks, gets ? count_bits(out.bits) : 0) << where;
  }
}

class CollectivesTest : public ::testing::TestWithParam<Where> {
 protected:
  Setting setting() const {
    Setting s = GetParam().setting();
    s.options.scan_threads = GetParam().lanes > 1 ? 1 : 0;
    return s;
  }
  void run(const std::vector<std::pair<Call, Form>>& calls) {
    const auto errors = run_ranks(setting(), [&](Communicator& c) {
      for (const auto& [call, form] : calls) check(c, call, form);
      c.barrier();
    });
    for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
  }
};

TEST_P(CollectivesTest, EverySizeSparsityAndForm) {
  const int ranks = GetParam().ranks;
  std::vector<std::pair<Call, Form>> calls;
  int turn = 0;
  for (const Kind kind : kKinds) {
    for (const std::uint64_t count : {0, 1, 97, 256, 4999, 60011}) {
      for (const Sparsity sparsity : kSparsities) {
        for (const std::uint64_t block : {1, 256}) {
          if (block == 1 && count > 1000) continue;
          const Problem p{.count = count, .block = block, .sparsity = sparsity, .ranks = ranks};
          ++turn;
          const Call call = make_call(kind, turn % ranks, p, turn % 3 == 0 && count > 0);
          calls.emplace_back(call, Form::in_place);
          calls.emplace_back(call, turn % 2 ? Form::out_of_place : Form::with_bitmap);
          if (sparsity == Sparsity::random) calls.emplace_back(call, Form::dense_flag);
        }
      }
    }
  }
  run(calls);
}

TEST_P(CollectivesTest, EveryTypeAndOperation) {
  std::vector<std::pair<Call, Form>> calls;
  for (const Kind kind : kKinds) {
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        const Problem p{.type = static_cast<DataType>(type),
                        .op = static_cast<ReduceOp>(op),
                        .count = 3001,
                        .block = 64,
                        .ranks = GetParam().ranks};
        if (op > 0 && make_call(kind, 0, p, false).copies()) continue;
        calls.emplace_back(make_call(kind, op % GetParam().ranks, p, false), Form::out_of_place);
      }
    }
  }
  run(calls);
}

TEST_P(CollectivesTest, BlocksLargerThanASlot) {
  std::vector<std::pair<Call, Form>> calls;
  for (const Kind kind : kKinds) {
    const Problem p{.count = 30021, .block = 9001, .sparsity = Sparsity::random, .ranks = GetParam().ranks};
    calls.emplace_back(make_call(kind, GetParam().ranks - 1, p, true), Form::out_of_place);
  }
  run(calls);
}

/// Messages for different audiences follow each other, and stay in their senders' buffers where these are
/// lent.
TEST_P(CollectivesTest, ManyInFlightWithChangingRoots) {
  constexpr int kCalls = 150;  // more than may be in flight
  const int ranks = GetParam().ranks;
  std::vector<Call> calls;
  for (int i = 0; i < kCalls; ++i) {
    const Problem p{.count = static_cast<std::uint64_t>(i % 5 == 0 ? 20011 : 40 + i),
                    .block = 16,
                    .sparsity = kSparsities[i % 6],
                    .ranks = ranks,
                    .seed = static_cast<unsigned>(i)};
    calls.push_back(make_call(kKinds[i % 7 % 4], i % ranks, p, false));
  }
  const auto errors = run_ranks(setting(), [&](Communicator& c) {
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<Joined> outs;
    std::vector<Work> works;
    for (const Call& call : calls) {
      outs.push_back(output_of(call, c.rank()));
      memory.push_back(std::make_unique<Memory>(c, call, input_of(call, c.rank()), outs.back(), false));
      works.push_back(start(c, call, *memory.back(), {}, false, {}));
    }
    for (std::size_t i = works.size(); i-- > 0;) {
      works[i].wait();
      const Memory& m = *memory[i];
      if (m.output == nullptr) continue;
      const std::vector<std::byte> result(m.output, m.output + m.output_bytes);
      ASSERT_EQ(first_difference(result, outs[i].data), -1) << calls[i].text() << " rank " << c.rank();
    }
    c.barrier();
  });
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

TEST_P(CollectivesTest, CopiesKeepEveryBit) {
  const auto errors = run_ranks(setting(), [&](Communicator& c) {
    constexpr std::size_t kCount = 5000;
    std::vector<std::uint32_t> data(kCount * static_cast<std::size_t>(c.size()), 7);
    const auto registered = c.register_buffer(data.data(), data.size() * 4);
    const auto pattern = [](std::size_t i) {
      return i % 2 ? 0x80000000u : 0xffc12345u + static_cast<unsigned>(i);
    };
    if (c.rank() == 0) {
      for (std::size_t i = 0; i < kCount; ++i) data[i] = pattern(i);
    }
    c.broadcast({.data = data.data(), .count = kCount, .block_elems = 32}).wait();
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], pattern(i));
    auto* const own = data.data() + kCount * static_cast<std::size_t>(c.rank());
    for (std::size_t i = 0; i < kCount; ++i) own[i] = pattern(i);
    c.allgather({.input = own, .output = data.data(), .count = kCount, .block_elems = 32}).wait();
    for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], pattern(i % kCount));
  });
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

/// No scheme sends less than this. Not all owners have the same number of slices, so ranks differ a little.
TEST(CollectiveBytes, AreThoseOfThePage) {
  constexpr std::uint64_t kCount = 1 << 20;
  for (const int ranks : {2, 4}) {
    Setting s{.transport = "shm", .ranks = ranks, .options = {}};
    s.options.pin = "off";
    const auto errors = run_ranks(s, [&](Communicator& c) {
      const double n = c.size(), bytes = kCount * 4, share = (n - 1) / n;
      std::vector<float> one(kCount, 1.0f), two(kCount);
      const auto a = c.register_buffer(one.data(), kCount * 4), b = c.register_buffer(two.data(), kCount * 4);
      const auto sent = [&](const auto& call) {
        c.barrier();
        const std::uint64_t before = c.statistics().bytes_sent;
        call().wait();
        c.barrier();
        return static_cast<double>(c.statistics().bytes_sent - before);
      };
      const bool root = c.rank() == 0;
      const auto expect = [&](const char* what, double measured, double bound) {
        EXPECT_NEAR(measured, bound, 0.08 * bytes) << what << " rank " << c.rank();
      };
      expect("broadcast", sent([&] { return c.broadcast({.data = one.data(), .count = kCount}); }),
             root ? bytes : bytes * (n - 2) / (n - 1));
      expect("reduce",
             sent([&] { return c.reduce({.input = one.data(), .output = two.data(), .count = kCount}); }),
             root && c.size() == 2 ? 0 : bytes);
      const std::uint64_t chunk = kCount / static_cast<std::uint64_t>(c.size());
      expect("reduce_scatter", sent([&] {
               return c.reduce_scatter({.input = one.data(), .output = two.data(), .count = chunk});
             }),
             bytes * share);
      expect("allgather",
             sent([&] { return c.allgather({.input = one.data(), .output = two.data(), .count = chunk}); }),
             bytes * share);
    });
    for (const auto& e : errors) EXPECT_EQ(e, "");
  }
}

std::vector<Where> places() {
  std::vector<Where> all;
  for (const char* transport : {"loopback", "cma", "shm", "tcp"}) {
    for (const int ranks : {1, 2, 3, 5}) all.push_back({transport, ranks});
  }
  all.push_back({"loopback", 1, 1});
  all.push_back({"loopback", 3, 1});
  all.push_back({"loopback", 3, 2});
  all.push_back({"loopback", 3, 0, 2});
  all.push_back({"loopback", 2, 2, 2});
  all.push_back({"shm", 3, 0, 2});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Places, CollectivesTest, ::testing::ValuesIn(places()),
                         [](const auto& place) { return place.param.text(); });

}  // namespace
}  // namespace nzcl::test

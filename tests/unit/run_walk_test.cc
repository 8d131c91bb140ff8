// RunWalk and SliceView beside a plain loop over the blocks of a slice.
#include "runtime/operation/run_walk.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "runtime/base/bitmap.h"
#include "runtime/operation/slice_view.h"

namespace nzcl::engine {
namespace {

using Kind = BlockOrder::Kind;

/// A slice of a tensor whose last block may be cut short, and a random set of its blocks.
struct AnySlice {
  AnySlice() : layout(any_request()), slice(*rc::gen::inRange<std::uint64_t>(0, layout.slices())) {
    bits = any_bits(layout.blocks_of(slice));
  }
  AnySlice(const AnySlice&) = delete;
  AnySlice& operator=(const AnySlice&) = delete;

  static LayoutRequest any_request() {
    LayoutRequest r;
    r.count = *rc::gen::weightedOneOf<std::uint64_t>(
        {{1, rc::gen::inRange<std::uint64_t>(0, 20)}, {5, rc::gen::inRange<std::uint64_t>(1, 5000)}});
    r.element_bytes = *rc::gen::element<std::uint64_t>(1, 2, 4, 8);
    r.block_elems = *rc::gen::inRange<std::uint64_t>(1, 20);
    r.slice_bytes = *rc::gen::inRange<std::uint64_t>(1, 1 << 14);
    r.slot_bytes = 4096;
    return r;
  }
  static std::vector<std::uint64_t> any_bits(std::uint64_t blocks) {
    const auto density = *rc::gen::element(0.0, 0.05, 0.5, 0.95, 1.0);
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    std::bernoulli_distribution is_set(density);
    std::vector<std::uint64_t> bits(words_for(blocks), 0);
    for (std::uint64_t block = 0; block < blocks; ++block) {
      if (is_set(random)) set_bit(std::span(bits), block);
    }
    return bits;
  }
  SliceView view() const { return {layout, slice, bits}; }
  /// Bytes of one block, by the definition: only the tensor's last one may be short.
  std::uint64_t block_size(std::uint64_t block) const {
    const std::uint64_t begin = (layout.first_block(slice) + block) * layout.block_bytes();
    return std::min(layout.block_bytes(), layout.tensor_bytes() - begin);
  }
  std::vector<std::uint64_t> set_blocks() const {
    std::vector<std::uint64_t> set;
    for (std::uint64_t block = 0; block < layout.blocks_of(slice); ++block) {
      if (test_bit(bits, block)) set.push_back(block);
    }
    return set;
  }

  SliceLayout layout;
  std::uint64_t slice;
  std::vector<std::uint64_t> bits;
};

/// What a walk should meet.
struct Run {
  std::uint64_t block = 0, offset = 0, bytes = 0;
  std::uint64_t first_block_bytes = 0;
  bool continues = false;  // the next run begins where this one ends
};

/// A walk, and the runs that a plain loop over the blocks comes to.
struct AnyWalk : AnySlice {
  AnyWalk() {
    order.kind = *rc::gen::element(Kind::tensor, Kind::stream, Kind::indexed);
    order.first = *rc::gen::inRange<std::uint64_t>(0, 50);
    numbers.resize(order.first + bits.size() * 64);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(*rc::gen::arbitrary<std::uint64_t>()));
    if (order.kind == Kind::indexed) order.order = numbers.data();
    if (order.kind == Kind::tensor && *rc::gen::arbitrary<bool>()) edges = any_bits(layout.blocks_of(slice));
  }
  RunWalk walk() const { return {view(), order, edges}; }

  std::uint64_t offset_of(std::uint64_t block, std::uint64_t ordinal) const {
    switch (order.kind) {
      case Kind::tensor:
        return (layout.first_block(slice) + block) * layout.block_bytes();
      case Kind::stream:
        return (order.first + ordinal) * layout.block_bytes();
      case Kind::indexed:
        return numbers[order.first + ordinal] * layout.block_bytes();
    }
    return 0;
  }
  /// Whether the set block behind the set block `before` belongs to the same run.
  bool same_run(std::uint64_t before, std::uint64_t block) const {
    switch (order.kind) {
      case Kind::tensor:
        return block == before + 1 && (edges.empty() || !test_bit(edges, before));
      case Kind::stream:
        return true;
      case Kind::indexed:
        return false;
    }
    return false;
  }
  std::vector<Run> expected_runs() const {
    std::vector<Run> runs;
    const auto set = set_blocks();
    for (std::size_t i = 0; i < set.size(); ++i) {
      const std::uint64_t bytes = block_size(set[i]);
      if (i > 0 && same_run(set[i - 1], set[i])) {
        runs.back().bytes += bytes;
        continue;
      }
      if (i > 0) runs.back().continues = order.kind == Kind::tensor && set[i] == set[i - 1] + 1;
      runs.push_back({set[i], offset_of(set[i], i), bytes, bytes, false});
    }
    return runs;
  }

  BlockOrder order;
  std::vector<std::uint64_t> numbers, edges;
};

RC_GTEST_PROP(SliceView, CountsWhatALoopCounts, ()) {
  const AnySlice any;
  const SliceView view = any.view();
  const auto set = any.set_blocks();
  std::uint64_t bytes = 0, runs = 0;
  for (std::size_t i = 0; i < set.size(); ++i) {
    bytes += any.block_size(set[i]);
    runs += i == 0 || set[i] != set[i - 1] + 1 ? 1 : 0;
  }
  RC_ASSERT(view.well_formed());
  RC_ASSERT(view.count() == set.size());
  RC_ASSERT(view.runs() == runs);
  RC_ASSERT(view.stream_bytes() == bytes);
  for (std::uint64_t block = 0; block < view.blocks(); ++block) {
    const auto next = std::ranges::lower_bound(set, block);
    RC_ASSERT(view.next(block) == (next == set.end() ? view.blocks() : *next));
    RC_ASSERT((view.next_absent(block) == block) == !test_bit(any.bits, block));
    RC_ASSERT(view.bytes(block, 1) == any.block_size(block));
  }
}

RC_GTEST_PROP(SliceView, BitsBehindTheLastBlockAreNotWellFormed, ()) {
  AnySlice any;
  const std::uint64_t blocks = any.view().blocks();
  RC_PRE(blocks % 64 != 0);
  set_bit(std::span(any.bits), *rc::gen::inRange<std::uint64_t>(blocks, any.bits.size() * 64));
  RC_ASSERT(!any.view().well_formed());
}

RC_GTEST_PROP(SliceView, CopiesBitsAsALoopWould, ()) {
  const auto from = AnySlice::any_bits(200);
  auto to = AnySlice::any_bits(200);
  const auto count = *rc::gen::inRange<std::uint64_t>(0, 201);
  const auto from_bit = *rc::gen::inRange<std::uint64_t>(0, 201 - count);
  const auto to_bit = *rc::gen::inRange<std::uint64_t>(0, 201 - count);
  const auto before = to;
  copy_bits(to, to_bit, from, from_bit, count);
  for (std::uint64_t bit = 0; bit < 200; ++bit) {
    const bool copied = bit >= to_bit && bit < to_bit + count;
    RC_ASSERT(test_bit(to, bit) ==
              (copied ? test_bit(from, from_bit + bit - to_bit) : test_bit(before, bit)));
  }
}

RC_GTEST_PROP(RunWalk, RunsAreAsLongAsTheyCanBe, ()) {
  const AnyWalk any;
  RunWalk walk = any.walk();
  const auto runs = any.expected_runs();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    RC_ASSERT(!walk.at_end());
    RC_ASSERT(walk.block() == runs[i].block);
    RC_ASSERT(walk.offset() == runs[i].offset);
    RC_ASSERT(walk.run_bytes() == runs[i].bytes);
    RC_ASSERT(walk.continues() == runs[i].continues);
    const auto ahead = walk.ahead();
    RC_ASSERT(ahead.has_value() == (i + 1 < runs.size()));
    if (ahead) {
      RC_ASSERT(ahead->offset == runs[i + 1].offset);
      RC_ASSERT(ahead->bytes == runs[i + 1].first_block_bytes);
    }
    RC_ASSERT(walk.advance(walk.run_bytes()));
  }
  RC_ASSERT(walk.at_end());
  RC_ASSERT(!walk.continues());
  RC_ASSERT(!walk.ahead().has_value());
}

RC_GTEST_PROP(RunWalk, StepsOfAnyLengthVisitTheSetBlocksBytesInOrder, ()) {
  const AnyWalk any;
  std::vector<std::uint64_t> visited, expected;
  const auto append = [](std::vector<std::uint64_t>& to, std::uint64_t offset, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; ++i) to.push_back(offset + i);
  };
  const auto set = any.set_blocks();
  for (std::size_t i = 0; i < set.size(); ++i)
    append(expected, any.offset_of(set[i], i), any.block_size(set[i]));
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  for (RunWalk walk = any.walk(); !walk.at_end();) {
    const std::uint64_t left = walk.run_bytes(), block = walk.block();
    const std::uint64_t step = std::uniform_int_distribution<std::uint64_t>(1, left)(random);
    append(visited, walk.offset(), step);
    RC_ASSERT(walk.advance(step) == (step == left));
    if (step < left) RC_ASSERT(walk.block() == block);
  }
  RC_ASSERT(visited == expected);
}

TEST(RunWalk, MadeOfNothingIsAtItsEnd) {
  const RunWalk walk;
  EXPECT_TRUE(walk.at_end());
  EXPECT_FALSE(walk.continues());
  EXPECT_FALSE(walk.ahead().has_value());
}

}  // namespace
}  // namespace nzcl::engine

// Which lanes an operation rings when its slices have been scanned or made by other threads.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "runtime/operation/operation.h"

namespace nzcl::engine {
namespace {

constexpr int kLanes = 2;

class Rings final : public LaneBells {
 public:
  void ring(int lane) noexcept override { ++rings[static_cast<std::size_t>(lane)]; }
  std::array<std::atomic<int>, kLanes> rings{};
};

wire::OperationRecord record_of_floats(std::uint64_t count) {
  wire::OperationRecord record;
  record.count = count;
  record.type = static_cast<std::uint8_t>(DataType::float32);
  return record;
}

/// A lane and a scan thread come to a slice at the same time, again and again, until the lane has been
/// refused many times. It is rung exactly that often, and the other lane never.
TEST(SliceWakeup, ALaneIsRungForTheScanThatItHasFoundUnderWay) {
  constexpr std::uint64_t kSlices = 32, kSliceBytes = 1 << 20;
  const std::vector<float> input(kSlices * kSliceBytes / sizeof(float), 1.0f);
  int refused = 0;
  while (refused < 50) {
    const SliceLayout layout(
        {.count = input.size(), .owners = kLanes, .slice_bytes = kSliceBytes, .slot_bytes = 1 << 17});
    Operation op(layout, record_of_floats(input.size()),
                 {.base = reinterpret_cast<const std::byte*>(input.data())}, {}, kLanes);
    Rings bells;
    op.ring_lanes(&bells, kLanes);
    ASSERT_GE(layout.slices(), kSlices);
    std::atomic<std::uint64_t> turn{
        0};  // twice the number of the slice, plus one when the scan thread is there
    std::array<int, kLanes> expected{};
    std::jthread scanner([&] {
      for (std::uint64_t s = 0; s < layout.slices(); ++s) {
        while (turn.load() != 2 * s) std::this_thread::yield();
        turn.store(2 * s + 1);
        op.scan_ahead(s);
      }
    });
    for (std::uint64_t s = 0; s < layout.slices(); ++s) {
      while (turn.load() != 2 * s + 1) std::this_thread::yield();
      if (!op.ensure_scanned(s)) {
        const auto lane = layout.owner(s) % kLanes;
        ++refused, ++expected[lane];
        while (bells.rings[lane].load() < expected[lane]) std::this_thread::yield();
        EXPECT_TRUE(op.ensure_scanned(s)) << "a lane that is rung finds the slice scanned";
      }
      turn.store(2 * s + 2);
    }
    scanner.join();
    for (int lane = 0; lane < kLanes; ++lane)
      EXPECT_EQ(bells.rings[static_cast<std::size_t>(lane)].load(), expected[static_cast<std::size_t>(lane)]);
  }
}

/// Slices that have been made, by their first elements.
class Source final : public TileSource {
 public:
  void make(std::uint64_t begin, std::uint64_t) override { made.insert(begin); }
  bool ready(std::uint64_t begin, std::uint64_t) const override { return made.contains(begin); }
  TilePart part(std::uint64_t, std::uint64_t, TileScratch&) const override { return {}; }
  std::span<const std::uint16_t> drawn(std::uint64_t, std::uint64_t, TileScratch&) const override {
    return {};
  }
  std::set<std::uint64_t> made;
};

class MadeSliceTest : public ::testing::Test {
 protected:
  MadeSliceTest() {
    op.set_input_source(source);
    op.ring_lanes(&bells, kLanes);
  }
  int rings(std::uint64_t slice) const { return bells.rings[op.layout.owner(slice) % kLanes].load(); }
  std::uint64_t begin_of(std::uint64_t slice) const {
    return op.layout.tile_begin(op.layout.tile_number(slice, 0));
  }

  static constexpr std::uint64_t kCount = 1 << 20;
  Rings bells;
  std::shared_ptr<Source> source = std::make_shared<Source>();
  Operation op{SliceLayout({.count = kCount,
                            .block_elems = 1,
                            .owners = kLanes,
                            .slice_bytes = 1 << 20,
                            .slot_bytes = 1 << 17,
                            .tile_block_bytes = 512}),
               record_of_floats(kCount),
               {},
               {},
               kLanes};
};

TEST_F(MadeSliceTest, RingsTheLaneThatHasAskedForASliceThatIsMadeAhead) {
  ASSERT_GE(op.layout.slices(), 2u);
  const std::uint64_t asked = 1;
  EXPECT_FALSE(op.ensure_scanned(asked));
  EXPECT_FALSE(op.ensure_scanned(asked));
  op.scan_ahead(0);
  EXPECT_EQ(rings(0) + rings(1), 0) << "nobody has asked for slice 0";
  op.scan_ahead(asked);
  EXPECT_EQ(rings(asked), 1);
  EXPECT_TRUE(op.ensure_scanned(asked));
  op.scan_ahead(asked);
  EXPECT_EQ(rings(asked), 1);
}

TEST_F(MadeSliceTest, RingsForEverySliceThatTheCallerHasMade) {
  EXPECT_FALSE(op.ensure_scanned(0));
  EXPECT_FALSE(op.ensure_scanned(1));
  ASSERT_NE(op.layout.owner(0), op.layout.owner(1));
  source->make(begin_of(1), 0);
  op.ring_for_made();
  EXPECT_EQ(rings(1), 1);
  EXPECT_EQ(rings(0), 0);
  source->make(begin_of(0), 0);
  op.ring_for_made();
  EXPECT_EQ(rings(0), 1);
  EXPECT_EQ(rings(1), 1);
}

}  // namespace
}  // namespace nzcl::engine

// Where the pieces of a packed result lie, and which lanes are rung when that becomes known.
#include "runtime/operation/packed_positions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace nzcl::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Rings final : public LaneBells {
 public:
  void ring(int lane) noexcept override { lanes.push_back(lane); }
  std::vector<int> lanes;
};

class PackedPositionsTest : public ::testing::Test {
 protected:
  PackedPositionsTest() { positions.ring(&rings); }
  PackedPositions positions{10, 3};
  Rings rings;
};

TEST_F(PackedPositionsTest, CountsTheBlocksBefore) {
  EXPECT_EQ(positions.before(0, 0), 0u);
  positions.note(1, 5);
  EXPECT_FALSE(positions.before(2, 0));
  positions.note(0, 3);
  EXPECT_EQ(positions.before(2, 0), 8u);
  EXPECT_EQ(positions.before(1, 0), 3u) << "a lane may ask for an earlier piece";
}

TEST_F(PackedPositionsTest, RingsTheLaneThatWaitsWhenTheLastMissingPieceIsCounted) {
  EXPECT_FALSE(positions.before(4, 1));
  positions.note(0, 1);
  positions.note(2, 1);
  positions.note(1, 1);
  EXPECT_THAT(rings.lanes, IsEmpty()) << "piece 3 is still missing";
  positions.note(3, 1);
  EXPECT_THAT(rings.lanes, ElementsAre(1));
  EXPECT_EQ(positions.before(4, 1), 4u);
  positions.note(4, 1);
  EXPECT_THAT(rings.lanes, ElementsAre(1)) << "it waits no longer";
}

TEST_F(PackedPositionsTest, RingsNobodyWhoDoesNotWait) {
  EXPECT_FALSE(positions.before(2, 2));
  EXPECT_EQ(positions.before(0, 1), 0u);
  positions.note(0, 1);
  positions.note(1, 1);
  positions.note(2, 1);
  EXPECT_THAT(rings.lanes, ElementsAre(2));
}

TEST_F(PackedPositionsTest, ALaneThatWantsSeveralPiecesIsRungForTheFirst) {
  for (const std::uint64_t wanted : {7u, 2u, 5u}) EXPECT_FALSE(positions.before(wanted, 0));
  positions.note(0, 1);
  EXPECT_THAT(rings.lanes, IsEmpty());
  positions.note(1, 1);
  EXPECT_THAT(rings.lanes, ElementsAre(0));
}

/// Between the looks at two pieces that a lane wants, the first of them may become placeable. Nobody else
/// knows that it has to look at that one again.
TEST_F(PackedPositionsTest, ALaneThatFindsThatItsEarlierPieceCanBePlacedRingsItself) {
  EXPECT_FALSE(positions.before(1, 0));
  positions.ring(nullptr);  // as if the noter had not seen yet that the lane waits
  positions.note(0, 1);
  positions.ring(&rings);
  EXPECT_FALSE(positions.before(3, 0));
  EXPECT_THAT(rings.lanes, ElementsAre(0));
}

/// Whoever counted from the first piece on again for each of these would not end within the life of the test.
TEST(PackedPositions, CountsBackwardsFromWhereItIs) {
  constexpr std::uint64_t kPieces = 1 << 20;
  PackedPositions positions(kPieces, 1);
  for (std::uint64_t p = 0; p < kPieces; ++p) positions.note(p, 3);
  for (std::uint64_t p = kPieces; p-- > 0;) ASSERT_EQ(positions.before(p, 0), 3 * p);
}

/// Lanes count pieces in any order while others wait. Each waits until it is rung and looks only then, so a
/// ring that is lost would leave it waiting for ever.
TEST(PackedPositions, NoRingIsLostBetweenThreads) {
  constexpr int kLanes = 3;
  constexpr std::uint64_t kPieces = 300;
  class Bells final : public LaneBells {
   public:
    void ring(int lane) noexcept override {
      auto& rings = rings_[static_cast<std::size_t>(lane)];
      rings.fetch_add(1);
      rings.notify_one();
    }
    std::uint32_t rings(int lane) const { return rings_[static_cast<std::size_t>(lane)].load(); }
    void wait(int lane, std::uint32_t seen) const { rings_[static_cast<std::size_t>(lane)].wait(seen); }

   private:
    std::array<std::atomic<std::uint32_t>, kLanes> rings_{};
  };
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Bells bells;
    PackedPositions positions(kPieces, kLanes);
    positions.ring(&bells);
    std::array<std::vector<std::uint64_t>, kLanes> of_lane;
    std::mt19937 random(seed);
    for (std::uint64_t p = 0; p < kPieces; ++p) of_lane[random() % kLanes].push_back(p);
    std::vector<std::jthread> threads;
    for (int lane = 0; lane < kLanes; ++lane) {
      threads.emplace_back([&, lane] {
        // Counts its pieces a few at a time, and places each when it can, as a lane does.
        const auto& mine = of_lane[static_cast<std::size_t>(lane)];
        std::size_t counted = 0;
        for (std::size_t placed = 0; placed < mine.size(); ++placed) {
          while (counted < mine.size() && counted <= placed + seed % 3) positions.note(mine[counted++], 2);
          while (true) {
            const std::uint32_t seen = bells.rings(lane);
            if (const auto before = positions.before(mine[placed], lane)) {
              EXPECT_EQ(*before, 2 * mine[placed]);
              break;
            }
            bells.wait(lane, seen);
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace nzcl::engine

// Merging between two ranks that tell their streams in lists of tiles, with the other rank played by the
// test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>

#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/merging/merging_exchange.h"
#include "tests/engine/partial_sum.h"

namespace nzcl::test {
namespace {

using engine::MergingExchange;
using engine::Operation;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Direction;
using wire::Priority;

/// A tensor of 2048 floats, in 8 tiles of 256, of which this rank has a stream.
class ListsTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kCount = 2048, kTiles = 8;

  ListsTest()
      : fed_({.self = 0,
              .workers = 2,
              .dedicated = 0,
              .slot_bytes = 2048,
              .tile_block_bytes = 64,
              .merging = true}),
        exchange_(fed_.context()) {}

  /// Starts an operation to which this rank contributes these elements.
  Operation& start(const std::vector<std::int64_t>& elements, std::vector<float> values,
                   const char* refusal = nullptr) {
    operation_.emplace(fed_, 0, std::vector<float>(kCount, 0.0f), merging_record());
    values_ = std::move(values);
    Operation& op = operation_->operation;
    EXPECT_EQ(op.layout.tiles(), kTiles);
    EXPECT_EQ(op.layout.slices(), 1u);
    engine::ElementStream stream;
    stream.values = std::as_bytes(std::span(values_)).data();
    stream.units = engine::StreamUnits(elements.size(), op.layout);
    stream.units.append(std::span(elements));
    stream.units.end();
    op.set_input_stream(std::move(stream));
    if (refusal != nullptr) {
      op.refusal = std::make_unique<wire::Refusal>(std::uint16_t{0}, std::uint16_t{1}, refusal);
      op.set_no_input();
    }
    exchange_.submit(op);
    return op;
  }
  void feed(const PartialSum& sum) { fed_.feed_bytes(1, Direction::up, Priority::merging, sum.bytes()); }
  void feed_list(std::uint64_t first_tile, std::uint32_t tiles, const std::vector<std::uint32_t>& numbers,
                 const std::vector<float>& what) {
    PartialSum sum = PartialSum::list(0, kCount, tiles, numbers, what);
    if (first_tile > 0) sum.header.flags = wire::kTiles, sum.header.stream_offset = first_tile;
    feed(sum);
  }
  std::vector<HandFed::Sent> step() { return fed_.run(exchange_); }
  /// The result, as far as it is not zero.
  std::map<std::size_t, float> sums() const {
    std::map<std::size_t, float> some;
    for (std::size_t i = 0; i < kCount; ++i) {
      if (operation_->data[i] != 0) some[i] = operation_->data[i];
    }
    return some;
  }

  HandFed fed_;
  MergingExchange exchange_;
  std::vector<float> values_;
  std::optional<HandMade> operation_;
};
using Sums = std::map<std::size_t, float>;

TEST_F(ListsTest, OfAllTilesAreMergedAtOnce) {
  Operation& op = start({3, 300, 1500}, {1, 2, 3});
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].message.header.tiles, kTiles);
  const auto& payload = sent[0].message.payload;
  const auto word = [&](std::size_t i) { return std::bit_cast<std::uint32_t>(payload.at(i)); };
  const wire::TileDescriptor listed{.count = kTiles - 1, .parameter = wire::TileDescriptor::kListed};
  EXPECT_EQ(word(0), listed.encode());
  EXPECT_EQ(word(1), 3u) << "units";
  EXPECT_THAT((std::vector<float>{payload.begin() + 2, payload.begin() + 5}), ElementsAre(1, 2, 3));
  EXPECT_THAT((std::vector{word(5), word(6), word(7)}), ElementsAre(3u, 300u, 1500u));
  EXPECT_FALSE(op.finished());
  feed_list(0, kTiles, {3, 700}, {10, 20});
  EXPECT_THAT(step(), IsEmpty()) << "nothing is sent back";
  ASSERT_TRUE(op.finished()) << fed_.failure();
  EXPECT_EQ(sums(), (Sums{{3, 11.0f}, {300, 2.0f}, {700, 20.0f}, {1500, 3.0f}}));
  EXPECT_EQ(op.union_blocks.load(), 4u);
  EXPECT_EQ(op.input_blocks.load(), 3u);
  EXPECT_TRUE(exchange_.idle());
}

TEST_F(ListsTest, NeedNotBeginAndEndWithTheSameTiles) {
  Operation& op = start({3, 300, 1500, 2047}, {1, 2, 3, 4});
  step();
  feed_list(0, 1, {200}, {10});
  feed_list(1, 5, {44, 45, 1279}, {20, 30, 40});  // of tile 1 on: 300, 301, 1535
  step();
  EXPECT_FALSE(op.finished());
  feed_list(6, 2, {511}, {50});
  step();
  ASSERT_TRUE(op.finished()) << fed_.failure();
  EXPECT_EQ(
      sums(),
      (Sums{
          {3, 1.0f}, {200, 10.0f}, {300, 22.0f}, {301, 30.0f}, {1500, 3.0f}, {1535, 40.0f}, {2047, 54.0f}}));
  EXPECT_EQ(op.union_blocks.load(), 7u);
}

TEST_F(ListsTest, AreMergedWithTilesAndWithNothing) {
  Operation& op = start({3, 300, 1500}, {1, 2, 3});
  step();
  PartialSum tile(0, {3, 255}, {10, 20});
  tile.record.count = kCount;
  feed(tile);
  PartialSum empty(0, {}, {});
  empty.header.flags = wire::kTiles, empty.header.stream_offset = 1, empty.header.tiles = 3;
  empty.descriptor.count = 2;  // that follow the first one
  feed(empty);
  feed_list(4, 4, {476}, {30});  // 1500
  step();
  ASSERT_TRUE(op.finished()) << fed_.failure();
  EXPECT_EQ(sums(), (Sums{{3, 11.0f}, {255, 20.0f}, {300, 2.0f}, {1500, 33.0f}}));
}

TEST_F(ListsTest, AreReadTileByTileWhereThisRankHasManyElements) {
  std::vector<std::int64_t> elements(256);  // all of tile 1, which is no list
  std::iota(elements.begin(), elements.end(), 256);
  elements.push_back(2000);
  Operation& op = start(elements, std::vector<float>(elements.size(), 1.0f));
  step();
  feed_list(0, kTiles, {5, 256, 511, 512, 2000}, {10, 20, 30, 40, 50});
  step();
  ASSERT_TRUE(op.finished()) << fed_.failure();
  EXPECT_EQ(operation_->data[5], 10);
  EXPECT_EQ(operation_->data[256], 21);
  EXPECT_EQ(operation_->data[300], 1);
  EXPECT_EQ(operation_->data[511], 31);
  EXPECT_EQ(operation_->data[512], 40);
  EXPECT_EQ(operation_->data[2000], 51);
  EXPECT_EQ(op.union_blocks.load(), 256u + 3u);
}

TEST_F(ListsTest, OfAnOperationThatIsRefusedAreDropped) {
  Operation& op = start({}, {}, "not this way");
  const auto sent = step();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_NE(sent[0].message.header.flags & wire::kRefused, 0);
  feed_list(0, 5, {3, 700}, {10, 20});
  feed_list(5, 3, {3}, {10});
  step();
  ASSERT_TRUE(op.finished()) << fed_.failure();
  EXPECT_THAT(op.failure()->text, HasSubstr("rank 0 refused its request: not this way"));
  EXPECT_TRUE(exchange_.idle());
}

TEST_F(ListsTest, ThatCannotBeAreRefusedByName) {
  const auto refused = [](const PartialSum& sum) {
    HandFed fed({.self = 0,
                 .workers = 2,
                 .dedicated = 0,
                 .slot_bytes = 2048,
                 .tile_block_bytes = 64,
                 .merging = true});
    MergingExchange exchange(fed.context());
    HandMade op(fed, 0, std::vector<float>(kCount, 0.0f), merging_record());
    op.operation.set_no_input();
    engine::agree(fed.context(), 0, 0, op.operation.record, nullptr);
    exchange.submit(op.operation);
    fed.run(exchange);
    fed.feed_bytes(1, Direction::up, Priority::merging, sum.bytes());
    fed.run(exchange);
    return fed.failure();
  };
  const std::vector<float> three{1, 2, 3};
  const auto list = [&](std::uint32_t tiles, const std::vector<std::uint32_t>& numbers) {
    return PartialSum::list(0, kCount, tiles, numbers, three);
  };
  EXPECT_EQ(refused(list(8, {1, 2, 3})), "");
  EXPECT_THAT(refused(list(8, {1, 3, 2})),
              HasSubstr("rank 1 sent a partial sum of operation 0 slice 0 that can't "
                        "be: its index set is malformed"));
  EXPECT_THAT(refused(list(8, {1, 2, 2})), HasSubstr("index set is malformed"));
  EXPECT_THAT(refused(list(8, {1, 2, 2048})), HasSubstr("index set is malformed"));
  EXPECT_THAT(refused(list(4, {1, 2, 1024})), HasSubstr("index set is malformed"));
  EXPECT_THAT(refused(list(9, {1, 2, 3})), HasSubstr("not so many tiles"));
  PartialSum fewer = list(8, {1, 2, 3});
  fewer.header.tiles = 7;
  EXPECT_THAT(refused(fewer), HasSubstr("its section has not so many tiles"));
  PartialSum nothing = PartialSum::list(0, kCount, 8, {}, {});
  EXPECT_THAT(refused(nothing), HasSubstr("counts elements that its code cannot have"));
  PartialSum longer = list(8, {1, 2, 3});
  longer.values[0] = std::bit_cast<float>(4u);
  EXPECT_THAT(refused(longer), HasSubstr("longer than its message"));
}

}  // namespace
}  // namespace nzcl::test

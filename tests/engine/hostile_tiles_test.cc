// Tiles that no honest peer sends. Each is refused, before it can do any harm, by an error that names the
// peer and says what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <optional>

#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"
#include "tests/engine/hand_fed.h"

namespace nzcl::test {
namespace {

using engine::Aggregator;
using engine::Worker;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using wire::Direction;
using wire::IndexCode;
using wire::Priority;
using wire::ValueCode;

constexpr HandFed::Setup kTiled{.self = 2, .slot_bytes = 2048, .tile_block_bytes = 64};
constexpr std::uint64_t kCount = 1000, kTileElements = 256, kTiles = 4;  // the last tile has 232 elements

/// The tensor of the operation: by default single elements. The other one has blocks of 4, in the last of
/// which there are 2 elements. Its tiles have as many elements.
struct Tensor {
  std::uint64_t count = kCount, block = 1;
  wire::OperationRecord record() const {
    wire::OperationRecord r = HandMade::record(count);
    r.block_elems = block;
    return r;
  }
};
constexpr Tensor kBlocks{.count = 998, .block = 4};

/// A tile's bytes, as words of 32 bits.
struct TileBytes {
  std::uint32_t count = 2;
  IndexCode index = IndexCode::offsets;
  ValueCode value = ValueCode::as_is;
  std::size_t values = 2;
  std::vector<std::uint32_t> coded = {};        // words of coded values, behind the others
  std::vector<std::uint16_t> index_set{3, 60};  // with its length, where the code has one
  std::uint32_t more_bits = 0;                  // of the descriptor

  std::vector<float> words() const {
    std::vector<float> words{
        std::bit_cast<float>(wire::TileDescriptor{count, index, value}.encode() | more_bits)};
    words.insert(words.end(), values, 1.0f);
    for (const std::uint32_t word : coded) words.push_back(std::bit_cast<float>(word));
    for (std::size_t i = 0; i < index_set.size(); i += 2) {
      const std::uint32_t high = i + 1 < index_set.size() ? index_set[i + 1] : 0;
      words.push_back(std::bit_cast<float>(index_set[i] | high << 16));
    }
    return words;
  }
};

Message tiles(const std::vector<TileBytes>& all, bool first = true,
              wire::ValueRule rule = wire::ValueRule::as_is, const Tensor& tensor = {}) {
  Message m;
  m.header.flags = static_cast<std::uint16_t>(wire::kTiles | (first ? wire::kHasBitmap : 0));
  m.header.tiles = static_cast<std::uint32_t>(all.size());
  m.record = tensor.record();
  m.record.value_rule = rule;
  for (const TileBytes& t : all) {
    const auto words = t.words();
    m.payload.insert(m.payload.end(), words.begin(), words.end());
  }
  return m;
}

/// Tiles in one list, by default all of the tensor's.
struct ListBytes {
  std::uint32_t tiles = kTiles;
  std::uint32_t count = 3;
  std::size_t values = 3;
  std::vector<std::uint32_t> offsets{3, 300, 999};
};

Message list(const ListBytes& l, wire::ValueRule rule = wire::ValueRule::as_is, const Tensor& tensor = {}) {
  Message m = tiles({}, true, rule, tensor);
  m.header.tiles = l.tiles;
  const wire::TileDescriptor descriptor{.count = l.tiles - 1, .parameter = wire::TileDescriptor::kListed};
  m.payload = {std::bit_cast<float>(descriptor.encode()), std::bit_cast<float>(l.count)};
  m.payload.insert(m.payload.end(), l.values, 1.0f);
  for (const std::uint32_t offset : l.offsets) m.payload.push_back(std::bit_cast<float>(offset));
  return m;
}
Message down(Message m) {
  m.header.flags &= static_cast<std::uint16_t>(~wire::kHasBitmap);
  return m;
}

/// What an aggregator says to messages of rank 1, when rank 0 has sent a whole slice of good ones, which are
/// `others` or single tiles.
std::string aggregator_says(const std::vector<Message>& messages,
                            wire::ValueRule rule = wire::ValueRule::as_is, const Tensor& tensor = {},
                            const std::optional<Message>& others = std::nullopt) {
  HandFed fed(kTiled);
  Aggregator aggregator(fed.context(), Priority::bulk);
  const TileBytes nothing{.count = 0, .index = IndexCode::none, .values = 0, .index_set = {}};
  const TileBytes good = tensor.block == 1 ? TileBytes() : nothing;
  fed.feed(0, Direction::up, others.value_or(tiles({good, good, good, good}, true, rule, tensor)),
           Priority::bulk);
  for (const Message& m : messages) fed.feed(1, Direction::up, m, Priority::bulk);
  for (int i = 0; i < 20; ++i) {
    aggregator.step();
    fed.drop_sent();
  }
  return fed.failure();
}

/// What a worker says to these results of its only operation.
std::string worker_says(const std::vector<Message>& messages, bool* finished = nullptr,
                        const Tensor& tensor = {}) {
  HandFed::Setup setup = kTiled;
  setup.self = 0;
  HandFed fed(setup);
  Worker worker(fed.context(), Priority::bulk);
  HandMade started(fed, 0, std::vector<float>(tensor.count, 0.0f), tensor.record());
  worker.submit(&started.operation);
  while (worker.step()) fed.drop_sent();
  for (const Message& m : messages) fed.feed(2, Direction::down, m, Priority::bulk);
  for (int i = 0; i < 20; ++i) {
    worker.step();
    fed.drop_sent();
  }
  if (finished != nullptr) *finished = started.operation.finished();
  return fed.failure();
}

TEST(HostileTiles, GoodOnesAreTaken) {
  HandFed fed(kTiled);
  for (const Tensor& tensor : {Tensor(), kBlocks}) {
    const auto layout = fed.layout(0, tensor.record());
    ASSERT_TRUE(layout.tiled());
    ASSERT_EQ(layout.unit_elements(), tensor.block);
    ASSERT_EQ(layout.tile_elements(), kTileElements);
    ASSERT_EQ(layout.slices(), 1u);
    ASSERT_EQ(layout.tiles(), kTiles);
  }
  EXPECT_EQ(aggregator_says({tiles({{}, {}, {}, {}})}), "");
  bool finished = false;
  EXPECT_EQ(worker_says({tiles({{}, {}, {}, {}}, false)}, &finished), "");
  EXPECT_TRUE(finished);
}

/// Tiles that are wrong in themselves, and what is said of them.
const std::vector<std::pair<TileBytes, const char*>> kWrong{
    {{.count = 257, .values = 257}, "counts elements that its code cannot have"},
    {{.count = 0}, "counts elements that its code cannot have"},
    {{.count = 5, .index = IndexCode::none, .values = 0, .index_set = {}},
     "its section has not so many tiles"},  // it and 5 others
    {{.count = 0x1ffff, .index = IndexCode::none, .values = 0, .index_set = {}},
     "its section has not so many tiles"},
    {{.count = 255, .index = IndexCode::all, .values = 255, .index_set = {}},
     "counts elements that its code cannot have"},
    {{.index = IndexCode::drawn, .index_set = {}},
     "its index set or its values are malformed"},  // nobody has drawn anything
    {{.value = static_cast<ValueCode>(5)}, "a code that does not exist"},
    {{.more_bits = 1u << 31}, "a code that does not exist"},
    {{.count = 200, .values = 1}, "longer than its message"},
    {{.index = IndexCode::bitmap, .index_set = {3}}, "longer than its message"},
    {{.index = IndexCode::gaps, .index_set = {900, 0}}, "longer than its message"},
    {{.index_set = {60, 3}}, "its index set or its values are malformed"},
    {{.index_set = {60, 60}}, "its index set or its values are malformed"},
    {{.index_set = {3, 256}}, "its index set or its values are malformed"},
    {{.index = IndexCode::bitmap, .index_set = {7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
     "its index set or its values are malformed"},  // three bits, two values
    {{.index = IndexCode::gaps, .index_set = {2, 0xffff}}, "its index set or its values are malformed"},
    {{.index = IndexCode::runs, .index_set = {4, 255, 1}},
     "its index set or its values are malformed"},  // beyond the tile
    {{.index = IndexCode::runs, .index_set = {4, 3, 5}},
     "its index set or its values are malformed"},  // longer than its count
};

/// Runs of empty tiles, and single ones, in any order against those of rank 0, none of which is empty.
TEST(HostileTiles, RunsOfEmptyTilesAreTaken) {
  const auto run = [](std::uint32_t tiles) {
    return TileBytes{.count = tiles - 1, .index = IndexCode::none, .values = 0, .index_set = {}};
  };
  const std::vector<std::vector<TileBytes>> all{{run(4)},     {run(1), run(3)}, {run(3), {}},
                                                {{}, run(3)}, {{}, run(2), {}}, {run(2), run(2)}};
  for (const auto& some : all) {
    Message up = tiles(some);
    up.header.tiles = kTiles;
    EXPECT_EQ(aggregator_says({up}), "");
    Message down = tiles(some, false);
    down.header.tiles = kTiles;
    bool finished = false;
    EXPECT_EQ(worker_says({down}, &finished), "");
    EXPECT_TRUE(finished);
  }
}

/// Lists against single tiles, which are summed one by one, and against other lists, which are not. Their
/// sections may end anywhere.
TEST(HostileTiles, ListsAreTaken) {
  const auto rest = [](ListBytes l, std::uint64_t before) {
    Message m = down(list(l));
    m.header.stream_offset = before;
    return m;
  };
  const std::vector<std::vector<Message>> all{
      {list({})},
      {list({.tiles = 3, .offsets = {0, 255, 256}}), rest({.tiles = 1, .offsets = {0, 1, 231}}, 3)},
      {list({.tiles = 2, .count = 1, .values = 1, .offsets = {511}}),
       rest({.tiles = 2, .offsets = {3, 300, 487}}, 2)},
      {list({.tiles = 1, .offsets = {3, 4, 5}}), rest({.tiles = 3, .offsets = {256, 511, 743}}, 1)},
      {tiles({{}}), rest({.tiles = 3, .offsets = {0, 1, 2}}, 1)},
  };
  for (const auto& some : all) {
    for (const auto& others : {std::optional<Message>(), std::optional<Message>(list({}))})
      EXPECT_EQ(aggregator_says(some, wire::ValueRule::as_is, {}, others), "");
  }
  bool finished = false;
  EXPECT_EQ(worker_says({down(list({}))}, &finished), "");
  EXPECT_TRUE(finished);
}

/// Of tensors with blocks, in which the last tile has a short block and is told alone.
TEST(HostileTiles, ListsOfBlocksAreTaken) {
  const TileBytes nothing{.count = 0, .index = IndexCode::none, .values = 0, .index_set = {}};
  const Message some =
      list({.tiles = 3, .values = 12, .offsets = {3, 64, 191}}, wire::ValueRule::as_is, kBlocks);
  Message last = tiles({nothing}, false, wire::ValueRule::as_is, kBlocks);
  last.header.stream_offset = 3;
  EXPECT_EQ(aggregator_says({some, last}, wire::ValueRule::as_is, kBlocks), "");
  bool finished = false;
  EXPECT_EQ(worker_says({down(some), last}, &finished, kBlocks), "");
  EXPECT_TRUE(finished);
}

TEST(HostileTiles, MalformedListsOfBlocksAreRefused) {
  const std::vector<std::pair<ListBytes, const char*>> all{
      {{.tiles = 3, .values = 12, .offsets = {3, 64, 192}}, "malformed"},
      {{.tiles = 3, .values = 12, .offsets = {64, 3, 191}}, "malformed"},
      {{.tiles = 3, .values = 3, .offsets = {3, 64, 191}}, "longer than its message"},
      {{.tiles = 4, .values = 12, .offsets = {3, 64, 191}}, "whose last block is shorter"},
  };
  for (const auto& [wrong, text] : all) {
    const Message m = list(wrong, wire::ValueRule::as_is, kBlocks);
    EXPECT_THAT(aggregator_says({m}, wire::ValueRule::as_is, kBlocks), HasSubstr(text));
    EXPECT_THAT(worker_says({down(m)}, nullptr, kBlocks), HasSubstr(text));
  }
}

TEST(HostileTiles, MalformedListsAreRefused) {
  const std::vector<std::pair<ListBytes, const char*>> all{
      {{.offsets = {3, 300, 1000}}, "malformed"},  // beyond the tensor, whose last tile is shorter
      {{.offsets = {3, 300, 0xffffffff}}, "malformed"},
      {{.offsets = {3, 300, 300}}, "malformed"},
      {{.offsets = {300, 3, 999}}, "malformed"},
      {{.tiles = 1}, "malformed"},  // the others are beyond its only tile
      {{.count = 0, .values = 0, .offsets = {}}, "counts elements that its code cannot have"},
      {{.count = 100}, "longer than its message"},
      {{.count = 4}, "longer than its message"},
      {{.count = 0xffffffff}, "counts elements that its code cannot have"},
  };
  for (const auto& [wrong, text] : all) {
    EXPECT_THAT(aggregator_says({list(wrong)}), HasSubstr(text)) << "among single tiles";
    EXPECT_THAT(aggregator_says({list(wrong)}, wire::ValueRule::as_is, {}, list({})), HasSubstr(text));
    EXPECT_THAT(worker_says({down(list(wrong))}), HasSubstr(text));
  }
  Message longer = list({});
  longer.header.tiles = 2;
  EXPECT_THAT(aggregator_says({longer}), HasSubstr("its section has not so many tiles"));
  EXPECT_THAT(worker_says({down(longer)}), HasSubstr("its section has not so many tiles"));
  EXPECT_THAT(aggregator_says({list({}, wire::ValueRule::coded)}, wire::ValueRule::coded),
              HasSubstr("it is in a list, and its operation codes values"));
}

TEST(HostileTiles, MalformedContributionsAreRefused) {
  for (const auto& [wrong, text] : kWrong) {
    EXPECT_THAT(
        aggregator_says({tiles({wrong})}),
        AllOf(StartsWith("rank 1 sent a tile of operation 0 slice 0 that can't be: "), HasSubstr(text)));
    EXPECT_THAT(aggregator_says({tiles({{}, wrong, {}})}), HasSubstr(text)) << "in the middle";
  }
  EXPECT_THAT(aggregator_says({tiles({{.value = ValueCode::float16, .values = 1}})}),
              HasSubstr("coded in another way than the operation says"));
}

/// Tiles of blocks: the last one has 58, of which the last one has 2 elements.
TEST(HostileTiles, PartsOfBlocksAreRefused) {
  const TileBytes two{.count = 8, .values = 8};
  const TileBytes last_and_first{.count = 6, .values = 6, .index_set = {0, 57}};
  const auto contributed = [&](const TileBytes& first, const TileBytes& last) {
    return aggregator_says({tiles({first, two, two, last}, true, wire::ValueRule::as_is, kBlocks)},
                           wire::ValueRule::as_is, kBlocks);
  };
  const auto resulting = [&](const TileBytes& first, const TileBytes& last) {
    return worker_says({tiles({first, two, two, last}, false, wire::ValueRule::as_is, kBlocks)}, nullptr,
                       kBlocks);
  };
  const TileBytes all{.count = 230, .index = IndexCode::all, .values = 230, .index_set = {}};
  for (const TileBytes& good : {last_and_first, all}) {
    EXPECT_EQ(contributed(two, good), "");
    EXPECT_EQ(resulting(two, good), "");
  }
  const std::pair<TileBytes, const char*> wrong_first[] = {
      {{.count = 6, .values = 6}, "parts of blocks"},
      {{.count = 1, .values = 1, .index_set = {0}}, "parts of blocks"},
      {{.count = 255, .values = 255}, "parts of blocks"},
      {{.count = 8, .values = 8, .index_set = {3, 64}}, "malformed"},
      {{.count = 8, .values = 8, .index_set = {60, 3}}, "malformed"},
      {{.count = 8, .index = IndexCode::bitmap, .values = 8, .index_set = {7, 0, 0, 0}}, "malformed"},
      {{.count = 8, .index = IndexCode::runs, .values = 8, .index_set = {4, 63, 1}}, "malformed"},
      {{.count = 8, .index = IndexCode::runs, .values = 8, .index_set = {4, 3, 2}}, "malformed"},
  };
  for (const auto& [wrong, text] : wrong_first) {
    EXPECT_THAT(contributed(wrong, last_and_first), AllOf(StartsWith("rank 1 sent"), HasSubstr(text)));
    EXPECT_THAT(resulting(wrong, last_and_first), AllOf(StartsWith("aggregator 0 sent"), HasSubstr(text)));
  }
  // A last tile that counts its last block as if it were whole, or another one as if it were that.
  const std::pair<TileBytes, const char*> wrong_last[] = {
      {{.count = 8, .values = 8, .index_set = {0, 57}}, "malformed"},
      {{.count = 6, .values = 6, .index_set = {0, 56}}, "malformed"},
      {{.count = 6, .index = IndexCode::bitmap, .values = 6, .index_set = {3, 0, 0, 0}}, "malformed"},
      {{.count = 7, .values = 7, .index_set = {0, 57}}, "parts of blocks"},
      {{.count = 232, .values = 232, .index_set = {}}, "cannot have"},
      {{.count = 228, .index = IndexCode::all, .values = 228, .index_set = {}}, "cannot have"},
  };
  for (const auto& [wrong, text] : wrong_last) {
    EXPECT_THAT(contributed(two, wrong), AllOf(StartsWith("rank 1 sent"), HasSubstr(text)));
    EXPECT_THAT(resulting(two, wrong), AllOf(StartsWith("aggregator 0 sent"), HasSubstr(text)));
  }
}

/// A tile of a compressed gradient: two values of code signs, 1 and -1. Their signs take a byte, behind which
/// the offsets 3 and 60 follow.
TileBytes signs() {
  return {.value = ValueCode::signs, .values = 0, .coded = {0x3f800000, 0x3c000302, 0}, .index_set = {}};
}
/// Two values of code levels, in a bucket of 16, and the same offsets.
TileBytes levels(std::uint32_t bits = 4) {
  return {.value = ValueCode::levels,
          .values = 0,
          .coded = {15 | 1u << 16, 0x40000000, 0x3c00030e, 0},
          .index_set = {},
          .more_bits = bits << 23};
}

std::string aggregator_says_of_coded(const TileBytes& wrong) {
  return aggregator_says({tiles({signs(), wrong, levels(), {}}, true, wire::ValueRule::coded)},
                         wire::ValueRule::coded);
}

TEST(HostileTiles, MalformedCodedValuesAreRefused) {
  EXPECT_EQ(aggregator_says_of_coded({.value = ValueCode::float16, .values = 1}), "");
  const auto with = [](TileBytes t, std::size_t word, std::uint32_t bits) {
    t.coded[word] = bits;
    return t;
  };
  TileBytes two_runs = signs();
  two_runs.more_bits = 2u << 23;
  TileBytes no_bits = levels(3), long_bucket = with(levels(), 0, 3 | 1u << 16);
  const std::pair<TileBytes, const char*> bad[] = {
      {with(signs(), 0, 0xbf800000), "its index set or its values are malformed"},
      {with(signs(), 0, 0x7f800000), "its index set or its values are malformed"},
      {two_runs, "more runs than values"},
      {with(levels(), 1, 0xc0000000), "its index set or its values are malformed"},
      {with(levels(), 2, 0x3c0003ff), "its index set or its values are malformed"},
      {no_bits, "a code that does not exist"},
      {with(levels(), 0, 0 | 1u << 16), "a bucket that cannot be"},
      {with(levels(), 0, 15 | 2u << 16), "a bucket that cannot be"},
  };
  for (const auto& [wrong, text] : bad) EXPECT_THAT(aggregator_says_of_coded(wrong), HasSubstr(text));
  EXPECT_EQ(aggregator_says_of_coded(long_bucket), "");
}

TEST(HostileTiles, CodedValuesAreRefusedWhereTheOperationHasNone) {
  EXPECT_THAT(aggregator_says({tiles({signs()})}), HasSubstr("coded in another way than the operation says"));
  EXPECT_THAT(worker_says({tiles({signs()}, false)}),
              HasSubstr("coded in another way than the operation says"));
}

TEST(HostileTiles, MalformedResultsAreRefused) {
  for (const auto& [wrong, text] : kWrong) {
    EXPECT_THAT(worker_says({tiles({wrong}, false)}),
                AllOf(StartsWith("aggregator 0 sent a tile of operation 0 slice 0 that can't be: "),
                      HasSubstr(text)));
    EXPECT_THAT(worker_says({tiles({{}, wrong, {}}, false)}), HasSubstr(text)) << "in the middle";
  }
}

TEST(HostileTiles, SectionsThatDoNotFollowAreRefused) {
  const auto later = [](std::uint64_t before, std::size_t count) {
    Message m = tiles(std::vector<TileBytes>(count), false);
    m.header.stream_offset = before;
    return m;
  };
  EXPECT_EQ(aggregator_says({tiles({{}}), later(1, 2), later(3, 1)}), "");
  EXPECT_THAT(aggregator_says({tiles({{}}), later(2, 1)}), HasSubstr("out of order"));
  EXPECT_THAT(aggregator_says({tiles({{}}), later(0, 1)}), HasSubstr("out of order"));
  EXPECT_THAT(aggregator_says({tiles({{}}), later(1, 4)}), HasSubstr("more than its slice has"));
  EXPECT_THAT(aggregator_says({later(0, 1)}), HasSubstr("no bitmap came before it"));
  EXPECT_EQ(worker_says({later(0, 1), later(1, 3)}), "");
  EXPECT_THAT(worker_says({later(1, 1)}), HasSubstr("not what follows"));
  EXPECT_THAT(worker_says({later(0, 1), later(0, 1)}), HasSubstr("not what follows"));
  EXPECT_THAT(worker_says({later(0, 5)}), HasSubstr("not so many tiles"));
  EXPECT_THAT(worker_says({later(~std::uint64_t{0}, 2)}), HasSubstr("not so many tiles"));
}

TEST(HostileTiles, TheOtherFormIsRefused) {
  Message blocks = tiles({{}});
  blocks.header.flags = wire::kHasBitmap;
  blocks.header.tiles = 0;
  EXPECT_THAT(aggregator_says({blocks}), HasSubstr("its tensor is not exchanged in that form"));
  blocks.bitmap = {1};
  EXPECT_THAT(aggregator_says({blocks}), HasSubstr("its length is another"));
  blocks.header.flags = 0;
  blocks.bitmap.clear();
  EXPECT_THAT(worker_says({blocks}), HasSubstr("its tensor is exchanged in tiles"));
}

TEST(HostileTiles, HeadersThatContradictThemselvesAreRefused) {
  Message m = tiles({{}});
  m.header.tiles = 0;
  EXPECT_THAT(aggregator_says({m}), HasSubstr("its flags and its number of tiles contradict each other"));
  m = tiles({{}});
  m.header.flags = wire::kHasBitmap;
  EXPECT_THAT(aggregator_says({m}), HasSubstr("its flags and its number of tiles contradict each other"));
  m = tiles({{}});
  m.bitmap = {1};
  EXPECT_THAT(aggregator_says({m}), HasSubstr("it cannot have tiles with its other flags"));
  EXPECT_THAT(worker_says({tiles({{}}, true)}), HasSubstr("it cannot have tiles with its other flags"));
}

TEST(HostileTiles, RecordsWithValuesThatCannotBeAreRefused) {
  Message m = tiles({{}});
  m.record.value_rule = static_cast<wire::ValueRule>(7);
  EXPECT_THAT(aggregator_says({m}), HasSubstr("its code of values does not exist"));
  EXPECT_THAT(aggregator_says({}, wire::ValueRule::coded_levels),
              HasSubstr("its results are coded by owners that are ranks"));
  m.record.value_rule = wire::ValueRule::float16;
  m.record.type = static_cast<std::uint8_t>(DataType::int32);
  EXPECT_THAT(aggregator_says({m}), HasSubstr("cannot be coded as narrower floats"));
}

}  // namespace
}  // namespace nzcl::test

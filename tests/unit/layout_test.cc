// How a tensor is cut into slices, and how the slices are dealt to owners.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "runtime/plan/slice_layout.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/checks.h"

namespace nzcl::engine {
namespace {

LayoutRequest any_request() {
  LayoutRequest r;
  r.epoch = *rc::gen::arbitrary<std::uint64_t>();
  r.count = *rc::gen::inRange<std::uint64_t>(0, 3'000'000);
  r.element_bytes = *rc::gen::element<std::uint64_t>(1, 2, 4, 8);
  r.block_elems = *rc::gen::weightedOneOf<std::uint64_t>(
      {{3, rc::gen::inRange<std::uint64_t>(1, 600)}, {1, rc::gen::inRange<std::uint64_t>(1, 5'000'000)}});
  r.owners = *rc::gen::inRange<std::uint32_t>(1, 40);
  r.slice_bytes = *rc::gen::weightedOneOf<std::uint64_t>(
      {{1, rc::gen::just<std::uint64_t>(0)}, {1, rc::gen::inRange<std::uint64_t>(1, 1 << 20)}});
  r.ahead_bytes = *rc::gen::element<std::uint64_t>(0, 1, 512 << 10, 2 << 20);
  r.slot_bytes = *rc::gen::element<std::uint64_t>(4096, 65536, 131072);
  r.express_bytes = 8192 - 104;
  return r;
}

RC_GTEST_PROP(SliceLayout, SlicesCoverEveryBlockOnceInOrder, ()) {
  const LayoutRequest r = any_request();
  const SliceLayout layout(r);
  RC_ASSERT(layout.blocks() == (r.count + r.block_elems - 1) / r.block_elems);
  RC_ASSERT(layout.slices() >= 1u);
  std::uint64_t next = 0, bytes = 0;
  for (std::uint64_t s = 0; s < layout.slices(); ++s) {
    RC_ASSERT(layout.first_block(s) == next);
    RC_ASSERT(layout.blocks_of(s) > 0u || r.count == 0);
    bytes += layout.bytes_of_blocks(s, 0, layout.blocks_of(s));
    next += layout.blocks_of(s);
  }
  RC_ASSERT(next == layout.blocks());
  RC_ASSERT(bytes == r.count * r.element_bytes);
}

/// Ranks whose records have the same layout, in the words of same_layout(), cut the tensor alike. It is all
/// that is compared if one of them has refused its request.
RC_GTEST_PROP(SliceLayout, FollowsFromWhatRanksCompareWhenOneRefuses, ()) {
  EngineConfig config;
  config.members.workers = *rc::gen::inRange(2, 5);  // roots are ranks 0 and 1
  config.lanes = *rc::gen::inRange(1, 4);
  config.tile_block_bytes = *rc::gen::element<std::uint64_t>(0, 64, 512);
  config.channels.fill({.slot_bytes = 16384, .slots = 8});
  const auto any_record = [] {
    wire::OperationRecord r;
    r.count = *rc::gen::element<std::uint64_t>(0, 300, 100'000, 1'000'000'000);
    r.block_elems = *rc::gen::element<std::uint64_t>(1, 16, 256);
    r.type = *rc::gen::element<std::uint8_t>(0, static_cast<std::uint8_t>(DataType::float16));
    r.op = *rc::gen::inRange<std::uint8_t>(0, kReduceOps);
    r.packed_result = *rc::gen::inRange<std::uint8_t>(0, 2);
    r.value_rule = static_cast<wire::ValueRule>(*rc::gen::inRange(0u, wire::kValueRules));
    r.collective = *rc::gen::element(wire::Collective::allreduce, wire::Collective::reduce);
    r.algorithm =
        *rc::gen::element(wire::Algorithm::push, wire::Algorithm::doubling, wire::Algorithm::merging);
    r.root_or_density = *rc::gen::inRange<std::uint16_t>(0, 2);
    r.tag = *rc::gen::inRange<std::uint64_t>(0, 2);
    return r;
  };
  const wire::OperationRecord a = any_record(), other = any_record();
  wire::OperationRecord b = a;
  using Record = wire::OperationRecord;
  const auto changes = [&](auto... fields) {  // one of them, so that many pairs have the same layout
    return std::vector<std::function<void()>>{[&b, &other, fields] { b.*fields = other.*fields; }...};
  };
  const auto all = changes(&Record::count, &Record::block_elems, &Record::type, &Record::op,
                           &Record::packed_result, &Record::value_rule, &Record::collective,
                           &Record::algorithm, &Record::root_or_density, &Record::tag);
  all[*rc::gen::inRange<std::size_t>(0, all.size())]();
  const bool can_be = wire::wrong_with(a) == nullptr && wire::wrong_with(b) == nullptr;
  RC_PRE(can_be);  // others are refused, and never laid out
  RC_PRE(same_layout(config, a, b));
  const SliceLayout x = layout_of(config, 7, a), y = layout_of(config, 7, b);
  RC_ASSERT(x.slices() == y.slices());
  RC_ASSERT(x.slice_blocks() == y.slice_blocks());
  RC_ASSERT(x.priority() == y.priority());
  RC_ASSERT(x.tile_blocks() == y.tile_blocks());
  RC_ASSERT(x.unit_elements() == y.unit_elements());
  for (std::uint64_t s = 0; s < std::min<std::uint64_t>(x.slices(), 5000); ++s)
    RC_ASSERT(x.owner(s) == y.owner(s));
}

/// What is done for each slice must not grow with the tensor where the result is packed, whatever the size of
/// its blocks is. Each owner has 8, or over links 32 if the density is known, or up to twice as many because
/// a slice has whole tiles; and fewer, if there is not a message for each.
RC_GTEST_PROP(SliceLayout, OfAPackedResultHasABoundedNumberOfSlices, ()) {
  EngineConfig config;
  config.members.workers = *rc::gen::inRange(1, 5);
  config.lanes = *rc::gen::inRange(1, 4);
  config.tile_block_bytes = 512;
  config.channels.fill({.slot_bytes = *rc::gen::element<std::uint64_t>(16384, 139264), .slots = 8});
  wire::OperationRecord r;
  r.count = std::uint64_t{1} << *rc::gen::inRange(10, 59);
  r.block_elems = *rc::gen::inRange<std::uint64_t>(1, 2000);
  r.type = static_cast<std::uint8_t>(DataType::float32);
  r.packed_result = 1;
  r.algorithm = *rc::gen::element(wire::Algorithm::push, wire::Algorithm::merging);
  r.root_or_density = *rc::gen::element<std::uint16_t>(0, 60'000);
  config.short_codes = *rc::gen::arbitrary<bool>();
  const SliceLayout layout = layout_of(config, 3, r);
  const std::uint64_t most =
      config.short_codes && r.density().known() ? kMostPackedSlicesPerOwner : kTiledSlicesPerOwner;
  RC_ASSERT(layout.slices() <= 2 * most * config.owners());
  // What is expected to be there, a hundredth if nothing is said, fits one message for each owner.
  const double share = r.density().known() ? r.density().share() : config.packed_density;
  if (static_cast<double>(r.count) * 4 * share < static_cast<double>(config.owners() * kFullMessageBytes))
    RC_ASSERT(layout.slices() <= 2 * config.owners());
  if (!layout.express()) {
    RC_ASSERT(layout.tiled());  // so that there are no bitmaps
    RC_ASSERT(layout.blocks_of(0) <= layout.tiles_of(0) * layout.tile_blocks());
  }
}

/// The layouts of collectives other than allreduce: with a meeting, and with chunks or owners that are
/// chosen.
RC_GTEST_PROP(SliceLayout, EverySliceOfACollectiveHasOneOwner, ()) {
  LayoutRequest r = any_request();
  r.lanes = *rc::gen::inRange<std::uint32_t>(1, 4);
  const auto aggregators = *rc::gen::inRange<std::uint32_t>(1, 6);
  r.owners = aggregators * r.lanes;
  r.meets = true;
  r.count = *rc::gen::inRange<std::uint64_t>(0, 300'000);
  r.aggregator = *rc::gen::inRange<std::uint32_t>(0, aggregators);
  using Owners = LayoutRequest::Owners;
  r.dealt_to = *rc::gen::element(Owners::all, Owners::of_chunk, Owners::only, Owners::all_but);
  if (aggregators == 1 && r.dealt_to == Owners::all_but) r.dealt_to = Owners::all;
  if (r.dealt_to == Owners::all || r.dealt_to == Owners::of_chunk) r.chunks = aggregators;
  std::vector<std::uint64_t> begins{0};
  for (std::uint32_t c = 0; c < r.chunks; ++c)
    begins.push_back(begins.back() + *rc::gen::inRange<std::uint64_t>(0, r.count + 1));
  r.chunk_count = r.count;
  if (*rc::gen::arbitrary<bool>()) r.begins = begins.data();
  const SliceLayout layout(r);

  std::vector<int> seen(layout.slices(), 0);
  for (std::uint32_t o = 0; o < r.owners; ++o) {
    for (std::uint64_t k = 0; k < layout.owned(o); ++k) {
      const std::uint64_t slice = layout.owned_slice(o, k);
      RC_ASSERT(slice < layout.slices());
      RC_ASSERT(layout.owner(slice) == o);
      RC_ASSERT(k == 0 || slice > layout.owned_slice(o, k - 1));
      RC_ASSERT(layout.on_lane(o % r.lanes, r.lanes));
      ++seen[slice];
    }
  }
  RC_ASSERT(std::ranges::all_of(seen, [](int n) { return n == 1; }));
  RC_ASSERT(layout.owner(0) == SliceLayout({.epoch = r.epoch, .owners = r.owners}).owner(0));
  RC_ASSERT(layout.blocks_of(0) == 0u);

  std::uint64_t blocks = 0, bytes = 0;
  for (std::uint64_t s = 1; s < layout.slices(); ++s) {
    const std::uint32_t chunk = layout.chunk_of(s), owner = layout.owner(s);
    if (r.dealt_to == Owners::of_chunk) RC_ASSERT(owner / r.lanes == chunk);
    if (r.dealt_to == Owners::only) RC_ASSERT(owner / r.lanes == r.aggregator);
    if (r.dealt_to == Owners::all_but) RC_ASSERT(owner / r.lanes != r.aggregator);
    if (layout.blocks_of(s) > 0) RC_ASSERT(layout.blocks_before(chunk) + layout.first_block(s) == blocks);
    blocks += layout.blocks_of(s);
    bytes += layout.bytes_of_blocks(s, 0, layout.blocks_of(s));

    // An aggregator knows only the length of the chunk that a slice is of, and sees the same slice.
    LayoutRequest theirs = r;
    theirs.begins = nullptr;
    theirs.chunk_count = layout.chunk_elements(chunk);
    const SliceLayout other(theirs);
    RC_ASSERT(other.slices() == layout.slices());
    RC_ASSERT(other.owner(s) == owner);
    RC_ASSERT(other.blocks_of(s) == layout.blocks_of(s));
    RC_ASSERT(other.offset_of(s, 0) == layout.offset_of(s, 0));
  }
  RC_ASSERT(blocks == layout.blocks());
  RC_ASSERT(bytes == layout.tensor_bytes());
}

RC_GTEST_PROP(SliceLayout, EverySliceHasOneOwnerWhoFindsItInItsList, ()) {
  const SliceLayout layout(any_request());
  std::vector<std::uint64_t> seen(layout.slices(), 0);
  for (std::uint32_t o = 0; o < layout.owners(); ++o) {
    std::uint64_t last = 0;
    for (std::uint64_t k = 0; k < layout.owned(o); ++k) {
      const std::uint64_t slice = layout.owned_slice(o, k);
      RC_ASSERT(slice < layout.slices());
      RC_ASSERT(layout.owner(slice) == o);
      RC_ASSERT(k == 0 || slice > last);
      last = slice;
      ++seen[slice];
    }
  }
  RC_ASSERT(std::all_of(seen.begin(), seen.end(), [](auto n) { return n == 1; }));
}

RC_GTEST_PROP(SliceLayout, ALaneIsOneOfThoseThatOwnASlice, ()) {
  LayoutRequest r = any_request();
  const auto lanes = *rc::gen::inRange<std::uint32_t>(1, 5);
  r.owners *= lanes;
  const SliceLayout layout(r);
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    std::uint64_t slices = 0;
    for (std::uint32_t o = lane; o < layout.owners(); o += lanes) slices += layout.owned(o);
    RC_ASSERT(layout.on_lane(lane, lanes) == (slices > 0));
  }
}

RC_GTEST_PROP(SliceLayout, OwnersSharesDifferByOneSlice, ()) {
  const SliceLayout layout(any_request());
  std::uint64_t least = ~std::uint64_t{0}, most = 0;
  for (std::uint32_t o = 0; o < layout.owners(); ++o) {
    least = std::min(least, layout.owned(o));
    most = std::max(most, layout.owned(o));
  }
  RC_ASSERT(most - least <= 1u);
}

RC_GTEST_PROP(SliceLayout, TheFirstSlicesOwnerFollowsFromTheEpochAlone, ()) {
  LayoutRequest a = any_request(), b = any_request();
  b.epoch = a.epoch;
  b.owners = a.owners;
  RC_ASSERT(SliceLayout(a).owner(0) == SliceLayout(b).owner(0));
}

RC_GTEST_PROP(SliceLayout, ABitmapTakesAtMostHalfASlot, ()) {
  const LayoutRequest r = any_request();
  const SliceLayout layout(r);
  RC_ASSERT(layout.words_per_slice() * 8 <= r.slot_bytes / 2);
}

/// The size of the slices that is chosen for a tensor of `mebibytes` MiB.
std::uint64_t chosen(std::uint32_t owners, std::uint64_t ahead, std::uint64_t mebibytes) {
  return SliceLayout({.epoch = 0,
                      .count = mebibytes << 18,
                      .element_bytes = 4,
                      .block_elems = 256,
                      .owners = owners,
                      .slice_bytes = 0,
                      .ahead_bytes = ahead,
                      .slot_bytes = 128 << 10,
                      .express_bytes = 8000})
      .slice_bytes();
}

TEST(SliceLayout, TwoSlicesWithEveryOwnerFitWhatMayBeAhead) {
  constexpr std::uint64_t kCache = 2 << 20;
  EXPECT_EQ(chosen(4, kCache, 256), kCache / 8);
  EXPECT_EQ(chosen(2, kCache, 256), kCache / 4);
  EXPECT_EQ(chosen(64, kCache, 2048), 256u << 10) << "smaller ones cost more than the cache saves";
  EXPECT_EQ(chosen(4, kCache, 16), 128u << 10) << "a small tensor is cut by what pipelines well";
  EXPECT_EQ(chosen(1, 64 << 20, 256), 4u << 20);
}

/// Slices of a tensor of so many bytes among so many ranks.
std::uint64_t slices_of(int ranks, std::uint64_t bytes, double ranks_per_core = 1) {
  EngineConfig config;
  config.members.workers = ranks;
  config.ranks_per_core = ranks_per_core;
  config.channels[static_cast<std::size_t>(wire::Priority::bulk)] = {20 << 10, 2};
  config.channels[static_cast<std::size_t>(wire::Priority::express)] = {8 << 10, 1};
  wire::OperationRecord record;
  record.count = bytes / 4;
  record.block_elems = 64;
  record.type = static_cast<std::uint8_t>(DataType::float32);
  return layout_of(config, 0, record).slices();
}

// All ranks send to an owner at once, so the more they are, the more owners share what comes.
TEST(SliceLayout, ManyRanksShareASmallTensor) {
  for (const int ranks : {2, 4, 8})
    EXPECT_EQ(slices_of(ranks, 64 << 10), 2u) << ranks << ": slices of 32 KiB";
  EXPECT_EQ(slices_of(16, 64 << 10), 4u) << "16 KiB";
  EXPECT_EQ(slices_of(64, 64 << 10), 16u) << "4 KiB";
  EXPECT_EQ(slices_of(1024, 64 << 10), 64u) << "1 KiB";
  EXPECT_EQ(slices_of(1024, 64 << 20), 1024u) << "one for each";
  EXPECT_EQ(slices_of(1024, 64 << 10, 4), 2u) << "ranks that share cores have no time for more messages";
}

TEST(SliceLayout, AmongManyRanksOneMessageIsNoLargerThanTheLeastSlice) {
  EXPECT_EQ(slices_of(64, 6 << 10), 1u);
  EXPECT_EQ(slices_of(1024, 1 << 9), 1u);
  EXPECT_EQ(slices_of(1024, 6 << 10), 6u);
  EXPECT_EQ(slices_of(1024, 6 << 10, 4), 1u);
}

TEST(SliceLayout, OverLinksThereAreManySlicesOfWorthwhileSize) {
  EXPECT_EQ(chosen(2, 0, 64), 256u << 10) << "256 in all";
  EXPECT_EQ(chosen(8, 0, 64), 256u << 10);
  EXPECT_EQ(chosen(16, 0, 64), 256u << 10) << "16 with every owner";
  EXPECT_EQ(chosen(32, 0, 64), 128u << 10);
  EXPECT_EQ(chosen(4, 0, 16), 128u << 10) << "no smaller ones";
  EXPECT_EQ(chosen(4, 0, 4096), 4u << 20) << "no larger ones";
}

TEST(SliceLayout, AHotRegionIsSpreadOverAllOwners) {
  // The tensor is 64 MiB of floats. Its first sixteenth is the hot region.
  const SliceLayout layout({.epoch = 3,
                            .count = 16 << 20,
                            .element_bytes = 4,
                            .block_elems = 256,
                            .owners = 4,
                            .slice_bytes = 64 << 10,
                            .slot_bytes = 128 << 10,
                            .express_bytes = 8000});
  const std::uint64_t hot = layout.slices() / 16;
  std::vector<std::uint64_t> load(4);
  for (std::uint64_t s = 0; s < hot; ++s) ++load[layout.owner(s)];
  for (const std::uint64_t n : load) EXPECT_EQ(n, hot / 4);
}

TEST(SliceLayout, AStrideOfTheOwnersNumberDoesNotLandOnOneOwner) {
  const SliceLayout layout({.epoch = 3,
                            .count = 16 << 20,
                            .element_bytes = 4,
                            .block_elems = 256,
                            .owners = 4,
                            .slice_bytes = 64 << 10,
                            .slot_bytes = 128 << 10,
                            .express_bytes = 8000});
  std::vector<std::uint64_t> load(4);
  for (std::uint64_t s = 0; s < layout.slices(); s += 4) ++load[layout.owner(s)];
  for (const std::uint64_t n : load) EXPECT_GT(n, layout.slices() / 4 / 8);
}

TEST(SliceLayout, ASmallTensorIsOneExpressSlice) {
  const LayoutRequest r{.epoch = 1,
                        .count = 1000,
                        .element_bytes = 4,
                        .block_elems = 256,
                        .owners = 4,
                        .slice_bytes = 0,
                        .slot_bytes = 131072,
                        .express_bytes = 8088};
  EXPECT_TRUE(SliceLayout(r).express());
  EXPECT_EQ(SliceLayout(r).slices(), 1u);
  LayoutRequest large = r;
  large.count = 1 << 20;
  EXPECT_FALSE(SliceLayout(large).express());
  EXPECT_GT(SliceLayout(large).slices(), 1u);
}

}  // namespace
}  // namespace nzcl::engine

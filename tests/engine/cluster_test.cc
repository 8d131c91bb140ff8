// The protocol from end to end without threads. Results of all priorities, paths and edge cases are compared
// with a plain sum.
#include "tests/engine/cluster.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "runtime/base/bitmap.h"

namespace nzcl::test {
namespace {

using engine::InputView;
using engine::Operation;
using engine::OutputView;

struct Case {
  const char* name;
  ClusterOptions cluster;
  std::uint64_t count;
  std::uint64_t block;
  double density;
  bool in_place;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::span<std::byte> bytes_of(std::vector<std::int32_t>& v) { return std::as_writable_bytes(std::span(v)); }

/// One rank's part in an int32 allreduce.
struct RankBuffers {
  std::vector<std::int32_t> input, output;
  std::unique_ptr<verbs::MemoryRegion> in_region, out_region;
  std::unique_ptr<Operation> operation;

  std::vector<std::int32_t>& result(const Case& c) { return c.in_place ? input : output; }

  /// Starts the operation. Precondition: the input is filled, and out of place the output has its size.
  void submit(Cluster& cluster, const Case& c, int rank, std::uint64_t epoch) {
    in_region = cluster.device(rank).register_memory(bytes_of(input), MemoryKind::host);
    out_region = cluster.device(rank).register_memory(bytes_of(result(c)), MemoryKind::host);
    wire::OperationRecord record;
    record.count = c.count;
    record.block_elems = c.block;
    record.type = static_cast<std::uint8_t>(DataType::int32);
    record.output_address = out_region->remote().address;
    record.output_key = out_region->remote().key;
    const auto layout = cluster.layout(epoch, c.count, 4, c.block);
    if (layout.priority() == wire::Priority::doubling) record.algorithm = wire::Algorithm::doubling;
    if (layout.priority() == wire::Priority::merging) record.algorithm = wire::Algorithm::merging;
    operation = std::make_unique<Operation>(
        layout, record, InputView{.base = bytes_of(input).data(), .region = in_region.get()},
        OutputView{.base = bytes_of(result(c)).data(), .region = out_region.get()}, c.cluster.lanes);
    operation->epoch = epoch;
    operation->table_index = static_cast<std::uint32_t>(epoch);
    cluster.submit(rank, *operation);
  }
};

class ClusterTest : public ::testing::TestWithParam<Case> {};

TEST_P(ClusterTest, SumsAreRight) {
  const Case& c = GetParam();
  Cluster cluster(c.cluster);
  std::mt19937 random(42);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const auto layout = cluster.layout(epoch, c.count, 4, c.block);
    std::vector<RankBuffers> ranks(static_cast<std::size_t>(c.cluster.workers));
    std::vector<std::int32_t> expected(c.count);
    std::vector<std::uint64_t> expected_bits(words_for(layout.blocks()));
    for (int r = 0; r < c.cluster.workers; ++r) {
      RankBuffers& b = ranks[static_cast<std::size_t>(r)];
      b.input.assign(std::max<std::uint64_t>(c.count, 1), 0);
      b.output.assign(b.input.size(), -77);
      for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
        if (std::uniform_real_distribution<>()(random) >= c.density) continue;
        set_bit(std::span(expected_bits), block);
        for (std::uint64_t i = block * c.block; i < std::min(c.count, (block + 1) * c.block); ++i) {
          b.input[i] =
              static_cast<std::int32_t>(i * 31 + static_cast<std::uint64_t>(r) * 1000003 + epoch + 1);
          expected[i] += b.input[i];
        }
      }
      b.submit(cluster, c, r, epoch);
      cluster.run();  // the later ranks have not begun yet: until they do, nothing may go wrong or get lost
      if (r + 1 < c.cluster.workers) {
        EXPECT_FALSE(b.operation->finished());
      }
    }
    cluster.run();
    ASSERT_FALSE(cluster.failure()) << cluster.failure()->text;
    for (int r = 0; r < c.cluster.workers; ++r) {
      RankBuffers& b = ranks[static_cast<std::size_t>(r)];
      ASSERT_TRUE(b.operation->finished()) << "rank " << r << " epoch " << epoch;
      const auto& out = b.result(c);
      for (std::uint64_t i = 0; i < c.count; ++i)
        ASSERT_EQ(out[i], expected[i]) << "rank " << r << " element " << i;
      const auto bits = b.operation->union_bitmap();
      EXPECT_TRUE(std::equal(bits.begin(), bits.end(), expected_bits.begin(), expected_bits.end()));
    }
  }
}

ClusterOptions options(int workers, int dedicated = 0, int lanes = 1) {
  ClusterOptions o;
  o.workers = workers;
  o.dedicated = dedicated;
  o.lanes = lanes;
  return o;
}
ClusterOptions with(ClusterOptions o, const std::function<void(ClusterOptions&)>& change) {
  change(o);
  return o;
}
const auto kReorder = [](ClusterOptions& o) {
  o.loopback.faults.delay_polls = 7;
  o.loopback.faults.accept_at_most = 3;
};
const auto kSmallSlices = [](ClusterOptions& o) { o.slice_bytes = 640; };
const auto kAhead = [](ClusterOptions& o) { o.ahead_bytes = 3 * 3 * 640; };
const auto kTight = [](ClusterOptions& o) {
  o.slots = 1;
  o.slot_bytes = 512;
  o.express_slot_bytes = 256;
  o.loopback.limits.max_segments = 1;
  o.loopback.limits.max_posted = 2;
};
/// The channels and the window of one of many ranks.
const auto kOfMany = [](ClusterOptions& o) {
  o.slots = 2;
  o.express_slots = 1;
  o.worker_window = engine::kWorkerWindowOfMany;
};
const auto kOrdered = [](ClusterOptions& o) {
  o.loopback.limits.ordered = true;
  o.loopback.faults.delay_polls = 5;
};
const auto kOneHop = [](ClusterOptions& o) { o.one_hop = true; };
const auto kDoubling = [](ClusterOptions& o) { o.doubling_slot_bytes = 4096; };
const auto kMerging = [](ClusterOptions& o) {
  o.merging = true;
  o.tile_block_bytes = 64;
};
const auto kDirect = [](ClusterOptions& o) { o.direct_bytes = 32; };
const auto kLent = [](ClusterOptions& o) {
  o.lent = true;
  o.loopback.limits.ordered = o.loopback.limits.readable = true;
};
/// Every second member is on another memory node, so staging buffers come in two banks.
const auto kTwoNodes = [](ClusterOptions& o) { o.nodes = {0, 1}; };
const auto kStreamed = [](ClusterOptions& o) {
  kLent(o);
  o.staging = {Staging::streamed};
  o.direct_bytes = 1 << 20;  // so that results go in messages
};
/// Members differ in how they store messages, and some measure it.
const auto kMixedStaging = [](ClusterOptions& o) {
  kStreamed(o);
  o.slot_bytes = 32 << 10;  // some messages are long enough to be timed
  o.staging = {Staging::streamed, Staging::cached, Staging::automatic};
};
/// Members 0 and 1 lend messages to each other, and so do 2 and 3. Between the pairs messages go through
/// rings.
const auto kPairs = [](ClusterOptions& o) {
  kLent(o);
  o.group_size = 2;
};

/// Members of one host read each other's memory. Between hosts writes overtake each other, and only a few are
/// accepted at once.
ClusterOptions on_hosts(std::vector<int> hosts, int dedicated = 0, int lanes = 1) {
  ClusterOptions o = options(static_cast<int>(hosts.size()) - dedicated, dedicated, lanes);
  o.hosts = std::move(hosts);
  o.lent = true;
  o.within.limits.ordered = o.within.limits.readable = true;
  o.within.limits.max_segments = 2;
  kReorder(o);
  return o;
}
/// Nobody reads another one's memory, and it is the writes within a host that overtake each other.
ClusterOptions on_unreadable_hosts(std::vector<int> hosts) {
  ClusterOptions o = on_hosts(std::move(hosts));
  o.lent = false;
  std::swap(o.within, o.loopback);
  return o;
}

INSTANTIATE_TEST_SUITE_P(
    Hosts, ClusterTest,
    ::testing::Values(
        Case{"one_of_four", on_hosts({0, 0, 0, 0}), 50001, 16, 0.3, true},
        Case{"two_of_two", on_hosts({0, 0, 1, 1}), 50001, 16, 0.3, true},
        Case{"two_of_two_dense", on_hosts({0, 0, 1, 1}), 50001, 64, 1, true},
        Case{"two_of_two_in_turn", on_hosts({0, 1, 0, 1}), 50001, 64, 0.9, false},
        Case{"two_of_two_direct", with(on_hosts({0, 0, 1, 1}), kDirect), 50001, 16, 0.3, true},
        Case{"two_of_two_tight", with(on_hosts({0, 0, 1, 1}), kTight), 5001, 16, 0.4, false},
        Case{"two_of_two_lanes", on_hosts({0, 0, 1, 1}, 0, 2), 50001, 16, 0.4, true},
        Case{"two_of_two_express", on_hosts({0, 0, 1, 1}), 100, 8, 0.5, true},
        Case{"two_of_two_one_hop", with(on_hosts({0, 0, 1, 1}), kOneHop), 100, 8, 0.5, true},
        Case{"two_of_two_doubling", with(on_hosts({0, 0, 1, 1}), kDoubling), 100, 8, 0.5, false},
        Case{"two_of_two_merging", with(on_hosts({0, 0, 1, 1}), kMerging), 20011, 4, 0.1, true},
        Case{"one_two_and_three", on_hosts({0, 1, 1, 2, 2, 2}), 50001, 16, 0.2, true},
        Case{"one_two_and_three_dense", on_hosts({2, 1, 0, 2, 1, 2}), 50001, 64, 1, false},
        Case{"one_two_and_three_merging", with(on_hosts({0, 1, 1, 2, 2, 2}), kMerging), 20011, 4, 0.1, true},
        Case{"nobody_shares", on_hosts({0, 1, 2}), 50001, 16, 0.3, true},
        Case{"aggregators_beside_and_apart", on_hosts({0, 0, 1, 1, 2}, 2), 50001, 16, 0.4, true},
        Case{"unreadable", on_unreadable_hosts({0, 0, 1, 1}), 50001, 16, 0.3, true},
        Case{"unreadable_direct", with(on_unreadable_hosts({0, 0, 1}), kDirect), 50001, 64, 1, true}),
    [](const auto& of) { return of.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Paths, ClusterTest,
    ::testing::Values(
        Case{"one_rank", options(1), 10000, 64, 0.5, true}, Case{"express", options(2), 100, 8, 0.5, true},
        Case{"empty_tensor", options(3), 0, 8, 0.5, true}, Case{"one_element", options(3), 1, 256, 1, true},
        Case{"all_zero", options(3), 20000, 64, 0, false},
        Case{"dense_direct", options(3), 50000, 64, 1, true},
        Case{"dense_direct_out_of_place", options(3), 50001, 64, 1, false},
        Case{"sparse_packed", options(4), 50001, 16, 0.1, true},
        Case{"sparse_out_of_place", options(4), 50001, 16, 0.1, false},
        Case{"one_element_blocks", options(3), 9999, 1, 0.3, true},
        Case{"block_larger_than_slot", options(3), 30011, 5000, 0.6, true},
        Case{"dedicated", options(3, 2), 50001, 16, 0.2, false},
        Case{"dedicated_dense", options(3, 2), 50001, 16, 1, true},
        Case{"lanes", options(3, 0, 2), 50001, 16, 0.2, true},
        Case{"lanes_dedicated", options(2, 1, 3), 50001, 16, 0.9, true},
        Case{"reordered", with(options(4), kReorder), 50001, 16, 0.3, true},
        Case{"reordered_dense", with(options(4), kReorder), 50001, 16, 1, true},
        Case{"reordered_dedicated", with(options(3, 2), kReorder), 50001, 16, 0.9, false},
        Case{"tight", with(options(3), kTight), 5001, 16, 0.4, true},
        Case{"tight_dense", with(options(3), kTight), 5001, 16, 1, true},
        Case{"tight_reordered", with(with(options(3), kTight), kReorder), 5001, 16, 0.4, false},
        Case{"of_many", with(options(20), kOfMany), 50001, 16, 0.3, true},
        Case{"of_many_dense", with(options(17), kOfMany), 50001, 64, 1, false},
        Case{"of_many_slices", with(with(options(9), kOfMany), kSmallSlices), 50001, 16, 0.3, true},
        Case{"of_many_slices_late", with(with(with(options(9), kOfMany), kSmallSlices), kReorder), 50001, 16,
             0.6, true},
        Case{"of_many_express", with(options(24), kOfMany), 100, 8, 0.5, true},
        Case{"of_many_express_late", with(with(options(12), kOfMany), kReorder), 100, 8, 0.5, false},
        Case{"of_many_lent", with(with(options(12), kOfMany), kLent), 50001, 16, 0.3, true},
        Case{"of_many_merging", with(with(options(11), kOfMany), kMerging), 20001, 1, 0.3, true},
        Case{"of_70", with(options(70), kOfMany), 9001, 16, 0.3, true},
        Case{"ordered", with(options(4), kOrdered), 50001, 16, 1, true},
        Case{"lent", with(options(4), kLent), 50001, 16, 0.2, true},
        Case{"lent_express", with(options(3), kLent), 100, 8, 0.5, false},
        Case{"lent_dense", with(options(3), kLent), 50001, 64, 1, true},
        Case{"lent_dedicated", with(options(3, 2), kLent), 50001, 16, 0.2, false},
        Case{"lent_lanes", with(options(3, 0, 2), kLent), 50001, 16, 0.4, true},
        Case{"lent_tight", with(with(options(3), kTight), kLent), 5001, 16, 0.4, true},
        Case{"lent_nodes", with(with(options(4), kLent), kTwoNodes), 50001, 16, 0.3, true},
        Case{"lent_nodes_late_tight", with(with(with(with(options(5), kTight), kReorder), kLent), kTwoNodes),
             9001, 16, 0.3, false},
        Case{"lent_nodes_dedicated", with(with(options(3, 2), kLent), kTwoNodes), 50001, 16, 0.2, false},
        Case{"lent_late", with(with(options(4), kReorder), kLent), 50001, 16, 0.3, true},
        Case{"lent_late_tight", with(with(with(options(8), kTight), kReorder), kLent), 9001, 16, 0.3, false},
        Case{"streamed", with(options(4), kStreamed), 50001, 256, 0.2, true},
        Case{"streamed_dense", with(options(4), kStreamed), 50001, 128, 1, true},
        Case{"streamed_dense_out_of_place", with(options(3), kStreamed), 50001, 128, 1, false},
        Case{"streamed_large_slots", with(options(3), kMixedStaging), 300001, 256, 0.7, true},
        Case{"streamed_short_blocks", with(options(3), kStreamed), 50001, 16, 0.5, true},
        Case{"streamed_dedicated", with(options(3, 2), kStreamed), 50001, 256, 0.6, true},
        Case{"streamed_lanes", with(options(3, 0, 2), kStreamed), 50001, 256, 0.4, false},
        Case{"streamed_late_tight", with(with(with(options(4), kTight), kReorder), kStreamed), 9001, 128, 0.7,
             true},
        Case{"mixed_staging", with(options(4), kMixedStaging), 300001, 256, 0.9, false},
        Case{"mixed_staging_late", with(with(options(5), kReorder), kMixedStaging), 100001, 256, 0.5, true},
        Case{"pairs", with(options(4), kPairs), 50001, 16, 0.2, true},
        Case{"pairs_express", with(options(4), kPairs), 100, 8, 0.5, false},
        Case{"pairs_dense", with(options(4), kPairs), 50001, 64, 1, true},
        Case{"pairs_dense_out_of_place", with(options(4), kPairs), 50001, 64, 1, false},
        Case{"pairs_odd", with(options(5), kPairs), 50001, 16, 0.3, true},
        Case{"pairs_dedicated", with(options(3, 1), kPairs), 50001, 16, 0.2, false},
        Case{"pairs_dedicated_dense", with(options(2, 2), kPairs), 50001, 64, 1, true},
        Case{"pairs_lanes", with(options(4, 0, 2), kPairs), 50001, 16, 0.4, true},
        Case{"pairs_tight", with(with(options(4), kTight), kPairs), 5001, 16, 0.4, true},
        Case{"pairs_tight_dense", with(with(options(4), kTight), kPairs), 5001, 16, 1, true},
        Case{"pairs_late", with(with(options(4), kReorder), kPairs), 50001, 16, 0.3, true},
        Case{"pairs_late_tight", with(with(with(options(8), kTight), kReorder), kPairs), 9001, 16, 0.3,
             false},
        Case{"pairs_one_hop", with(with(options(4), kPairs), kOneHop), 100, 8, 0.5, true},
        Case{"doubling_two", with(options(2), kDoubling), 100, 8, 0.5, true},
        Case{"doubling_three", with(options(3), kDoubling), 101, 8, 0.5, false},
        Case{"doubling_four", with(options(4), kDoubling), 100, 1, 0.5, true},
        Case{"doubling_five", with(options(5), kDoubling), 97, 8, 0.5, true},
        Case{"doubling_six", with(options(6), kDoubling), 100, 8, 0.5, false},
        Case{"doubling_seven", with(options(7), kDoubling), 100, 8, 1, true},
        Case{"doubling_eight", with(options(8), kDoubling), 100, 8, 0.5, true},
        Case{"doubling_nine", with(options(9), kDoubling), 100, 8, 0.3, false},
        Case{"doubling_full_slot", with(options(8), kDoubling), 240, 256, 1, true},
        Case{"doubling_empty", with(options(5), kDoubling), 0, 8, 0.5, true},
        Case{"doubling_zero", with(options(5), kDoubling), 100, 8, 0, false},
        Case{"doubling_bulk", with(options(4), kDoubling), 50001, 16, 0.2, true},
        Case{"doubling_lanes", with(options(4, 0, 2), kDoubling), 100, 8, 0.4, true},
        Case{"doubling_reordered", with(with(options(7), kReorder), kDoubling), 100, 8, 0.4, true},
        Case{"doubling_tight", with(with(options(6), kTight), kDoubling), 100, 8, 0.4, false},
        Case{"doubling_lent", with(with(options(4), kLent), kDoubling), 100, 8, 0.4, false},
        Case{"doubling_pairs_late", with(with(with(options(5), kPairs), kReorder), kDoubling), 100, 8, 0.5,
             true},
        Case{"merging_two", with(options(2), kMerging), 50001, 8, 0.2, true},
        Case{"merging_three", with(options(3), kMerging), 50001, 1, 0.2, false},
        Case{"merging_four", with(options(4), kMerging), 50001, 2, 0.2, true},
        Case{"merging_five", with(options(5), kMerging), 50001, 4, 0.3, true},
        Case{"merging_six", with(options(6), kMerging), 20001, 1, 0.05, false},
        Case{"merging_seven", with(options(7), kMerging), 20001, 1, 1, true},
        Case{"merging_nine", with(options(9), kMerging), 20001, 1, 0.3, false},
        Case{"merging_one_element", with(options(5), kMerging), 1, 8, 1, true},
        Case{"merging_empty", with(options(5), kMerging), 0, 8, 0.5, true},
        Case{"merging_zero", with(options(5), kMerging), 9001, 8, 0, false},
        Case{"merging_dense", with(options(4), kMerging), 50001, 1, 1, true},
        Case{"merging_lanes", with(options(6, 0, 3), kMerging), 50001, 8, 0.4, true},
        Case{"merging_lanes_small", with(options(4, 0, 3), kMerging), 100, 8, 0.4, true},
        Case{"merging_reordered", with(with(options(7), kReorder), kMerging), 50001, 8, 0.4, true},
        Case{"merging_tight", with(with(options(6), kTight), kMerging), 20001, 1, 0.4, false},
        Case{"merging_tight_reordered", with(with(with(options(5), kTight), kReorder), kMerging), 20001, 1,
             0.7, true},
        Case{"merging_lent", with(with(options(4), kLent), kMerging), 50001, 8, 0.4, false},
        Case{"merging_lent_tight", with(with(with(options(7), kTight), kLent), kMerging), 20001, 1, 0.4,
             true},
        Case{"merging_lent_late", with(with(with(options(8), kReorder), kLent), kMerging), 20001, 1, 0.1,
             true},
        Case{"merging_pairs_late", with(with(with(options(5), kPairs), kReorder), kMerging), 20001, 8, 0.5,
             true},
        Case{"merging_beside_doubling", with(with(options(4), kMerging), kDoubling), 20001, 8, 0.5, true},
        Case{"one_hop", with(options(3), kOneHop), 100, 8, 0.5, true},
        Case{"one_hop_out_of_place", with(options(2), kOneHop), 100, 8, 0.5, false},
        Case{"one_hop_bulk", with(options(3), kOneHop), 50001, 16, 0.2, true},
        Case{"one_hop_empty", with(options(3), kOneHop), 0, 8, 0.5, true},
        Case{"one_hop_zero", with(options(2), kOneHop), 100, 8, 0, false},
        Case{"one_hop_alone", with(options(1), kOneHop), 100, 8, 0.5, false},
        Case{"one_hop_direct", with(with(options(2), kOneHop), kDirect), 100, 8, 0.5, true},
        Case{"one_hop_direct_out_of_place", with(with(options(3), kOneHop), kDirect), 100, 8, 0.5, false},
        Case{"one_hop_direct_alone", with(with(options(1), kOneHop), kDirect), 100, 8, 1, false},
        Case{"express_direct", with(options(3), kDirect), 100, 8, 0.5, false},
        Case{"eight", options(8), 70001, 16, 0.2, true},
        Case{"small_slices", with(options(3), kSmallSlices), 20001, 16, 0.5, true},
        Case{"ahead", with(with(options(3), kSmallSlices), kAhead), 20001, 16, 0.5, true},
        Case{"ahead_dedicated", with(with(options(3, 2), kSmallSlices), kAhead), 20001, 16, 0.5, false},
        Case{"ahead_late_lent", with(with(with(with(options(4), kSmallSlices), kAhead), kReorder), kLent),
             20001, 16, 0.5, true}),
    [](const auto& param) { return param.param.name; });

/// Ranks may be far ahead of each other. Here each rank submits all its small operations at once, and the
/// next rank begins only when no message moves any more.
class InFlightTest : public ::testing::TestWithParam<Case> {};

TEST_P(InFlightTest, SumsAreRightHoweverFarRanksAreApart) {
  constexpr std::uint64_t kOperations = 40;
  const Case& c = GetParam();
  Cluster cluster(c.cluster);
  const auto workers = static_cast<std::size_t>(c.cluster.workers);
  std::vector<RankBuffers> all(workers * kOperations);
  const auto at = [&](std::size_t rank, std::uint64_t epoch) -> RankBuffers& {
    return all[rank * kOperations + epoch];
  };
  const auto value = [&](std::size_t rank, std::uint64_t epoch, std::uint64_t i) {
    const bool zero = (i / c.block + rank + epoch) % 3 == 0;
    return zero ? 0 : static_cast<std::int32_t>(1 + i + 1000 * rank + 100000 * epoch);
  };
  for (std::size_t r = 0; r < workers; ++r) {
    for (std::uint64_t epoch = 0; epoch < kOperations; ++epoch) {
      RankBuffers& b = at(r, epoch);
      for (std::uint64_t i = 0; i < c.count; ++i) b.input.push_back(value(r, epoch, i));
      b.submit(cluster, c, static_cast<int>(r), epoch);
    }
    cluster.run();
    ASSERT_FALSE(cluster.failure()) << cluster.failure()->text;
    EXPECT_EQ(at(r, 0).operation->finished(), r + 1 == workers);
  }
  for (std::size_t r = 0; r < workers; ++r) {
    for (std::uint64_t epoch = 0; epoch < kOperations; ++epoch) {
      ASSERT_TRUE(at(r, epoch).operation->finished()) << "rank " << r << " epoch " << epoch;
      for (std::uint64_t i = 0; i < c.count; ++i) {
        std::int32_t sum = 0;
        for (std::size_t from = 0; from < workers; ++from) sum += value(from, epoch, i);
        ASSERT_EQ(at(r, epoch).input[i], sum) << "rank " << r << " epoch " << epoch << " element " << i;
      }
    }
  }
}

const auto kManySlots = [](ClusterOptions& o) { o.slots = 32; };
INSTANTIATE_TEST_SUITE_P(
    Paths, InFlightTest,
    ::testing::Values(
        Case{"express", options(3), 50, 8, 0, true}, Case{"dedicated", options(3, 1), 50, 8, 0, true},
        Case{"ahead", with(options(3), kAhead), 50, 8, 0, true},
        Case{"merging", with(options(2), kMerging), 50, 8, 0, true},
        Case{"merging_five", with(options(5), kMerging), 3000, 1, 0, true},
        Case{"merging_tight", with(with(options(6), kTight), kMerging), 2000, 1, 0, true},
        Case{"merging_lent_lanes", with(with(options(4, 0, 3), kLent), kMerging), 3000, 1, 0, true},
        Case{"one_hop", with(options(2), kOneHop), 50, 8, 0, true},
        Case{"one_hop_four", with(options(4), kOneHop), 50, 8, 0, true},
        Case{"one_hop_many_slots", with(with(options(3), kOneHop), kManySlots), 50, 8, 0, true},
        Case{"one_hop_lanes", with(options(2, 0, 3), kOneHop), 50, 8, 0, true},
        Case{"one_hop_tight", with(with(options(3), kTight), kOneHop), 20, 8, 0, true},
        Case{"one_hop_reordered", with(with(options(4), kReorder), kOneHop), 50, 8, 0, true},
        Case{"one_hop_lent", with(with(options(3), kLent), kOneHop), 50, 8, 0, true},
        Case{"doubling_two", with(options(2), kDoubling), 50, 8, 0, true},
        Case{"doubling_four", with(options(4), kDoubling), 50, 8, 0, true},
        Case{"doubling_many_slots", with(with(options(7), kDoubling), kManySlots), 50, 8, 0, true},
        Case{"doubling_lanes", with(options(5, 0, 3), kDoubling), 50, 8, 0, true},
        Case{"doubling_tight", with(with(options(5), kTight), kDoubling), 20, 8, 0, true},
        Case{"doubling_late", with(with(options(6), kReorder), kDoubling), 50, 8, 0, true},
        Case{"doubling_late_tight", with(with(with(options(9), kTight), kReorder), kDoubling), 20, 8, 0,
             true},
        Case{"pairs", with(options(4), kPairs), 50, 8, 0, true},
        Case{"pairs_tight", with(with(options(4), kTight), kPairs), 20, 8, 0, true},
        Case{"pairs_one_hop", with(with(options(4), kPairs), kOneHop), 50, 8, 0, true}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace nzcl::test

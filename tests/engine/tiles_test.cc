// The exchange of single elements and small blocks from end to end without threads: every form of input and
// output, every code of index sets, forced, free and mixed between ranks, compared with a plain sum.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "runtime/base/bitmap.h"
#include "tests/engine/cluster.h"

namespace nzcl::test {
namespace {

using engine::ElementStream;
using engine::InputView;
using engine::Operation;
using engine::OutputView;
using wire::IndexCode;

enum class In { scan, bitmap, stream, all };
enum class Out { in_place, apart, packed };

struct Case {
  std::string name;
  ClusterOptions cluster;
  std::uint64_t count = 50001;
  std::uint64_t block = 1;
  double density = 0.1;
  In in = In::scan;
  Out out = Out::in_place;
  bool mixed_inputs = false;  // rank r has form (in + r) % 4
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::span<std::byte> bytes_of(std::vector<std::int32_t>& v) { return std::as_writable_bytes(std::span(v)); }

/// One rank's part in an int32 allreduce.
struct Rank {
  In form = In::scan;
  std::vector<std::int32_t> input, output;
  std::vector<std::uint64_t> bits;  // the blocks that it contributes
  std::vector<std::int32_t> values;
  std::vector<std::uint32_t> indices;
  std::vector<std::unique_ptr<verbs::MemoryRegion>> regions;
  std::unique_ptr<Operation> operation;

  const verbs::MemoryRegion* region(Cluster& cluster, int rank, std::vector<std::int32_t>& v) {
    regions.push_back(cluster.device(rank).register_memory(bytes_of(v), MemoryKind::host));
    return regions.back().get();
  }

  ElementStream stream(Cluster& cluster, int rank, const engine::SliceLayout& layout) {
    ElementStream s;
    std::vector<std::int64_t> blocks;
    EXPECT_EQ(layout.unit_elements(), layout.block_elements());
    for (std::uint64_t b = 0; b < layout.blocks(); ++b) {
      if (!test_bit(std::span<const std::uint64_t>(bits), b)) continue;
      blocks.push_back(static_cast<std::int64_t>(b));
      const std::uint64_t begin = b * layout.block_elements(),
                          end = std::min<std::uint64_t>(begin + layout.block_elements(), input.size());
      values.insert(values.end(), input.begin() + static_cast<std::ptrdiff_t>(begin),
                    input.begin() + static_cast<std::ptrdiff_t>(end));
    }
    s.units = engine::StreamUnits(blocks.size(), layout);
    s.units.append(std::span<const std::int64_t>(blocks));
    s.units.end();
    if (values.empty()) values.push_back(0);
    s.values = bytes_of(values).data();
    s.region = region(cluster, rank, values);
    return s;
  }

  void submit(Cluster& cluster, const Case& c, int rank, std::uint64_t epoch) {
    wire::OperationRecord record;
    record.count = c.count;
    record.block_elems = c.block;
    record.type = static_cast<std::uint8_t>(DataType::int32);
    record.packed_result = c.out == Out::packed;
    if (c.cluster.merging) record.algorithm = wire::Algorithm::merging;
    const auto layout = cluster.layout(epoch, c.count, 4, c.block);
    InputView in{.base = bytes_of(input).data(), .region = nullptr};
    OutputView out;
    auto& target = c.out == Out::in_place && in_is_dense() ? input : output;
    if (in_is_dense()) in.region = region(cluster, rank, input);
    out.base = bytes_of(target).data();
    out.region = &target == &input ? in.region : region(cluster, rank, target);
    if (c.out == Out::packed) {
      out.packed = true;
      out.capacity = layout.blocks();
      indices.assign(layout.blocks(), 0xdeadbeef);
      out.indices = IndexBuffer(indices.data());
    }
    operation = std::make_unique<Operation>(layout, record, in, out, c.cluster.lanes);
    if (in_is_dense() && form == In::bitmap) operation->set_input_bitmap(bits);
    if (form == In::all) operation->set_all_input();
    if (form == In::stream) operation->set_input_stream(stream(cluster, rank, layout));
    operation->epoch = epoch;
    operation->table_index = static_cast<std::uint32_t>(epoch);
    cluster.submit(rank, *operation);
  }
  bool in_is_dense() const { return form != In::stream; }
  const std::vector<std::int32_t>& result(const Case& c) const {
    return c.out == Out::in_place && in_is_dense() ? input : output;
  }
};

class TilesTest : public ::testing::TestWithParam<Case> {};

TEST_P(TilesTest, SumsAreRight) {
  const Case& c = GetParam();
  Cluster cluster(c.cluster);
  std::mt19937 random(42);
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    const auto layout = cluster.layout(epoch, c.count, 4, c.block);
    ASSERT_TRUE(layout.tiled());
    std::vector<Rank> ranks(static_cast<std::size_t>(c.cluster.workers));
    std::vector<std::int32_t> expected(c.count);
    std::vector<std::uint64_t> expected_bits(words_for(layout.blocks()));
    for (int r = 0; r < c.cluster.workers; ++r) {
      Rank& b = ranks[static_cast<std::size_t>(r)];
      b.form = c.mixed_inputs ? static_cast<In>((static_cast<int>(c.in) + r) % 4) : c.in;
      b.input.assign(c.count, 0);
      b.output.assign(c.count, -77);
      b.bits.assign(words_for(layout.blocks()), 0);
      for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
        const bool there = std::uniform_real_distribution<>()(random) < c.density;
        if (there || b.form == In::all) {
          set_bit(std::span(expected_bits), block);
          set_bit(std::span(b.bits), block);
        }
        for (std::uint64_t i = block * c.block; there && i < std::min(c.count, (block + 1) * c.block); ++i) {
          // Within a block some elements are zero; one is not.
          if (i % 3 != 0 && i % c.block != 0) continue;
          b.input[i] =
              static_cast<std::int32_t>(i * 31 + static_cast<std::uint64_t>(r) * 1000003 + epoch + 1);
          expected[i] += b.input[i];
        }
      }
      b.submit(cluster, c, r, epoch);
      cluster.run();  // the later ranks have not begun yet: until they do, nothing may go wrong or get lost
      ASSERT_FALSE(cluster.failure()) << cluster.failure()->text;
      if (r + 1 < c.cluster.workers) {
        EXPECT_FALSE(b.operation->finished());
      }
    }
    for (int r = 0; r < c.cluster.workers; ++r) {
      const Rank& b = ranks[static_cast<std::size_t>(r)];
      ASSERT_TRUE(b.operation->finished()) << "rank " << r << " epoch " << epoch;
      ASSERT_FALSE(b.operation->failure()) << b.operation->failure()->text;
      const auto bits = b.operation->union_bitmap();
      ASSERT_TRUE(std::equal(bits.begin(), bits.end(), expected_bits.begin(), expected_bits.end()));
      EXPECT_EQ(b.operation->union_blocks.load(), count_bits(expected_bits));
      const auto& out = b.result(c);
      if (c.out != Out::packed) {
        for (std::uint64_t i = 0; i < c.count; ++i)
          ASSERT_EQ(out[i], expected[i]) << "rank " << r << " element " << i << " epoch " << epoch;
        continue;
      }
      const auto indices = b.operation->packed_indices();
      std::uint64_t position = 0;
      for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
        if (!test_bit(std::span<const std::uint64_t>(expected_bits), block)) continue;
        ASSERT_LT(position, indices.size());
        ASSERT_EQ(indices[position], static_cast<std::int64_t>(block));
        ASSERT_EQ(b.indices[position], block);
        for (std::uint64_t i = block * c.block; i < std::min(c.count, (block + 1) * c.block); ++i)
          ASSERT_EQ(out[position * c.block + i % c.block], expected[i]) << "rank " << r << " element " << i;
        ++position;
      }
      EXPECT_EQ(position, indices.size());
    }
  }
}

/// A slice's last tile completes it for the ranks, which may then start another one in its place of the
/// window. Messages are as large as in practice here, so that some of them are full right behind that tile.
TEST(TilesInFlight, RanksStartSlicesAsSoonAsOthersAreComplete) {
  for (const bool lent : {false, true}) {
    ClusterOptions o;
    o.workers = 3;
    o.slot_bytes = 136 << 10;
    o.slots = 8;
    o.slice_bytes = 64 << 10;
    o.tile_block_bytes = 64;
    o.lent = lent;
    o.loopback.limits.ordered = o.loopback.limits.readable = lent;
    o.loopback.faults.delay_polls = 3;
    Cluster cluster(o);
    const Case c{.name = "", .cluster = o, .count = 1'500'000};
    constexpr std::uint64_t kOperations = 3;
    std::vector<std::vector<Rank>> all(kOperations);
    for (std::uint64_t epoch = 0; epoch < kOperations; ++epoch) {
      all[epoch].resize(3);
      for (int r = 0; r < 3; ++r) {
        Rank& b = all[epoch][static_cast<std::size_t>(r)];
        b.input.assign(c.count, 0);
        // Dense in one half and sparse in the other.
        for (std::uint64_t i = 0; i < c.count; ++i) {
          if (i < c.count / 2 || (i * 7 + static_cast<std::uint64_t>(r)) % 50 == 0)
            b.input[i] = static_cast<std::int32_t>(i + epoch + static_cast<std::uint64_t>(r));
        }
        b.submit(cluster, c, r, epoch);
      }
    }
    cluster.run();
    ASSERT_FALSE(cluster.failure()) << cluster.failure()->text;
    for (std::uint64_t epoch = 0; epoch < kOperations; ++epoch) {
      for (std::uint64_t i = 0; i < c.count; ++i) {
        std::int32_t sum = 0;
        for (std::uint64_t r = 0; r < 3; ++r) {
          if (i < c.count / 2 || (i * 7 + r) % 50 == 0) sum += static_cast<std::int32_t>(i + epoch + r);
        }
        for (const Rank& b : all[epoch]) ASSERT_EQ(b.input[i], sum) << "element " << i << " epoch " << epoch;
      }
    }
  }
}

ClusterOptions options(int workers, int dedicated = 0, int lanes = 1) {
  ClusterOptions o;
  o.workers = workers;
  o.dedicated = dedicated;
  o.lanes = lanes;
  o.tile_block_bytes = 64;
  o.slice_bytes = 8192;
  return o;
}
/// With slots for tiles of 64 blocks of 100 elements.
ClusterOptions blocks(int workers, int dedicated = 0) {
  ClusterOptions o = options(workers, dedicated);
  o.tile_block_bytes = 512;
  o.slot_bytes = 32 << 10;
  o.slice_bytes = 64 << 10;
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
const auto kTight = [](ClusterOptions& o) {
  o.slots = 1;
  o.slot_bytes = 1024;
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
const auto kLent = [](ClusterOptions& o) {
  o.lent = true;
  o.loopback.limits.ordered = o.loopback.limits.readable = true;
};
const auto kPairs = [](ClusterOptions& o) {
  kLent(o);
  o.group_size = 2;
};
const auto kShort = [](ClusterOptions& o) { o.short_codes = true; };

std::vector<Case> pushed_cases() {
  std::vector<Case> all;
  // Forms of input and output.
  const std::pair<In, const char*> inputs[] = {
      {In::scan, "scan"}, {In::bitmap, "bitmap"}, {In::stream, "stream"}, {In::all, "all"}};
  const std::pair<Out, const char*> outputs[] = {
      {Out::in_place, "in_place"}, {Out::apart, "apart"}, {Out::packed, "packed"}};
  for (const auto& [in, in_name] : inputs) {
    for (const auto& [out, out_name] : outputs) {
      for (const std::uint64_t block : {1, 3, 8}) {
        all.push_back({.name = std::string(in_name) + "_" + out_name + "_" + std::to_string(block),
                       .cluster = options(4),
                       .block = block,
                       .in = in,
                       .out = out});
      }
    }
  }
  // Densities, and the codes of index sets: each alone, all of them mixed, and the shortest.
  for (const double density : {0.0, 0.0005, 0.01, 0.1, 0.5, 0.97, 1.0}) {
    const std::string percent = std::to_string(static_cast<int>(density * 10000));
    for (const Out out : {Out::in_place, Out::packed}) {
      const std::string end = percent + (out == Out::packed ? "_packed" : "_in_place");
      for (const IndexCode code :
           {IndexCode::bitmap, IndexCode::offsets, IndexCode::gaps, IndexCode::runs, IndexCode::rice}) {
        ClusterOptions o = options(3);
        o.index_codes = {code};
        all.push_back({.name = "code_" + std::to_string(static_cast<int>(code)) + "_" + end,
                       .cluster = o,
                       .density = density,
                       .out = out});
      }
      ClusterOptions mixed = options(4);
      mixed.index_codes = {IndexCode::bitmap, IndexCode::offsets, IndexCode::gaps, IndexCode::runs,
                           IndexCode::rice};
      all.push_back({.name = "codes_mixed_" + end,
                     .cluster = mixed,
                     .density = density,
                     .out = out,
                     .mixed_inputs = true});
      all.push_back(
          {.name = "shortest_" + end, .cluster = with(options(3), kShort), .density = density, .out = out});
      all.push_back({.name = "many_ranks_" + end,
                     .cluster = options(20),
                     .count = 9001,
                     .density = density,
                     .out = out,
                     .mixed_inputs = true});
    }
  }
  // Lists of several tiles in a row, against one another and, where inputs are mixed, against single tiles.
  for (const double density : {0.0005, 0.003, 0.02, 0.1}) {
    for (const auto& [workers, dedicated] : {std::pair{1, 1}, {2, 1}, {2, 0}, {3, 0}, {4, 0}, {5, 0}}) {
      for (const Out out : {Out::apart, Out::packed}) {
        for (const bool mixed : {false, true}) {
          if (workers == 1 && out != Out::packed) continue;  // nothing is exchanged
          ClusterOptions o = options(workers, dedicated, 1 + workers % 2);
          o.slice_bytes = 64 << 10;
          o.slot_bytes = 4 << 10;
          for (const std::uint64_t block : {1, 3, 8}) {  // with a short last block, and without
            all.push_back({.name = "lists_" + std::to_string(static_cast<int>(density * 10000)) + "_" +
                                   std::to_string(workers) + (dedicated > 0 ? "_dedicated_" : "_") +
                                   std::to_string(block) + (out == Out::packed ? "_packed" : "_apart") +
                                   (mixed ? "_mixed" : ""),
                           .cluster = o,
                           .count = block == 3 ? 100002u : 100001u,
                           .block = block,
                           .density = density,
                           .in = In::stream,
                           .out = out,
                           .mixed_inputs = mixed});
          }
        }
      }
    }
  }
  // Sizes of blocks, each with every form, and with index codes of all kinds.
  for (const std::uint64_t block : {2, 3, 5, 8, 16, 33, 64, 100}) {
    const std::string size = "blocks_of_" + std::to_string(block);
    const std::uint64_t count = block < 64 ? 20001 : 40001;
    for (const Out out : {Out::in_place, Out::apart, Out::packed}) {
      const std::string end = "_" + size +
                              (out == Out::in_place ? ""
                               : out == Out::packed ? "_packed"
                                                    : "_apart");
      for (const double density : {0.01, 0.1, 0.6, 1.0}) {
        ClusterOptions mixed = blocks(4);
        mixed.index_codes = {IndexCode::bitmap, IndexCode::offsets, IndexCode::gaps, IndexCode::runs,
                             IndexCode::rice};
        const std::string percent = std::to_string(static_cast<int>(density * 100)) + end;
        all.push_back({.name = "codes_mixed_" + percent,
                       .cluster = mixed,
                       .count = count,
                       .block = block,
                       .density = density,
                       .out = out,
                       .mixed_inputs = true});
        all.push_back({.name = "shortest_" + percent,
                       .cluster = with(blocks(3), kShort),
                       .count = count,
                       .block = block,
                       .density = density,
                       .out = out});
        all.push_back({.name = "many_ranks_" + percent,
                       .cluster = blocks(20),
                       .count = count / 5,
                       .block = block,
                       .density = density,
                       .out = out,
                       .mixed_inputs = true});
      }
    }
    all.push_back({.name = "lent_late_" + size,
                   .cluster = with(with(blocks(5), kReorder), kLent),
                   .count = count,
                   .block = block,
                   .mixed_inputs = true});
    all.push_back({.name = "dedicated_" + size,
                   .cluster = blocks(3, 2),
                   .count = count,
                   .block = block,
                   .in = In::stream,
                   .out = Out::packed,
                   .mixed_inputs = true});
  }
  // Ways of messages.
  const std::pair<const char*, ClusterOptions> ways[] = {
      {"dedicated", options(3, 2)},
      {"lanes", options(3, 0, 2)},
      {"lanes_dedicated", options(2, 1, 3)},
      {"reordered", with(options(4), kReorder)},
      {"reordered_dedicated", with(options(3, 2), kReorder)},
      {"tight", with(options(3), kTight)},
      {"tight_reordered", with(with(options(3), kTight), kReorder)},
      {"of_many", with(options(12), kOfMany)},
      {"of_many_reordered", with(with(options(9), kOfMany), kReorder)},
      {"lent", with(options(4), kLent)},
      {"lent_lanes", with(options(3, 0, 2), kLent)},
      {"lent_tight", with(with(options(3), kTight), kLent)},
      {"lent_late", with(with(options(4), kReorder), kLent)},
      {"lent_late_tight", with(with(with(options(8), kTight), kReorder), kLent)},
      {"pairs", with(options(4), kPairs)},
      {"pairs_late_tight", with(with(with(options(8), kTight), kReorder), kPairs)},
      {"large_slices", with(options(3), [](ClusterOptions& o) { o.slice_bytes = 60000; })},
      {"one_tile_slices", with(options(3), [](ClusterOptions& o) { o.slice_bytes = 256; })},
      {"eight", options(8)},
  };
  for (const auto& [name, cluster] : ways) {
    for (const Out out : {Out::in_place, Out::packed}) {
      for (const double density : {0.02, 0.4}) {
        all.push_back({.name = std::string(name) + (out == Out::packed ? "_packed_" : "_in_place_") +
                               std::to_string(static_cast<int>(density * 100)),
                       .cluster = cluster,
                       .density = density,
                       .in = In::stream,
                       .out = out,
                       .mixed_inputs = true});
      }
    }
  }
  return all;
}

/// The same by merging, but for dedicated aggregators, which it does not have.
std::vector<Case> merged_cases() {
  std::vector<Case> all;
  for (Case c : pushed_cases()) {
    if (c.cluster.dedicated > 0) continue;
    c.cluster.merging = true;
    c.name = "merging_" + c.name;
    all.push_back(c);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Merging, TilesTest, ::testing::ValuesIn(merged_cases()),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(All, TilesTest, ::testing::ValuesIn(pushed_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace nzcl::test

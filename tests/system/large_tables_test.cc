// Sparse gradients of large tables, whose results are packed: a few rows out of up to 10^9. No time is
// measured here, but whatever walked the tables would not end within the test's time, or not find the memory.
// What can be counted is: the bytes that are sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/bitmap.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

/// Rows of one rank, in any order, some of them several times.
struct Rows {
  std::vector<std::int64_t> indices;
  std::vector<float> values;
};

struct Table {
  std::uint64_t rows = 0, width = 128;  // floats of a row
  std::uint64_t own = 4;                // rows that a rank has and others may have too
  int empty_rank = -1;

  /// The first and the last row of all ranks, rows of several ranks, and duplicates.
  Rows rows_of(int rank) const {
    Rows r;
    if (rank == empty_rank) return r;
    r.indices = {static_cast<std::int64_t>(rows - 1), 0};
    for (std::uint64_t i = 0; i < own; ++i) {
      const std::uint64_t stride = rows / (own + 1),
                          shift = i % 2 == 0 ? static_cast<std::uint64_t>(rank) : 0;
      r.indices.push_back(static_cast<std::int64_t>((i + 1) * stride - shift));
    }
    r.indices.push_back(0);
    for (std::size_t i = 0; i < r.indices.size() * width; ++i)
      r.values.push_back(static_cast<float>((i * 7 + static_cast<std::size_t>(rank)) % 201) - 100);
    return r;
  }
  std::map<std::int64_t, std::vector<float>> sum(int ranks) const {
    std::map<std::int64_t, std::vector<float>> sums;
    for (int rank = 0; rank < ranks; ++rank) {
      const Rows r = rows_of(rank);
      for (std::size_t i = 0; i < r.indices.size(); ++i) {
        auto& row = sums[r.indices[i]];
        row.resize(width);
        for (std::size_t e = 0; e < width; ++e) row[e] += r.values[i * width + e];
      }
    }
    return sums;
  }
};

/// Sums the table over all ranks, with room for `capacity` rows or as many as there are.
void check(Communicator& c, const Table& table, std::size_t capacity = ~std::size_t{0},
           std::uint64_t most_index_bytes = 64) {
  SCOPED_TRACE(std::to_string(table.rows) + " rows of " + std::to_string(table.width));
  Rows mine = table.rows_of(c.rank());
  const auto expected = table.sum(c.size());
  mine.values.resize(std::max<std::size_t>(mine.values.size(), 1));
  const auto registered = c.register_buffer(mine.values.data(), mine.values.size() * sizeof(float));
  capacity = std::min(capacity, expected.size());
  std::vector<float> packed(capacity * table.width + 1, 6.5f), grown;
  std::vector<std::int64_t> indices(capacity);
  const std::uint64_t sent = c.statistics().bytes_sent;
  Work work = c.allreduce_sparse({.values = mine.values.data(),
                                  .indices = mine.indices,
                                  .count = table.rows * table.width,
                                  .block_elems = table.width,
                                  .packed_values = packed.data(),
                                  .packed_capacity = capacity,
                                  .packed_indices = indices.data(),
                                  .packed_grow =
                                      [&](std::uint64_t n) {
                                        grown.resize(n * table.width), indices.resize(n);
                                        return PackedMemory{grown.data(), indices.data()};
                                      },
                                  .sum_duplicates = true});
  work.wait();
  const auto& values = grown.empty() ? packed : grown;
  ASSERT_EQ(work.packed_indices().size(), expected.size());
  ASSERT_EQ(indices.size(), expected.size());
  std::size_t at = 0;
  for (const auto& [index, row] : expected) {
    ASSERT_EQ(work.packed_indices()[at], index);
    ASSERT_EQ(indices[at], index);
    ASSERT_EQ(std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(at * table.width),
                                 values.begin() + static_cast<std::ptrdiff_t>((at + 1) * table.width)),
              row);
    ++at;
  }
  EXPECT_TRUE(!grown.empty() || packed.back() == 6.5f) << "written behind the end";
  // Values that are sent up and down with their index sets, which as bitmaps take 8 KiB; and at most so much
  // for each of the slices.
  const std::uint64_t most =
      2 * static_cast<std::uint64_t>(c.size()) * expected.size() * (table.width * 4 + most_index_bytes) +
      static_cast<std::uint64_t>(c.size()) * 64 * 300 * 4;
  EXPECT_LT(c.statistics().bytes_sent - sent, most);
}

struct Case {
  std::string transport;
  int ranks = 2, dedicated = 0, lanes = 1;
  Algorithm algorithm = Algorithm::automatic;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.transport << c.ranks << name_of(c.algorithm); }

class LargeTables : public ::testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(Communicator&)>& body, IndexFormat format = IndexFormat::automatic) {
    const Case& c = GetParam();
    Setting s{.transport = c.transport, .ranks = c.ranks, .dedicated = c.dedicated, .options = {}};
    s.options.lanes = c.lanes;
    s.options.algorithm = c.algorithm;
    s.options.tune.format = format;
    s.options.pin = Pinning::off;
    s.options.timeout_s = 60;
    s.options.log_level = LogLevel::off;
    const auto errors = run_ranks(s, body);
    for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
  }
};

TEST_P(LargeTables, AFewRows) {
  run([](Communicator& c) {
    for (const std::uint64_t rows : {1'000'000, 100'000'000, 1'000'000'000}) {
      for (int empty = -1; empty < c.size(); ++empty) check(c, {.rows = rows, .empty_rank = empty});
    }
  });
}

TEST_P(LargeTables, InEveryFormat) {
  for (const IndexFormat format :
       {IndexFormat::bitmap, IndexFormat::offsets, IndexFormat::gaps, IndexFormat::runs, IndexFormat::rice}) {
    SCOPED_TRACE(static_cast<int>(format));
    run(
        [](Communicator& c) {
          check(c, {.rows = 100'000'000});
          check(c, {.rows = 100'000'000, .width = 1, .own = 300}, ~std::size_t{0}, 8300);
        },
        format);
  }
}

/// 2^40 elements in blocks of 1,000, and others of each kind: small, and too large for 64 of them in a tile.
TEST_P(LargeTables, RowsOfAnySize) {
  run([](Communicator& c) {
    check(c, {.rows = (std::uint64_t{1} << 40) / 1000, .width = 1000, .own = 1000});
    check(c, {.rows = std::uint64_t{1} << 39, .width = 1, .own = 1000});
    check(c, {.rows = 100'000'000, .width = 3, .own = 50});
    check(c, {.rows = 100'000'000, .width = 4096, .own = 5});
    check(c, {.rows = 1'000'000, .width = 30'000, .own = 2});
  });
}

TEST_P(LargeTables, WhoseResultsGrow) {
  run([](Communicator& c) {
    for (const std::size_t capacity : {0, 1, 30})
      check(c, {.rows = (std::uint64_t{1} << 40) / 128, .own = 100}, capacity);
  });
}

/// The last rank says which row does not exist, and the others hear of it, whatever the table's size is.
TEST_P(LargeTables, ThatARankRefuses) {
  run([](Communicator& c) {
    const Table table{.rows = 100'000'000};
    Rows mine = table.rows_of(c.rank());
    if (c.rank() == c.size() - 1) mine.indices[0] = 100'000'000;
    std::vector<float> packed(64 * table.width);
    const auto registered = c.register_buffer(mine.values.data(), mine.values.size() * sizeof(float));
    std::string error;
    try {
      c.allreduce_sparse({.values = mine.values.data(),
                          .indices = mine.indices,
                          .count = table.rows * table.width,
                          .block_elems = table.width,
                          .packed_values = packed.data(),
                          .packed_capacity = 64,
                          .sum_duplicates = true})
          .wait();
    } catch (const Error& e) {
      error = e.what();
    }
    EXPECT_NE(error.find("block index 100000000 is not below the block count 100000000"), std::string::npos)
        << error;
    check(c, table);
  });
}

/// The union as bits is made when it is asked for, and from memory of nzcl's own.
TEST_P(LargeTables, WhoseUnionIsAskedFor) {
  run([](Communicator& c) {
    const Table table{.rows = 10'000'000};
    Rows mine = table.rows_of(c.rank());
    const auto expected = table.sum(c.size());
    const auto registered = c.register_buffer(mine.values.data(), mine.values.size() * sizeof(float));
    std::vector<float> packed(expected.size() * table.width);
    Work work = c.allreduce_sparse({.values = mine.values.data(),
                                    .indices = mine.indices,
                                    .count = table.rows * table.width,
                                    .block_elems = table.width,
                                    .packed_values = packed.data(),
                                    .packed_capacity = expected.size(),
                                    .sum_duplicates = true});
    work.wait();
    const auto bits = work.union_bitmap();
    EXPECT_EQ(count_bits(bits), expected.size());
    for (const auto& [index, row] : expected) EXPECT_TRUE(test_bit(bits, static_cast<std::uint64_t>(index)));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ways, LargeTables,
    ::testing::Values(Case{"loopback", 1}, Case{"loopback", 2}, Case{"loopback", 2, 0, 2, Algorithm::push},
                      Case{"loopback", 2, 0, 2, Algorithm::merging},
                      Case{"loopback", 3, 0, 1, Algorithm::push},
                      Case{"loopback", 3, 0, 2, Algorithm::merging},
                      Case{"loopback", 4, 0, 1, Algorithm::merging}, Case{"loopback", 3, 2}, Case{"cma", 2},
                      Case{"cma", 2, 0, 1, Algorithm::merging}, Case{"cma", 3, 0, 1, Algorithm::push},
                      Case{"tcp", 2, 0, 1, Algorithm::push}, Case{"shm", 2}),
    [](const auto& i) {
      const Case& c = i.param;
      return c.transport + "_" + std::to_string(c.ranks) + "_" + std::to_string(c.dedicated) + "_" +
             std::to_string(c.lanes) + "_" + std::string(name_of(c.algorithm));
    });

}  // namespace
}  // namespace nzcl::test

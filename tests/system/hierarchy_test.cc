// Allreduces by hierarchy: the ranks of each host sum first, then the hosts. Here so many ranks in a row
// count as one host, as the option host_ranks says. Results are compared with plain sums in that order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <latch>
#include <numeric>
#include <thread>

#include "nzcl/compress.h"
#include "tests/system/by_hierarchy.h"
#include "tests/system/misuse.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/run_one.h"
#include "verbs/transport.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HierarchyTest : public testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Hosts, HierarchyTest,
                         testing::Values(Hosts{3, 2}, Hosts{4, 2}, Hosts{5, 2}, Hosts{6, 2}, Hosts{6, 4},
                                         Hosts{6, 3}),
                         [](const auto& its) {
                           return std::to_string(its.param.ranks) + "_ranks_in_hosts_of_" +
                                  std::to_string(its.param.host_ranks);
                         });

TEST_P(HierarchyTest, every_type_operation_and_sparsity) {
  const auto [ranks, host_ranks] = GetParam();
  const auto errors = run_ranks(by_hierarchy(GetParam()), [&](Communicator& c) {
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        Problem p{.type = static_cast<DataType>(type),
                  .op = static_cast<ReduceOp>(op),
                  .count = 5003,
                  .block = 16,
                  .ranks = ranks,
                  .seed = static_cast<unsigned>(type * 7 + op)};
        if (is_unfit(p)) continue;
        p.sparsity = kSparsities[static_cast<std::size_t>(type + op) % std::size(kSparsities)];
        run_one(c, p, sum_by_hosts(p, host_ranks), op % 2 == 0 ? Form::in_place : Form::out_of_place);
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(HierarchyTest, every_form_block_and_size) {
  const auto [ranks, host_ranks] = GetParam();
  const auto errors = run_ranks(by_hierarchy(GetParam()), [&](Communicator& c) {
    unsigned seed = 0;
    for (const std::uint64_t count : {1u, 64u, 4097u, 300007u}) {
      for (const std::uint64_t block : {1u, 7u, 256u}) {
        for (const Form form : {Form::in_place, Form::out_of_place, Form::with_bitmap, Form::dense_flag}) {
          const Problem p{.type = DataType::float32,
                          .op = ++seed % 3 == 0 ? ReduceOp::avg : ReduceOp::sum,
                          .count = count,
                          .block = block,
                          .sparsity = kSparsities[seed % std::size(kSparsities)],
                          .ranks = ranks,
                          .seed = seed};
          run_one(c, p, sum_by_hosts(p, host_ranks), form);
        }
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

class HierarchyTransportTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    if (name == "cma" && !verbs::may_write_processes()) GTEST_SKIP() << "cma is not available here";
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, HierarchyTransportTest, testing::Values("loopback", "shm", "tcp", "cma"),
                         [](const auto& its) { return std::string(its.param); });

TEST_P(HierarchyTransportTest, several_operations_of_several_pieces_at_once) {
  const Hosts hosts{4, 2};
  const auto errors = run_ranks(by_hierarchy(hosts, GetParam(), 2), [&](Communicator& c) {
    struct One {
      Problem problem;
      std::vector<std::byte> data;
      RegisteredBuffer registered;
      Work work;
    };
    std::vector<One> all(6);
    for (unsigned i = 0; i < all.size(); ++i) {
      One& one = all[i];
      one.problem = {
          .count = 1'500'000 + i, .block = 256, .sparsity = Sparsity::random, .ranks = 4, .seed = i};
      one.data = make_input(one.problem, c.rank());
      one.registered = c.register_buffer(one.data.data(), one.data.size());
      one.work = c.allreduce({.input = one.data.data(),
                              .output = one.data.data(),
                              .count = one.problem.count,
                              .algorithm = i % 3 == 2 ? Algorithm::push : Algorithm::automatic});
    }
    for (One& one : all) {
      one.work.wait();
      const bool pushed = one.problem.seed % 3 == 2;
      EXPECT_EQ(one.work.statistics().algorithm, pushed ? Algorithm::push : Algorithm::hierarchy);
      const Expected expected =
          pushed ? make_expected(one.problem) : sum_by_hosts(one.problem, hosts.host_ranks);
      EXPECT_EQ(first_difference(one.data, expected.data), -1) << one.problem.text();
    }
  });
  EXPECT_THAT(errors, Each(""));
}

/// A rank's blocks of a problem with their indices, in descending order as a caller may give them.
struct Stream {
  Stream(const Problem& p, int rank) {
    const auto dense = make_input(p, rank);
    const std::uint64_t block_bytes = p.block * element_bytes(p.type);
    for (std::uint64_t b = p.blocks(); b-- > 0;) {
      if (!holds(p, rank, b)) continue;
      indices.push_back(static_cast<std::int32_t>(b));
      const std::uint64_t from = b * block_bytes, n = std::min(block_bytes, dense.size() - from);
      values.insert(values.end(), dense.begin() + static_cast<std::ptrdiff_t>(from),
                    dense.begin() + static_cast<std::ptrdiff_t>(from + n));
      values.resize(indices.size() * block_bytes);
    }
    values.resize(values.size() + 1);  // so that there is something to register
  }
  std::vector<std::byte> values;
  std::vector<std::int32_t> indices;
};

/// What an operation with a packed result has to come to.
void check_packed(const Problem& p, const Expected& expected, std::span<const std::int64_t> indices,
                  const std::vector<std::byte>& values) {
  const std::uint64_t block_bytes = p.block * element_bytes(p.type);
  std::vector<std::byte> dense(p.bytes());
  std::vector<std::uint64_t> bits(words_for(p.blocks()));
  std::size_t place = 0;
  for (const std::int64_t index : indices) {
    const auto b = static_cast<std::uint64_t>(index);
    set_bit(std::span(bits), b);
    std::memcpy(dense.data() + b * block_bytes, values.data() + place++ * block_bytes,
                std::min(block_bytes, dense.size() - b * block_bytes));
  }
  EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
  EXPECT_EQ(bits, expected.bits) << p.text();
  EXPECT_EQ(first_difference(dense, expected.data), -1) << p.text();
}

TEST(Hierarchy, takes_values_with_indices_where_the_result_is_dense) {
  const Hosts hosts{4, 2};
  const auto errors = run_ranks(by_hierarchy(hosts), [&](Communicator& c) {
    for (const std::uint64_t block : {1u, 64u}) {
      const Problem p{.count = 10007, .block = block, .sparsity = Sparsity::random, .ranks = 4, .seed = 3};
      Stream mine(p, c.rank());
      std::vector<std::byte> output(p.bytes(), std::byte{0x5a});
      const auto in = c.register_buffer(mine.values.data(), mine.values.size());
      const auto out = c.register_buffer(output.data(), output.size());
      Work work = c.allreduce_sparse({.values = mine.values.data(),
                                      .indices = mine.indices,
                                      .count = p.count,
                                      .block_elems = block,
                                      .output = output.data()});
      work.wait();
      EXPECT_EQ(work.statistics().algorithm, Algorithm::hierarchy);
      const Expected expected = sum_by_hosts(p, hosts.host_ranks);
      EXPECT_EQ(first_difference(output, expected.data), -1);
      const auto bits = work.union_bitmap();
      EXPECT_TRUE(std::equal(bits.begin(), bits.end(), expected.bits.begin(), expected.bits.end()));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(HierarchyTest, packed_results_of_streams) {
  const auto [ranks, host_ranks] = GetParam();
  const auto errors = run_ranks(by_hierarchy(GetParam()), [&](Communicator& c) {
    unsigned seed = 0;
    for (const std::uint64_t count : {1u, 10007u, 1'000'003u}) {
      for (const std::uint64_t block : {1u, 7u, 128u}) {
        for (const DataType type : {DataType::float32, DataType::int64, DataType::bfloat16}) {
          ++seed;
          const Problem p{.type = type,
                          .op = seed % 3 == 0 ? ReduceOp::avg : ReduceOp::sum,
                          .count = count,
                          .block = block,
                          .sparsity = seed % 5 == 0 ? Sparsity::single : Sparsity::random,
                          .ranks = ranks,
                          .seed = seed};
          Stream mine(p, c.rank());
          auto handle = c.register_buffer(mine.values.data(), mine.values.size());
          const bool grows = seed % 2 == 0;
          std::vector<std::byte> values(grows ? 0 : p.blocks() * block * element_bytes(type));
          std::vector<std::int64_t> indices(grows ? 0 : p.blocks());
          SparseAllreduceRequest request{.values = mine.values.data(),
                                         .indices = mine.indices,
                                         .count = count,
                                         .type = type,
                                         .op = p.op,
                                         .block_elems = block,
                                         .packed_values = values.data(),
                                         .packed_capacity = grows ? 0 : p.blocks(),
                                         .packed_indices = indices.data()};
          request.packed_grow = [&](std::uint64_t blocks) {
            values.resize(blocks * block * element_bytes(type));
            indices.resize(blocks);
            return PackedMemory{values.data(), indices.data()};
          };
          if (!grows) request.packed_grow = {};
          Work work = c.allreduce_sparse(request);
          handle = {};                                              // the operation keeps what it needs
          std::fill(mine.indices.begin(), mine.indices.end(), -1);  // the call has copied them
          work.wait();
          EXPECT_EQ(work.statistics().algorithm, Algorithm::hierarchy);
          const Expected expected = sum_by_hosts(p, host_ranks);
          EXPECT_EQ(work.statistics().union_blocks, count_bits(expected.bits));
          check_packed(p, expected, work.packed_indices(), values);
          check_packed(p, expected, std::span(indices).first(work.packed_indices().size()), values);
          const auto bits = work.union_bitmap();
          EXPECT_TRUE(std::equal(bits.begin(), bits.end(), expected.bits.begin(), expected.bits.end()));
        }
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Hierarchy, a_packed_result_that_is_too_large_fails_and_no_other_one) {
  const Hosts hosts{4, 2};
  const auto errors = run_ranks(by_hierarchy(hosts), [&](Communicator& c) {
    const Problem p{.count = 1000, .block = 1, .sparsity = Sparsity::dense, .ranks = 4};
    Stream mine(p, c.rank());
    const auto handle = c.register_buffer(mine.values.data(), mine.values.size());
    std::vector<float> values(1000);
    SparseAllreduceRequest request{.values = mine.values.data(),
                                   .indices = mine.indices,
                                   .count = p.count,
                                   .block_elems = 1,
                                   .packed_values = values.data(),
                                   .packed_capacity = c.rank() == 1 ? 999u : 1000u};
    std::string text;
    try {
      c.allreduce_sparse(request).wait();
    } catch (const Error& e) {
      text = e.what();
    }
    if (c.rank() == 1) {
      EXPECT_THAT(text, HasSubstr("the packed result has 1000 blocks, packed_capacity is 999"));
    } else {
      EXPECT_EQ(text, "");
    }
    request.packed_capacity = 1000;
    c.allreduce_sparse(request).wait();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Hierarchy, rows_that_a_stream_has_twice_are_added_up) {
  const auto errors = run_ranks(by_hierarchy({4, 2}), [&](Communicator& c) {
    std::vector<float> values{1, 2, 3, 4};
    const std::vector<std::int32_t> indices{7, 3, 7, 9};
    const auto handle = c.register_buffer(values.data(), values.size() * 4);
    std::vector<float> sums(3);
    SparseAllreduceRequest request{.values = values.data(),
                                   .indices = indices,
                                   .count = 100000,
                                   .block_elems = 1,
                                   .packed_values = sums.data(),
                                   .packed_capacity = 3,
                                   .sum_duplicates = true};
    Work work = c.allreduce_sparse(request);
    work.wait();
    EXPECT_THAT(work.packed_indices(), ElementsAre(3, 7, 9));
    EXPECT_THAT(sums, ElementsAre(8, 16, 16));
  });
  EXPECT_THAT(errors, Each(""));
}

/// What is in the output before does not count, also on ranks that give nothing.
TEST(Hierarchy, zeros_the_rest_where_the_result_of_a_stream_is_dense) {
  constexpr std::size_t kElements = 5000;
  const auto errors = run_ranks(by_hierarchy({4, 2}), [&](Communicator& c) {
    std::vector<float> values{3}, output(kElements, 7.0f), expected(kElements, 0.0f);
    const std::vector<std::int64_t> indices{c.rank()};
    expected[0] = expected[1] = 3;
    const auto from = c.register_buffer(values.data(), sizeof(float));
    const auto to = c.register_buffer(output.data(), kElements * sizeof(float));
    const std::size_t given = c.rank() < 2 ? 1 : 0;
    c.allreduce_sparse({.values = values.data(),
                        .indices = std::span(indices).first(given),
                        .count = kElements,
                        .block_elems = 1,
                        .output = output.data()})
        .wait();
    EXPECT_EQ(output, expected);
  });
  EXPECT_THAT(errors, Each(""));
}

/// What a compressor sends is decoded before the ranks of a host sum it.
TEST(Hierarchy, sums_what_compressors_send) {
  constexpr std::size_t kElements = 140'001;
  for (const char* text : {"adacomp:500", "topk:0.02+bf16,results=qsgd:8", "randomk:0.05+qsgd:4", "all"}) {
    SCOPED_TRACE(text);
    const Compressor compressor = compressor_from_text(text);
    std::vector<std::vector<float>> sent(5);
    std::barrier all_sent(5), all_read(5);
    const auto errors = run_ranks(by_hierarchy({5, 2}), [&](Communicator& c) {
      const auto rank = static_cast<std::size_t>(c.rank());
      CompressorState state(compressor, kElements), twin(compressor, kElements);
      std::vector<float> gradient(kElements), result(kElements);
      const auto registered = c.register_buffer(result.data(), kElements * sizeof(float));
      for (unsigned step = 0; step < 3; ++step) {
        for (std::size_t i = 0; i < kElements; ++i) {
          const auto mixed = static_cast<std::uint32_t>(i * 2654435761u + step * 40503u + rank * 977u);
          gradient[i] = static_cast<float>(static_cast<int>(mixed % 2001) - 1000) / 700.0f;
        }
        sent[rank].assign(kElements, 0.0f);
        const CompressedGradient own = twin.compress(gradient, c.rank(), c.size());
        for (std::size_t i = 0; i < own.indices.size(); ++i)
          sent[rank][static_cast<std::size_t>(own.indices[i])] = own.values[i];
        all_sent.arrive_and_wait();
        Work work =
            c.allreduce_compressed({.state = &state, .input = gradient.data(), .output = result.data()});
        work.wait();
        EXPECT_EQ(work.statistics().algorithm, Algorithm::hierarchy);
        EXPECT_EQ(state.save(), twin.save());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < kElements; ++i) {
          const float first = sent[0][i] + sent[1][i], second = sent[2][i] + sent[3][i];
          wrong += result[i] == first + second + sent[4][i] ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0u) << "step " << step;
        all_read.arrive_and_wait();
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(Hierarchy, is_not_taken_for_sums_of_floats_that_nobody_allows_another_order) {
  Setting s = by_hierarchy({4, 2});
  s.options.algorithm = Algorithm::automatic;
  const auto errors = run_ranks(s, [&](Communicator& c) {
    std::vector<float> data(100000, 1.0f);
    const auto registered = c.register_buffer(data.data(), data.size() * 4);
    Work work = c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()});
    work.wait();
    EXPECT_NE(work.statistics().algorithm, Algorithm::hierarchy);  // floats are added in the order of ranks
    EXPECT_EQ(data[7], 4.0f);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Hierarchy, refuses_what_it_cannot_sum) {
  const auto error_of = [](Communicator& c, const auto& call) -> std::string {
    try {
      call(c);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const auto average_bytes = [](Communicator& c) {
    std::vector<std::byte> data(1000);
    const auto registered = c.register_buffer(data.data(), data.size());
    c.allreduce({.input = data.data(),
                 .output = data.data(),
                 .count = data.size(),
                 .type = DataType::uint8,
                 .op = ReduceOp::avg,
                 .algorithm = Algorithm::hierarchy})
        .wait();
  };
  const auto packed = [](Communicator& c) {
    float value = 0;
    const auto registered = c.register_buffer(&value, sizeof value);
    c.allreduce_sparse({.count = 10,
                        .op = ReduceOp::min,
                        .packed_values = &value,
                        .packed_capacity = 1,
                        .algorithm = Algorithm::hierarchy})
        .wait();
  };
  auto errors = run_ranks(by_hierarchy({4, 2}), [&](Communicator& c) {
    EXPECT_THAT(error_of(c, average_bytes), HasSubstr("algorithm hierarchy is not for averages of uint8"));
    EXPECT_THAT(error_of(c, packed), HasSubstr("is for sums and averages where the result is packed"));
  });
  EXPECT_THAT(errors, Each(""));
  errors = run_ranks(by_hierarchy({4, 4}), [&](Communicator& c) {
    EXPECT_THAT(error_of(c, average_bytes), HasSubstr("for several hosts of which some have more than one"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Hierarchy, an_operation_that_one_rank_refuses_fails_everywhere_and_no_other_one) {
  const Hosts hosts{5, 2};
  const auto errors = run_ranks(by_hierarchy(hosts), [&](Communicator& c) {
    for (int refuses = 0; refuses < hosts.ranks; ++refuses) {
      std::vector<float> data(3'000'000, 1.0f);
      const auto registered = c.register_buffer(data.data(), data.size() * 4);
      std::string text;
      try {
        void* const output = c.rank() == refuses ? nullptr : data.data();
        c.allreduce({.input = data.data(), .output = output, .count = data.size()}).wait();
      } catch (const Error& e) {
        text = e.what();
      }
      if (c.rank() == refuses) {
        EXPECT_THAT(text, HasSubstr("output"));
      } else {
        EXPECT_THAT(text, HasSubstr("rank " + std::to_string(refuses) + " refused its request"));
      }
      const Problem p{.count = 70001, .block = 256, .ranks = hosts.ranks, .seed = 4};
      run_one(c, p, sum_by_hosts(p, hosts.host_ranks), Form::out_of_place);
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Hierarchy, ranks_that_disagree_are_named) {
  const auto errors = run_ranks(by_hierarchy({4, 2}), [&](Communicator& c) {
    std::vector<float> data(200000, 1.0f);
    const auto registered = c.register_buffer(data.data(), data.size() * 4);
    c.allreduce({.input = data.data(), .output = data.data(), .count = data.size() - (c.rank() == 3 ? 1 : 0)})
        .wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("disagree"), HasSubstr("by hierarchy"), HasSubstr("rank 3"))));
}

TEST(Hierarchy, a_rank_that_does_not_call_is_named) {
  Setting s = by_hierarchy({4, 2});
  s.options.timeout_s = 1;
  const auto errors = run_ranks(s, [&](Communicator& c) {
    std::vector<float> data(200000, 1.0f);
    const auto registered = c.register_buffer(data.data(), data.size() * 4);
    const AllreduceRequest request{.input = data.data(), .output = data.data(), .count = data.size()};
    c.allreduce(request).wait();  // so that the communicators of the hosts are there
    if (c.rank() != 2) c.allreduce(request).wait();
    while (!c.async_error()) std::this_thread::yield();
    throw *c.async_error();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("no progress"), HasSubstr("rank(s) 2 did not join"))));
}

TEST(Hierarchy, an_abort_ends_what_is_under_way) {
  const auto errors = run_ranks(by_hierarchy({6, 3}), [&](Communicator& c) {
    std::vector<float> data(4'000'000, 1.0f);
    const auto registered = c.register_buffer(data.data(), data.size() * 4);
    const AllreduceRequest request{.input = data.data(), .output = data.data(), .count = data.size()};
    if (c.rank() == 5) return c.abort("enough");
    c.allreduce(request).wait();
    c.allreduce(request).wait();
    FAIL() << "rank 5 does not take part";
  });
  for (std::size_t r = 0; r < 5; ++r) EXPECT_THAT(errors[r], HasSubstr("aborted by rank 5: enough"));
}

TEST(Hierarchy, a_callback_tells_of_the_end) {
  const auto errors = run_ranks(by_hierarchy({4, 2}), [&](Communicator& c) {
    std::vector<float> data(1'000'000, 1.0f);
    const auto registered = c.register_buffer(data.data(), data.size() * 4);
    std::latch told(1);
    Work work = c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()});
    work.on_complete([&](const Error* error) {
      EXPECT_EQ(error, nullptr);
      told.count_down();
    });
    told.wait();
    EXPECT_EQ(data[12345], 4.0f);
    EXPECT_GT(c.statistics().bytes_sent, 0u);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Hierarchy, works_in_communicators_that_are_split_off) {
  const auto errors = run_ranks(by_hierarchy({8, 2}), [&](Communicator& c) {
    Communicator child = c.split(c.rank() / 4, c.rank());
    const Problem p{.count = 70001, .block = 256, .ranks = 4, .seed = 9};
    run_one(child, p, sum_by_hosts(p, 2), Form::in_place, Algorithm::hierarchy);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Hierarchy, finds_inputs_that_change_and_bitmaps_that_hide_blocks) {
  Setting s = by_hierarchy({4, 2});
  s.options.check = 1;
  const auto errors = run_ranks(s, [&](Communicator& c) {
    const Problem p{.count = 70001, .block = 256, .ranks = 4, .seed = 2};
    for (const Form form : {Form::in_place, Form::out_of_place, Form::with_bitmap})
      run_one(c, p, sum_by_hosts(p, 2), form);

    std::vector<float> input(100000, 1.0f), output(input.size());
    const auto in = c.register_buffer(input.data(), input.size() * 4);
    const auto out = c.register_buffer(output.data(), output.size() * 4);
    AllreduceRequest request{.input = input.data(), .output = output.data(), .count = input.size()};
    const auto text_of = [&](const auto& call) -> std::string {
      try {
        call();
      } catch (const Error& e) {
        return e.what();
      }
      return "";
    };
    const std::string changed = text_of([&] {
      Work work = c.allreduce(request);
      if (c.rank() == 1) input[77777] = 5.0f;
      work.wait();
    });
    // The others have summed whatever was there.
    EXPECT_THAT(changed, c.rank() == 1 ? HasSubstr("block 303 of the input changed") : HasSubstr(""));
    EXPECT_EQ(changed.empty(), c.rank() != 1) << changed;
    input[77777] = 1.0f;

    std::vector<std::uint64_t> bitmap(words_for(391), ~std::uint64_t{0});
    if (c.rank() == 2) bitmap[0] &= ~(std::uint64_t{1} << 9);
    request.bitmap = bitmap;
    EXPECT_THAT(text_of([&] { c.allreduce(request).wait(); }), HasSubstr("block 9 of the input is not all"));
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test

// Allreduces through the switch exchange, over UDP on this host's loopback interface, against a plain sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <tuple>

#include "nzcl/compress.h"
#include "nzcl/error.h"
#include "tests/system/misuse.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Setting setting(int ranks, int aggregators = 1, int lanes = 1) {
  Setting s{.transport = "loopback", .ranks = ranks, .dedicated = aggregators, .options = {}};
  s.options.algorithm = Algorithm::switch_;
  s.options.lanes = lanes;
  s.options.tune.scan_threads = 0;
  s.options.pin = Pinning::off;
  s.options.timeout_s = 60;
  s.options.log_level = LogLevel::off;
  return s;
}

void expect_none(const std::vector<std::string>& errors) {
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

float value_at(DataType type, const std::byte* at) {
  if (type == DataType::float32) {
    float v;
    std::memcpy(&v, at, sizeof v);
    return v;
  }
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return type == DataType::float16 ? half_to_float(half) : bfloat16_to_float(half);
}

/// The sum, or average, of all ranks' inputs in double precision, which holds it exactly enough.
std::vector<double> exact_sum(const Problem& p) {
  std::vector<double> sum(p.count);
  if (p.type == DataType::int32) return sum;
  const std::size_t e = element_bytes(p.type);
  for (int r = 0; r < p.ranks; ++r) {
    const auto input = make_input(p, r);
    for (std::uint64_t i = 0; i < p.count; ++i)
      sum[i] += static_cast<double>(value_at(p.type, &input[i * e]));
  }
  if (p.op == ReduceOp::avg) {
    for (double& v : sum) v /= p.ranks;
  }
  return sum;
}

/// Compares integers exactly. Others may differ by the error that the exchange's page promises, where no
/// input of the oracle is beyond 64, and by the rounding of the result's own type.
void check(const Problem& p, const Expected& expected, const std::vector<double>& exact,
           const std::vector<std::byte>& result) {
  if (p.type == DataType::int32) {
    EXPECT_EQ(first_difference(result, expected.data), -1) << p.text();
    return;
  }
  const std::size_t e = element_bytes(p.type);
  const double own = p.type == DataType::float32 ? 0x1p-24 : p.type == DataType::float16 ? 0x1p-11 : 0x1p-8;
  const int exponent = 132, headroom = static_cast<int>(std::ceil(std::log2(p.ranks)));
  const double promised = p.ranks / 2.0 * std::ldexp(1.0, exponent + headroom - 156);
  for (std::uint64_t i = 0; i < p.count; ++i) {
    const auto have = static_cast<double>(value_at(p.type, &result[i * e]));
    // float32 rounds once when integers become floats and once more when an average is divided.
    ASSERT_NEAR(have, exact[i], promised + (own + 0x1p-23) * (std::abs(exact[i]) + promised))
        << p.text() << " element " << i;
  }
}

struct Where {
  int ranks, aggregators, lanes;
};
class SwitchTest : public ::testing::TestWithParam<Where> {
 protected:
  Setting here() const { return setting(GetParam().ranks, GetParam().aggregators, GetParam().lanes); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, SwitchTest,
                         ::testing::Values(Where{1, 1, 1}, Where{2, 1, 1}, Where{3, 1, 2}, Where{5, 1, 1},
                                           Where{2, 2, 1}),
                         [](const auto& where) {
                           const Where w = where.param;
                           return std::to_string(w.ranks) + "_ranks_" + std::to_string(w.aggregators) +
                                  "_aggregators_" + std::to_string(w.lanes) + "_lanes";
                         });

TEST_P(SwitchTest, EveryTypeSizeAndSparsity) {
  std::vector<std::tuple<Problem, Expected, std::vector<double>>> problems;
  for (const DataType type : {DataType::int32, DataType::float32, DataType::float16, DataType::bfloat16}) {
    for (const std::uint64_t count : {0, 1, 255, 4999, 70011}) {
      for (const Sparsity sparsity : kSparsities) {
        for (const std::uint64_t block : {1, 16, 256, 5000}) {
          if (block == 1 && count > 5000) continue;
          const bool average = type != DataType::int32 && count == 4999;
          Problem p{.type = type,
                    .op = average ? ReduceOp::avg : ReduceOp::sum,
                    .count = count,
                    .block = block,
                    .sparsity = sparsity,
                    .ranks = GetParam().ranks};
          problems.emplace_back(p, make_expected(p), exact_sum(p));
        }
      }
    }
  }
  expect_none(run_ranks(here(), [&](Communicator& c) {
    int turn = 0;
    for (const auto& [p, expected, exact] : problems) {
      auto data = make_input(p, c.rank());
      data.resize(std::max<std::size_t>(data.size(), 8));
      auto output = data;
      const auto in = c.register_buffer(data.data(), data.size());
      const auto out = c.register_buffer(output.data(), output.size());
      const bool in_place = ++turn % 2 == 0;
      const double expected_density = turn % 3 == 0 ? 0.05 : 0;  // right or wrong, it changes no sum
      auto work = c.allreduce({.input = data.data(),
                               .output = in_place ? data.data() : output.data(),
                               .count = p.count,
                               .type = p.type,
                               .op = p.op,
                               .block_elems = p.block,
                               .expected_density = expected_density});
      work.wait();
      auto& result = in_place ? data : output;
      result.resize(p.bytes());
      check(p, expected, exact, result);
      const auto bits = work.union_bitmap();
      EXPECT_TRUE(std::ranges::equal(bits, expected.bits)) << p.text();
    }
  }));
}

/// Each rank has one of ten blocks, and pieces have up to 64. The blocks of 128 elements fill packets
/// unevenly, and the last block has only 5.
TEST(SwitchBytes, OnlyBlocksThatAreNotZeroTravel) {
  expect_none(run_ranks(setting(2), [](Communicator& c) {
    for (const std::size_t block : {16, 128, 256}) {
      constexpr std::size_t kBlocks = 1001;
      std::vector<float> data((kBlocks - 1) * block + 5);
      const auto buffer = c.register_buffer(data.data(), data.size() * sizeof(float));
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = i / block % 10 == 0 ? 1.0f : 0.0f;
      auto work = c.allreduce({.input = data.data(),
                               .output = data.data(),
                               .count = data.size(),
                               .block_elems = static_cast<std::uint32_t>(block)});
      work.wait();
      for (std::size_t i = 0; i < data.size(); ++i)
        ASSERT_EQ(data[i], i / block % 10 == 0 ? 2.0f : 0.0f) << i;
      const std::uint64_t whole = kBlocks / 10 * block * sizeof(float), last = block * sizeof(float);
      const std::uint64_t sent = work.statistics().bytes_sent, received = work.statistics().bytes_received;
      EXPECT_THAT(sent, ::testing::AllOf(::testing::Gt(whole), ::testing::Le(whole + last))) << block;
      EXPECT_EQ(received, sent) << "the union is what each rank holds";
      EXPECT_EQ(work.statistics().algorithm, Algorithm::switch_);
    }
  }));
}

TEST_P(SwitchTest, ManyAtOnceGiveTheSameBitsOnAllRanks) {
  constexpr int kOperations = 40;
  const auto ranks = static_cast<std::size_t>(GetParam().ranks);
  std::vector<std::vector<float>> results(ranks);
  expect_none(run_ranks(here(), [&](Communicator& c) {
    std::vector<float> data(kOperations * 3000);
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = i / 500 % 3 == 0 ? 0 : std::sin(static_cast<float>(i) + static_cast<float>(c.rank())) * 1e5f;
    const auto buffer = c.register_buffer(data.data(), data.size() * sizeof(float));
    std::vector<Work> all;
    for (std::size_t i = 0; i < kOperations; ++i) {
      float* const at = data.data() + i * 3000;
      all.push_back(c.allreduce({.input = at, .output = at, .count = 3000}));
    }
    for (Work& work : all) work.wait();
    results[static_cast<std::size_t>(c.rank())] = data;
  }));
  for (std::size_t r = 1; r < ranks; ++r)
    EXPECT_EQ(std::memcmp(results[0].data(), results[r].data(), results[0].size() * sizeof(float)), 0);
}

TEST(SwitchErrors, WhatIsNotSupportedIsRefusedAlikeAndTheCommunicatorGoesOn) {
  expect_none(run_ranks(setting(2), [](Communicator& c) {
    std::vector<std::int32_t> data(100, 1);
    const auto buffer = c.register_buffer(data.data(), data.size() * 4);
    AllreduceRequest good{.input = data.data(), .output = data.data(), .count = 100, .type = DataType::int32};
    const auto refusal = [&](const std::function<void(AllreduceRequest&)>& change) {
      AllreduceRequest r = good;
      change(r);
      try {
        (void)c.allreduce(r);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::unsupported);
        return std::string(e.what());
      }
      return std::string();
    };
    EXPECT_THAT(refusal([](auto& r) { r.op = ReduceOp::max; }), HasSubstr("NZCL_ALGORITHM=switch"));
    EXPECT_THAT(refusal([](auto& r) { r.op = ReduceOp::avg; }), HasSubstr("this is avg of int32"));
    EXPECT_THAT(refusal([](auto& r) {
                  r.type = DataType::float64;
                  r.count = 50;
                }),
                HasSubstr("this is sum of float64"));
    try {
      (void)c.broadcast({.data = data.data(), .count = 100, .type = DataType::int32});
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("broadcast: not with NZCL_ALGORITHM=switch"));
    }
    c.allreduce(good).wait();
    EXPECT_EQ(data[99], 2);
    c.barrier();
  }));
}

TEST(SwitchErrors, AnInfinityMakesItsPieceNaNOnAllRanks) {
  expect_none(run_ranks(setting(2), [](Communicator& c) {
    std::vector<float> data(100000, 1);
    if (c.rank() == 1) data[50000] = std::numeric_limits<float>::infinity();
    const auto buffer = c.register_buffer(data.data(), data.size() * 4);
    c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
    EXPECT_TRUE(std::isnan(data[50000]));
    EXPECT_EQ(data[0], 2);
    EXPECT_EQ(data[99999], 2);
  }));
}

TEST(SwitchErrors, ItNeedsAnAggregator) {
  EXPECT_THAT(run_ranks(setting(2, 0), [](Communicator&) {}), Each(HasSubstr("nzcl_aggregator --switch")));
}

TEST(SwitchErrors, AStragglerIsNamed) {
  Setting s = setting(3);
  s.options.timeout_s = 0.5;
  std::atomic<int> over = 0;
  const auto errors = run_ranks(s, [&](Communicator& c) {
    std::vector<float> data(100, 1);
    const auto buffer = c.register_buffer(data.data(), 400);
    if (c.rank() == 1) {  // alive, but it does not call
      while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    try {
      c.allreduce({.input = data.data(), .output = data.data(), .count = 100}).wait();
    } catch (const Error& e) {
      ++over;
      EXPECT_EQ(e.code(), ErrorCode::timeout);
      throw;
    }
    ++over;
  });
  EXPECT_THAT(errors[0], HasSubstr("operation 0: rank(s) 1 did not join"));
  EXPECT_EQ(errors[0], errors[2]);
}

TEST(SwitchErrors, DifferentOperationsAreFoundOut) {
  const auto errors = run_ranks(setting(2), [](Communicator& c) {
    std::vector<float> data(300, 1);
    const auto buffer = c.register_buffer(data.data(), 1200);
    c.allreduce(
         {.input = data.data(), .output = data.data(), .count = 200u + static_cast<unsigned>(c.rank())})
        .wait();
  });
  EXPECT_THAT(errors[0], HasSubstr("have called different operations"));
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(SwitchErrors, DifferentTagsAreFoundOut) {
  const auto errors = run_ranks(setting(2), [](Communicator& c) {
    std::vector<float> data(300, 1);
    const auto buffer = c.register_buffer(data.data(), 1200);
    AllreduceRequest r{.input = data.data(), .output = data.data(), .count = 300, .tag = 7};
    c.allreduce(r).wait();
    EXPECT_EQ(data[0], 2);
    r.tag = 8 + static_cast<unsigned>(c.rank());
    c.allreduce(r).wait();
  });
  EXPECT_THAT(errors[0], HasSubstr("have called different operations"));
  EXPECT_EQ(errors[0], errors[1]);
}

/// They would not cut the tensor into the same pieces.
TEST(SwitchErrors, DifferentExpectedDensitiesAreFoundOut) {
  const auto errors = run_ranks(setting(2), [](Communicator& c) {
    std::vector<float> data(300, 1);
    const auto buffer = c.register_buffer(data.data(), 1200);
    try {
      c.allreduce({.input = data.data(),
                   .output = data.data(),
                   .count = 300,
                   .expected_density = c.rank() == 0 ? 0.05 : 0.06})
          .wait();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::mismatch);
      throw;
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("have called different operations"));
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(SwitchErrors, ALocalRefusalEndsItOnAllRanks) {
  const auto errors = run_ranks(setting(2), [](Communicator& c) {
    std::vector<float> data(300, 1);
    const auto buffer = c.register_buffer(data.data(), 1200);
    const unsigned count = c.rank() == 1 ? 301 : 300;  // beyond what is registered
    c.allreduce({.input = data.data(), .output = data.data(), .count = count}).wait();
  });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("rank 1 refused its request"), HasSubstr("not inside a registered")));
}

/// Sends packets to every UDP port of this host's loopback interface that somebody listens on, until told to
/// stop.
void flood(const std::atomic<bool>& stop) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  std::vector<char> bytes(1072, 'N');
  std::memcpy(bytes.data(), "NZS1\1\1", 6);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (!stop) {
    for (unsigned port = 32768; port < 61000 && !stop; ++port) {
      to.sin_port = htons(static_cast<std::uint16_t>(port));
      bytes[12] = static_cast<char>(port);
      ::sendto(fd, bytes.data(), bytes.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to), sizeof to);
    }
  }
  ::close(fd);
}

TEST(SwitchErrors, AFloodOfStrangersPacketsChangesNoSum) {
  std::atomic<bool> stop = false;
  std::jthread stranger([&] { flood(stop); });
  expect_none(run_ranks(setting(2), [](Communicator& c) {
    std::vector<std::int32_t> data(50000);
    const auto buffer = c.register_buffer(data.data(), data.size() * 4);
    for (int round = 0; round < 10; ++round) {
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int>(i) * (c.rank() + 1);
      c.allreduce(
           {.input = data.data(), .output = data.data(), .count = data.size(), .type = DataType::int32})
          .wait();
      for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<int>(i) * 3);
    }
  }));
  stop = true;
}

TEST(SwitchSplit, PartsHaveSlotsOfTheirOwn) {
  expect_none(run_ranks(setting(4), [](Communicator& c) {
    Communicator half = c.split(c.rank() % 2);
    std::vector<std::int32_t> data(5000, c.rank());
    const auto buffer = c.register_buffer(data.data(), data.size() * 4);
    const AllreduceRequest request{
        .input = data.data(), .output = data.data(), .count = data.size(), .type = DataType::int32};
    half.allreduce(request).wait();
    EXPECT_EQ(data[4999], c.rank() % 2 == 0 ? 2 : 4);
    c.allreduce(request).wait();
    EXPECT_EQ(data[0], 12);
  }));
}

TEST(SwitchRefusals, RanksAlone) {
  EXPECT_THAT(run_ranks(setting(2, 0), [](Communicator&) {}), Each(HasSubstr("needs dedicated aggregators")));
}

// Such a call fails alike on all ranks, and they go on.
TEST(SwitchRefusals, CodedResults) {
  expect_none(run_ranks(setting(2), [](Communicator& c) {
    constexpr std::uint64_t kElements = 20000;
    CompressorState coded(compressor_from_text("all,results=bf16"), kElements);
    CompressorState plain(compressor_from_text("all"), kElements);
    std::vector<float> input(kElements, 1.0f), result(kElements);
    const auto buffer = c.register_buffer(result.data(), kElements * sizeof(float));
    const auto call = [&](CompressorState& s) {
      c.allreduce_compressed({.state = &s, .input = input.data(), .output = result.data()}).wait();
    };
    EXPECT_THAT(error_of([&] { call(coded); }).second, HasSubstr("algorithm switch cannot"));
    EXPECT_EQ(coded.report().steps, 0u);
    call(plain);
    EXPECT_THAT(result, Each(2.0f));
  }));
}

}  // namespace
}  // namespace nzcl::test

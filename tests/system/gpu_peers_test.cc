// Allreduces that the GPUs of a host's ranks sum, because they can read each other's memory: when they do and
// when the host does, that the bits are the same, and that every stream goes on when a rank fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/system/gpu_floats.h"
#include "tests/system/rank_to_kill.h"
#include "tests/system/run_on_gpu.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

/// Ranks make their GPUs when they have met.
const bool announced = [] {
  gpu::EmulatedGpu::announce();
  return true;
}();

/// After so many operations of a size, of which each waits for the one before, GPUs sum the next one: all
/// ranks have made their memory in the first one, and have opened that of all by the second.
constexpr int kUntilReady = 2;

std::uint64_t gpu_sums(const Communicator& c) { return c.statistics().gpu_sums; }

/// Sums ones until the GPUs do so, in the memory of `floats`. Returns how many they have summed.
std::uint64_t make_ready(Communicator& c, OnGpu& on, const GpuFloats& floats) {
  for (int i = 0; i <= kUntilReady; ++i) c.allreduce(floats.request(on.stream())).wait();
  EXPECT_GE(gpu_sums(c), 1u);
  c.barrier();
  return gpu_sums(c);
}

using Ran = std::tuple<Where, DataType>;
class GpuPeers : public testing::TestWithParam<Ran> {};

TEST_P(GpuPeers, SumsHaveTheBitsOfThePlainSum) {
  const auto& [where, type] = GetParam();
  std::vector<Problem> problems;
  unsigned seed = 1;
  // The largest first, since later ones take its memory.
  for (const std::uint64_t block : {20000, 1000, 256}) {
    for (const std::uint64_t count : {std::uint64_t{100003}, block * 65 + 1, std::uint64_t{60000}}) {
      for (const Sparsity sparsity : kSparsities) {
        if (count > 100003) continue;
        const auto op = static_cast<ReduceOp>(seed % kReduceOps);
        problems.push_back({type, op, count, block, sparsity, where.ranks, seed++});
      }
    }
  }
  std::vector<Expected> expected;
  for (const Problem& p : problems) expected.push_back(make_expected(p));
  const auto errors = run_ranks(where.setting(), [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    for (std::size_t i = 0; i < problems.size(); ++i)
      run_one_on_gpu(c, on, problems[i], expected[i], static_cast<Form>(i % 4), i % 3 == 0);
    // Blocks of few slices have fewer bits than those of the first problems had room for.
    EXPECT_GE(gpu_sums(c), problems.size() * 3 / 4) << "of " << problems.size();
  });
  EXPECT_THAT(errors, Each(""));
}

constexpr DataType kAllTypes[] = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16,
                                  DataType::int32,   DataType::int64,   DataType::uint8};
std::string name_of_run(const testing::TestParamInfo<Ran>& info) {
  return std::get<0>(info.param).text() + "_" + std::string(nzcl::name_of(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Ranks, GpuPeers,
                         testing::Combine(testing::Values(Where{"loopback", 2}, Where{"loopback", 3},
                                                          Where{"loopback", 4, 0, 2}),
                                          testing::ValuesIn(kAllTypes)),
                         name_of_run);
INSTANTIATE_TEST_SUITE_P(Transports, GpuPeers,
                         testing::Combine(testing::Values(Where{"shm", 2}, Where{"tcp", 3}, Where{"cma", 2}),
                                          testing::Values(DataType::float32)),
                         name_of_run);

/// A rank may have either side in host memory in any operation: then the host sums that one.
TEST(GpuPeersMixed, OneRankWithHostMemoryLetsTheHostSum) {
  const Problem p{.count = 100003, .block = 256, .ranks = 3};
  const Expected expected = make_expected(p);
  const auto errors = run_ranks({.ranks = 3, .options = {}}, [&](Communicator& c) {
    OnGpu on;
    const auto run = [&](Sides sides) {
      run_one_on_gpu(c, on, p, expected, Form::out_of_place, false, sides);
    };
    for (int i = 0; i <= kUntilReady; ++i) run({});
    for (std::size_t i = 0; i < 12; ++i) {
      const std::uint64_t before = gpu_sums(c);
      const bool mixed = i % 3 != 0;
      const int other = static_cast<int>(i) % c.size();
      run(mixed && c.rank() == other ? kMixes[1 + i % 3] : Sides{});
      EXPECT_EQ(gpu_sums(c) - before, mixed ? 0u : 1u) << i;
    }
  });
  EXPECT_THAT(errors, Each(""));
}

/// Many operations in flight, of which some have one rank's memory on the host, at random, so that votes and
/// words of the board are used again and again while others are still under way.
TEST(GpuPeersMixed, VotesOfManyOperationsInFlight) {
  constexpr std::size_t kOperations = 300, kInFlight = 6;
  const Problem p{.count = 60001, .block = 256, .ranks = 3};
  const Expected expected = make_expected(p);
  const auto errors = run_ranks({.ranks = 3, .options = {}}, [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    const auto input = make_input(p, c.rank());
    std::vector<std::unique_ptr<AnyTensor>> on_gpu, on_host;
    for (std::size_t i = 0; i < kInFlight; ++i) {
      on_gpu.push_back(std::make_unique<AnyTensor>(c, on, input, true));
      on_host.push_back(std::make_unique<AnyTensor>(c, on, input, false));
    }
    std::vector<std::unique_ptr<AnyTensor>> results;
    for (std::size_t i = 0; i < kInFlight; ++i)
      results.push_back(std::make_unique<AnyTensor>(c, on, input, true));
    std::vector<Work> works(kInFlight);
    for (std::size_t i = 0; i < kOperations; ++i) {
      const std::size_t at = i % kInFlight;
      if (works[at].valid()) {
        works[at].wait();
        ASSERT_EQ(first_difference(results[at]->read(), expected.data), -1) << i;
      }
      const std::size_t chosen = i * 2654435761u >> 7;  // the same on all ranks
      const bool host = chosen % 4 == 0 && chosen / 4 % 3 == static_cast<std::size_t>(c.rank());
      works[at] = c.allreduce({.input = (host ? on_host : on_gpu)[at]->data(),
                               .output = results[at]->data(),
                               .count = p.count,
                               .block_elems = p.block,
                               .stream = on.stream()});
    }
    for (Work& work : works) work.wait();
    EXPECT_GE(gpu_sums(c), kOperations / 4);
    EXPECT_LE(gpu_sums(c), kOperations * 4 / 5);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GpuPeersMixed, WhoNamesAnAlgorithmGetsIt) {
  for (const bool by_option : {true, false}) {
    const Problem p{.count = 100003, .block = 256, .ranks = 2};
    const Expected expected = make_expected(p);
    Setting s{.ranks = 2, .options = {}};
    if (by_option) s.options.algorithm = Algorithm::push;
    const auto errors = run_ranks(s, [&](Communicator& c) {
      OnGpu on;
      for (int i = 0; i < 5; ++i)
        run_one_on_gpu(c, on, p, expected, Form::out_of_place, false, {},
                       by_option ? Algorithm::automatic : Algorithm::push);
      EXPECT_EQ(gpu_sums(c), 0u);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

/// One rank's GPU does not reach the others' memory, or a rank has several GPUs.
TEST(GpuPeersMixed, GpusThatDoNotReachEachOtherLeaveSumsToTheHost) {
  const Problem p{.count = 100003, .block = 256, .ranks = 2};
  const Expected expected = make_expected(p);
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& c) {
    OnGpu on;
    if (c.rank() == 1) on.gpu().refuse_peers();
    for (int i = 0; i < 5; ++i) run_one_on_gpu(c, on, p, expected, Form::out_of_place, i == 3);
    EXPECT_EQ(gpu_sums(c), 0u);
  });
  EXPECT_THAT(errors, Each(""));
}

/// Two communicators of the same ranks, in another order of calls than that in which their streams come.
TEST(GpuPeersOrder, SeveralCommunicatorsAndStreams) {
  constexpr int kInFlight = 5;
  const auto problem = [](int i) {
    return Problem{.count = 60000u - static_cast<unsigned>(i),
                   .block = 128,
                   .ranks = 3,
                   .seed = static_cast<unsigned>(i) + 1};
  };
  std::vector<Expected> expected;
  for (int i = 0; i < kInFlight; ++i) expected.push_back(make_expected(problem(i)));
  const auto errors = run_ranks({.ranks = 3, .options = {}}, [&](Communicator& c) {
    Communicator other = c.split(0, -c.rank());
    OnGpu on;
    for (int round = 0; round < 10; ++round) {
      for (Communicator* const used : {&c, &other}) {
        std::vector<std::unique_ptr<AnyTensor>> inputs, results;
        std::vector<Work> works;
        std::vector<void*> streams;
        for (int i = 0; i < kInFlight; ++i) {
          const Problem p = problem(i);
          // The oracle sums in the order of c's ranks.
          const int rank = used == &c ? c.rank() : other.rank();
          inputs.push_back(std::make_unique<AnyTensor>(*used, on, make_input(p, rank), true));
          results.push_back(std::make_unique<AnyTensor>(*used, on, make_input(p, rank), true));
          streams.push_back(on.gpu().make_stream());
        }
        on.gpu().synchronize(on.stream());
        for (std::size_t i = 0; i < kInFlight; ++i) {
          works.push_back(used->allreduce({.input = inputs[i]->data(),
                                           .output = results[i]->data(),
                                           .count = problem(static_cast<int>(i)).count,
                                           .block_elems = 128,
                                           .stream = streams[i]}));
          works.back().enqueue_wait(on.stream());
        }
        for (std::size_t i = 0; i < kInFlight; ++i)
          EXPECT_EQ(first_difference(results[i]->read(), expected[i].data), -1) << i;
        for (Work& work : works) EXPECT_TRUE(work.wait(10s));
        for (void* stream : streams) on.gpu().destroy_stream(stream);
      }
    }
    EXPECT_GE(gpu_sums(c), 5u);
    EXPECT_GE(gpu_sums(other), 5u);
    other.close();
  });
  EXPECT_THAT(errors, Each(""));
}

/// Freeing memory waits for all that a GPU has to do, and nothing can be started on it meanwhile.
TEST(GpuPeersOrder, MemoryIsFreedWhileAnOperationIsInFlight) {
  std::atomic<bool> freeing{false};
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    const std::uint64_t before = make_ready(c, on, floats);
    std::byte* const unused = on.allocate(1000);
    if (c.rank() == 1) {
      while (!freeing) std::this_thread::yield();
      std::this_thread::sleep_for(20ms);
    }
    Work work = c.allreduce(floats.request(on.stream()));
    work.enqueue_wait(on.stream());
    freeing = true;
    on.gpu().free(unused);
    work.wait();
    EXPECT_EQ(gpu_sums(c), before + 1);
  });
  EXPECT_THAT(errors, Each(""));
}

/// Captured calls are the host's to sum, in any order with others.
TEST(GpuPeersOrder, CapturedCallsBetweenOthers) {
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& c) {
    OnGpu on;
    GpuFloats floats(c, on);
    make_ready(c, on, floats);
    void* const stream = on.gpu().make_stream();
    on.gpu().begin_capture(stream);
    on.gpu().copy(stream, floats.data, floats.ones.data(), kCount * sizeof(float));
    Work captured = c.allreduce(floats.request(stream));
    captured.enqueue_wait(stream);
    const auto graph = on.gpu().take_graph(stream);
    const GpuFloats others(c, on);
    for (int i = 0; i < 5; ++i) {
      on.gpu().launch_graph(stream, graph);
      on.gpu().synchronize(stream);
      const std::uint64_t before = gpu_sums(c);
      c.allreduce(others.request(stream)).wait();
      EXPECT_EQ(gpu_sums(c), before + 1);
      EXPECT_THAT(floats.read(on), Each(2.0f));
      EXPECT_THAT(others.read(on), Each(static_cast<float>(2 << i)));
    }
    c.close();
  });
  EXPECT_THAT(errors, Each(""));
}

// --- Failures

/// A rank that is a process of its own is killed: before it calls, and when it has called but its stream has
/// not come.
TEST(GpuPeersErrors, ADeadProcessReleasesTheStream) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const bool calls : {false, true}) {
      RankToKill other(setting().options, transport, [calls](Communicator& c, const auto& die) {
        OnGpu on;
        const GpuFloats floats(c, on);
        for (int i = 0; i <= kUntilReady; ++i) c.allreduce(floats.request(on.stream())).wait();
        const gpu::Flag flag = on.gpu().take_flag();
        on.gpu().await(on.stream(), flag.device, flag.value);
        std::optional<Work> work;
        if (calls) work = c.allreduce(floats.request(on.stream()));
        die();
      });
      Communicator c(other.options_of_first());
      OnGpu on;
      const GpuFloats floats(c, on);
      for (int i = 0; i <= kUntilReady; ++i) c.allreduce(floats.request(on.stream())).wait();
      EXPECT_GE(gpu_sums(c), 1u) << transport;
      EXPECT_THAT(floats.read(on), Each(8.0f)) << transport;  // 1 + 1, and that twice more
      Work work = c.allreduce(floats.request(on.stream()));
      work.enqueue_wait(on.stream());
      std::this_thread::sleep_for(50ms);
      other.kill();
      EXPECT_TRUE(ends(on, on.stream())) << transport;
      EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("rank 1")) << transport;
    }
  }
}

TEST(GpuPeersErrors, AbortReleasesTheStreamsOfAllRanks) {
  const auto errors = run_ranks(setting(3), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    make_ready(c, on, floats);
    abort_while_others_wait(c, on, floats);
  });
  EXPECT_THAT(errors, Each(""));
}

/// The stream of a rank comes late to an operation that the GPUs sum.
TEST(GpuPeersErrors, AStreamThatDoesNotComeInTimeFailsAllRanks) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    make_ready(c, on, floats);
    const gpu::Flag flag = on.gpu().take_flag();
    void* const stream = on.gpu().make_stream();
    if (c.rank() == 0) on.gpu().await(stream, flag.device, flag.value);
    AllreduceRequest request = floats.request(stream);
    request.timeout = 1s;
    Work work = c.allreduce(request);
    work.enqueue_wait(on.stream());
    EXPECT_TRUE(ends(on, on.stream()));
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(),
                AnyOf(HasSubstr("its stream did not come to it"), HasSubstr("rank(s) 0 did not"),
                      HasSubstr("the stream of rank(s) 0 did not come")));
    c.close();
    flag.raise_here();  // the kernel runs now, and writes to memory that is still there
    EXPECT_TRUE(ends(on, stream));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GpuPeersErrors, ARankThatDoesNotCallIsNamed) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    make_ready(c, on, floats);
    if (c.rank() == 1) return std::this_thread::sleep_for(3s);
    AllreduceRequest request = floats.request(on.stream());
    request.timeout = 1s;
    Work work = c.allreduce(request);
    work.enqueue_wait(on.stream());
    EXPECT_TRUE(ends(on, on.stream()));
    EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("rank(s) 1 did not join within 1 s"));
  });
  EXPECT_EQ(errors[0], "");
}

TEST(GpuPeersErrors, ABrokenGpuFailsAllRanksInItsDriversWords) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    make_ready(c, on, floats);
    const gpu::Flag flag = on.gpu().take_flag();
    on.gpu().await(on.stream(), flag.device, flag.value);
    Work work = c.allreduce(floats.request(on.stream()));
    std::this_thread::sleep_for(20ms);  // both have called, and the GPUs are to sum
    if (c.rank() == 1) on.gpu().break_down("CUDA_ERROR_ILLEGAL_ADDRESS");
    flag.raise_here();
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::system);
    EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  });
  EXPECT_THAT(errors, Each(""));
}

/// Ranks that disagree, and one that refuses, do not read what is not there.
TEST(GpuPeersErrors, DisagreementAndRefusalFailTheOperation) {
  const auto errors = run_ranks(setting(), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    std::uint64_t before = make_ready(c, on, floats);
    for (const bool refuses : {true, true}) {
      AllreduceRequest request = floats.request(on.stream());
      if (refuses && c.rank() == 1) request.output = floats.data + 1;  // longer than what is registered
      EXPECT_THAT(thrown_by([&] { c.allreduce(request).wait(); }).what(),
                  HasSubstr("is not inside a registered buffer"));
      EXPECT_EQ(gpu_sums(c), before);
      c.allreduce(floats.request(on.stream())).wait();
      EXPECT_EQ(gpu_sums(c), ++before);
    }
    AllreduceRequest request = floats.request(on.stream());
    if (c.rank() == 1) request.op = ReduceOp::max;
    EXPECT_THAT(thrown_by([&] { c.allreduce(request).wait(); }).what(), HasSubstr("max"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(GpuPeersErrors, ABitmapThatHidesABlockFailsItsOwnRank) {
  Setting s = setting();
  s.options.check = 1;
  const auto errors = run_ranks(s, [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    const std::uint64_t before = make_ready(c, on, floats);
    std::vector<std::uint64_t> bitmap(kCount / 256 / 64 + 1, ~std::uint64_t{0});
    if (c.rank() == 1) bitmap[1] &= ~std::uint64_t{1 << 5};
    AllreduceRequest request = floats.request(on.stream());
    request.bitmap = bitmap;
    Work work = c.allreduce(request);
    work.enqueue_wait(on.stream());
    EXPECT_TRUE(ends(on, on.stream()));
    const Error error = thrown_by([&] { work.wait(); });
    EXPECT_THAT(error.what(), HasSubstr(c.rank() == 1 ? "block 69 of the input is not" : ""));
    if (c.rank() == 0) {
      EXPECT_EQ(gpu_sums(c), before + 1) << error.what();
    }
    EXPECT_THAT(floats.read(on), Each(16.0f));  // rank 0's GPU has got the hidden block too
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test

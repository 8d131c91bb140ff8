// Calls that are captured into a graph: each launch sums again what is in the same memory then, in the order
// of the stream on which it is launched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "nzcl/compress.h"
#include "tests/system/by_hierarchy.h"
#include "tests/system/gpu_floats.h"
#include "tests/system/run_on_gpu.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using gpu::EmulatedGpu;
using testing::Each;
using testing::HasSubstr;

/// What `calls` puts into the rank's stream.
EmulatedGpu::Graph captured(OnGpu& on, const std::function<void()>& calls) {
  on.gpu().begin_capture(on.stream());
  calls();
  return on.gpu().take_graph(on.stream());
}

/// An allreduce in place, behind which the rank's stream goes on.
void sum(Communicator& communicator, OnGpu& on, const GpuFloats& floats) {
  Work work = communicator.allreduce(floats.request(on.stream()));
  work.enqueue_wait(on.stream());
}

void fill(OnGpu& on, const GpuFloats& floats, const std::vector<float>& values) {
  on.gpu().copy(on.stream(), floats.data, values.data(), values.size() * sizeof(float));
}

std::vector<float> read(OnGpu& on, const GpuFloats& floats) {
  std::vector<float> values(floats.ones.size());
  on.gpu().copy(on.stream(), values.data(), floats.data, values.size() * sizeof(float));
  on.gpu().synchronize(on.stream());
  return values;
}

/// A graph with one allreduce, launched with one input after the other.
void launch_with_each(Communicator& communicator, OnGpu& on, const std::vector<Problem>& problems,
                      const std::vector<Expected>& expected, Form form, Algorithm algorithm) {
  const Problem& first = problems.front();
  const int rank = communicator.rank();
  AnyTensor input(communicator, on, make_input(first, rank), true);
  AnyTensor other(communicator, on, std::vector<std::byte>(first.bytes(), std::byte{0x5a}), true);
  AnyTensor& result = form == Form::out_of_place ? other : input;
  const auto bitmap = bitmap_of(first, rank);
  const auto graph = captured(on, [&] {
    Work work =
        communicator.allreduce({.input = input.data(),
                                .output = result.data(),
                                .count = first.count,
                                .type = first.type,
                                .op = first.op,
                                .block_elems = first.block,
                                .bitmap = form == Form::with_bitmap ? std::span<const std::uint64_t>(bitmap)
                                                                    : std::span<const std::uint64_t>(),
                                .dense = form == Form::dense_flag,
                                .algorithm = algorithm,
                                .stream = on.stream()});
    work.enqueue_wait(on.stream());
  });
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const auto data = make_input(problems[i], rank);
    on.write(input.data(), data);
    on.gpu().launch_graph(on.stream(), graph);
    EXPECT_EQ(first_difference(result.read(), expected[i].data), -1)
        << problems[i].text() << ", launch " << i << text_of(form, {}, rank);
  }
}

using Ran = std::tuple<Where, DataType>;
class GpuGraph : public testing::TestWithParam<Ran> {};

TEST_P(GpuGraph, LaunchesHaveTheBitsOfThePlainSum) {
  const auto& [where, type] = GetParam();
  for (const std::uint64_t block : {1, 256, 5000}) {
    for (const Form form : {Form::in_place, Form::out_of_place, Form::with_bitmap, Form::dense_flag}) {
      const bool same_blocks = form == Form::with_bitmap;
      std::vector<Problem> problems;
      std::vector<Expected> expected;
      for (const unsigned seed : {3, 4, 5}) {
        problems.push_back(
            {type, ReduceOp::sum, 100003, block, Sparsity::random, where.ranks, same_blocks ? 3 : seed});
        expected.push_back(make_expected(problems.back()));
      }
      const auto errors = run_ranks(where.setting(), [&](Communicator& communicator) {
        OnGpu on(static_cast<unsigned>(communicator.rank()) + 1);
        launch_with_each(communicator, on, problems, expected, form, Algorithm::automatic);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

std::string name_of_run(const testing::TestParamInfo<Ran>& info) {
  return std::get<0>(info.param).text() + "_" + std::string(nzcl::name_of(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Ranks, GpuGraph,
                         testing::Combine(testing::Values(Where{"loopback", 1}, Where{"loopback", 3},
                                                          Where{"loopback", 2, 1}, Where{"cma", 2}),
                                          testing::Values(DataType::float32, DataType::bfloat16)),
                         name_of_run);

TEST(GpuGraphs, EveryAlgorithmTakesThem) {
  for (const Algorithm algorithm : {Algorithm::push, Algorithm::doubling, Algorithm::merging}) {
    const std::uint64_t count = algorithm == Algorithm::doubling ? 1000 : 300003;
    std::vector<Problem> problems;
    std::vector<Expected> expected;
    for (const unsigned seed : {1, 2, 3, 4}) {
      problems.push_back({.type = DataType::int32, .count = count, .block = 16, .ranks = 3, .seed = seed});
      expected.push_back(make_expected(problems.back()));
    }
    const auto errors = run_ranks({.ranks = 3, .options = {}}, [&](Communicator& communicator) {
      OnGpu on;
      launch_with_each(communicator, on, problems, expected, Form::out_of_place, algorithm);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(GpuGraphs, AHierarchyTakesThem) {
  const Hosts hosts{4, 2};
  std::vector<Problem> problems;
  std::vector<Expected> expected;
  for (const unsigned seed : {1, 2, 3}) {
    problems.push_back({.count = 100003, .ranks = hosts.ranks, .seed = seed});
    expected.push_back(sum_by_hosts(problems.back(), hosts.host_ranks));
  }
  const auto errors = run_ranks(by_hierarchy(hosts), [&](Communicator& communicator) {
    OnGpu on;
    launch_with_each(communicator, on, problems, expected, Form::in_place, Algorithm::hierarchy);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuGraphs, OtherCollectives) {
  constexpr int kRanks = 3;
  for (const Kind kind : kKinds) {
    for (const std::uint64_t block : {1, 256}) {
      const Problem p{.type = DataType::int32, .count = 50003, .block = block, .ranks = kRanks};
      const Call call = make_call(kind, 1, p, false);
      const auto errors = run_ranks({.ranks = kRanks, .options = {}}, [&](Communicator& c) {
        OnGpu on;
        const Joined in = input_of(call, c.rank()), out = output_of(call, c.rank());
        AnyMemory m(c, on, call, in, out, false, {});
        const auto graph = captured(on, [&] {
          Work work = start(c, call, m, {}, false, counts_of(call));
          work.enqueue_wait(on.stream());
        });
        for (int launch = 0; launch < 3; ++launch) {
          on.gpu().launch_graph(on.stream(), graph);
          on.gpu().synchronize(on.stream());
          if (gets_result(call, c.rank(), c.size())) {
            EXPECT_EQ(first_difference(m.read_output(), out.data), -1) << call.text();
          }
        }
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

TEST(GpuGraphs, AThousandLaunchesTakeNoMemory) {
  const auto errors = run_ranks(setting(3), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    const auto graph = captured(on, [&] { sum(c, on, floats); });
    const std::size_t pieces = on.gpu().pieces();
    for (int launch = 0; launch < 1000; ++launch) {
      const float mine = static_cast<float>(launch + c.rank());
      const std::vector<float> values(kCount, mine);
      fill(on, floats, values);
      on.gpu().launch_graph(on.stream(), graph);
      ASSERT_THAT(read(on, floats), Each(static_cast<float>(3 * launch + 3))) << launch;
    }
    EXPECT_EQ(on.gpu().pieces(), pieces);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The host's part of one call may not have ended when the GPU comes to the next one. Launches are not waited
/// for either, and calls outside of graphs take their turn.
TEST(GpuGraphs, CallsOnTheSameMemoryFollowEachOther) {
  const auto errors = run_ranks(setting(2), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on), others(c, on);
    const auto graph = captured(on, [&] {
      for (int call = 0; call < 3; ++call) sum(c, on, floats);
    });
    float expected = 1;
    for (int launch = 0; launch < 5; ++launch) {
      on.gpu().launch_graph(on.stream(), graph);
      on.gpu().launch_graph(on.stream(), graph);
      expected *= 64;
      EXPECT_THAT(read(on, floats), Each(expected)) << launch;
      c.allreduce(others.request(on.stream())).wait();
    }
    EXPECT_THAT(read(on, others), Each(32.0f));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuGraphs, OneSideMayBeOnTheHost) {
  const auto errors = run_ranks(setting(2), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    std::vector<float> host(kCount, 7.0f);
    const auto buffer = c.register_buffer(host.data(), kCount * sizeof(float));
    AllreduceRequest to_host = floats.request(on.stream()), to_gpu = to_host;
    to_host.output = host.data();
    to_gpu.input = host.data();
    const auto graph = captured(on, [&] {
      for (const AllreduceRequest& request : {to_host, to_gpu}) {
        Work work = c.allreduce(request);
        work.enqueue_wait(on.stream());
      }
    });
    for (float expected = 4; expected < 300; expected *= 4) {
      on.gpu().launch_graph(on.stream(), graph);
      EXPECT_THAT(read(on, floats), Each(expected));
      EXPECT_THAT(host, Each(expected / 2));
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuGraphs, WhatIsCapturedAndWhatIsNotDoNotMix) {
  const auto errors = run_ranks(setting(1), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on), others(c, on);
    void* const stream = on.gpu().make_stream();
    const gpu::Flag flag = on.gpu().take_flag();
    on.gpu().await(stream, flag.device, flag.value);
    Work before = c.allreduce(others.request(stream));
    Work within;
    const auto graph = captured(on, [&] {
      EXPECT_THAT(thrown_by([&] { before.enqueue_wait(on.stream()); }).what(),
                  HasSubstr("was begun outside it"));
      within = c.allreduce(floats.request(on.stream()));
      EXPECT_THAT(thrown_by([&] { within.enqueue_wait(stream); }).what(), HasSubstr("this stream is not"));
      within.enqueue_wait(on.stream());
    });
    flag.raise_here();
    before.wait();
    for (const auto& call :
         std::vector<std::function<void()>>{[&] { within.wait(); }, [&] { (void)within.test(); },
                                            [&] { within.on_complete([](const Error*) {}); }}) {
      const Error error = thrown_by(call);
      EXPECT_EQ(error.code(), ErrorCode::invalid_usage);
      EXPECT_THAT(error.what(), HasSubstr("was captured into a graph"));
    }
    on.gpu().launch_graph(on.stream(), graph);
    EXPECT_THAT(read(on, floats), Each(1.0f));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// No operation takes the place of a refused call, since none begins on the other ranks.
TEST(GpuGraphs, ARefusedCallBeginsNothing) {
  const auto errors = run_ranks(setting(2), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    const auto graph = captured(on, [&] {
      AllreduceRequest request = floats.request(on.stream());
      const auto list = on.allocate(64);
      const auto buffer = c.register_buffer(list, 64, MemoryKind::device);
      SparseAllreduceRequest stream;
      stream.values = list;
      stream.indices = std::span(reinterpret_cast<const std::int32_t*>(list + 32), 2);
      stream.count = kCount;
      stream.block_elems = 1;
      stream.output = floats.data;
      stream.stream = on.stream();
      EXPECT_THAT(thrown_by([&] { (void)c.allreduce_sparse(stream); }).what(),
                  HasSubstr("captured into a graph"));
      CompressorState state(compressor_from_text("topk:0.01"), kCount, GpuOf{floats.data});
      EXPECT_THAT(
          thrown_by([&] {
            (void)c.allreduce_compressed(
                {.state = &state, .input = floats.data, .output = floats.data, .stream = on.stream()});
          }).what(),
          testing::AllOf(HasSubstr("captured into a graph"), HasSubstr("no compressors")));
      request.block_elems = 0;
      EXPECT_EQ(thrown_by([&] { (void)c.allreduce(request); }).code(), ErrorCode::invalid_argument);
      request.block_elems = 256;
      request.timeout = -1s;
      EXPECT_EQ(thrown_by([&] { (void)c.allreduce(request); }).code(), ErrorCode::invalid_argument);
      request.timeout = 0s;
      Work work = c.allreduce(request);
      work.enqueue_wait(on.stream());
    });
    for (float expected = 2; expected < 9; expected *= 2) {
      on.gpu().launch_graph(on.stream(), graph);
      EXPECT_THAT(read(on, floats), Each(expected));
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The stream goes on, also of later launches, and the next call says what has happened.
TEST(GpuGraphs, ADeadRankStopsNoStream) {
  const auto errors = run_ranks(setting(3), [](Communicator& c) {
    OnGpu on;
    const GpuFloats floats(c, on);
    const auto graph = captured(on, [&] { sum(c, on, floats); });
    on.gpu().launch_graph(on.stream(), graph);
    EXPECT_THAT(read(on, floats), Each(3.0f));
    if (c.rank() == 1) return c.abort("its gradients are lost");
    for (int launch = 0; launch < 3; ++launch) {
      on.gpu().launch_graph(on.stream(), graph);
      EXPECT_TRUE(ends(on, on.stream()));
      EXPECT_THAT(read(on, floats), Each(3.0f));
    }
    const Error error = thrown_by([&] { (void)c.allreduce(floats.request(on.stream())); });
    EXPECT_THAT(error.what(), HasSubstr("its gradients are lost"));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuGraphs, ALaunchBehindTheEndOfTheCommunicatorChangesNothing) {
  std::vector<std::unique_ptr<OnGpu>> gpus(2);
  std::vector<EmulatedGpu::Graph> graphs(2);
  std::vector<float*> memory(2);
  const auto errors = run_ranks(setting(2), [&](Communicator& c) {
    const auto rank = static_cast<std::size_t>(c.rank());
    gpus[rank] = std::make_unique<OnGpu>();
    const GpuFloats floats(c, *gpus[rank]);
    memory[rank] = floats.data;
    graphs[rank] = captured(*gpus[rank], [&] { sum(c, *gpus[rank], floats); });
    gpus[rank]->gpu().launch_graph(gpus[rank]->stream(), graphs[rank]);
    EXPECT_THAT(read(*gpus[rank], floats), Each(2.0f));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    OnGpu& on = *gpus[rank];
    on.gpu().launch_graph(on.stream(), graphs[rank]);
    std::vector<float> values(kCount);
    on.gpu().copy(on.stream(), values.data(), memory[rank], kCount * sizeof(float));
    EXPECT_TRUE(ends(on, on.stream()));
    EXPECT_THAT(values, Each(2.0f));
  }
}

}  // namespace
}  // namespace nzcl::test

// Allreduces of memory that the host cannot touch, on an emulated GPU whose streams are late: every result is
// compared with the plain sum, bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>

#include "tests/system/gpu_tensor.h"
#include "tests/system/on_gpu.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/run_on_gpu.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using Ran = std::tuple<Where, DataType>;
class GpuAllreduce : public testing::TestWithParam<Ran> {};

TEST_P(GpuAllreduce, HasTheBitsOfThePlainSum) {
  const auto& [where, type] = GetParam();
  std::vector<Problem> problems;
  unsigned seed = 1;
  for (const std::uint64_t block : {1, 16, 256, 1000, 20000}) {
    for (const std::uint64_t count :
         {std::uint64_t{1}, block - 1, block * 3, block * 65 + 1, std::uint64_t{100003}}) {
      if (count == 0 || count > 400000) continue;
      for (const Sparsity sparsity : kSparsities) {
        const auto op = static_cast<ReduceOp>(seed % kReduceOps);
        problems.push_back({type, op, count, block, sparsity, where.ranks, seed++});
      }
    }
  }
  std::vector<Expected> expected;
  for (const Problem& p : problems) expected.push_back(make_expected(p));
  const auto errors = run_ranks(where.setting(), [&](Communicator& communicator) {
    OnGpu on(static_cast<unsigned>(communicator.rank()) + 1);
    for (std::size_t i = 0; i < problems.size(); ++i)
      run_one_on_gpu(communicator, on, problems[i], expected[i], static_cast<Form>(i / 6 % 4), i % 3 == 0);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

std::string name_of_run(const testing::TestParamInfo<Ran>& info) {
  return std::get<0>(info.param).text() + "_" + std::string(nzcl::name_of(std::get<1>(info.param)));
}

constexpr DataType kAllTypes[] = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16,
                                  DataType::int32,   DataType::int64,   DataType::uint8};

INSTANTIATE_TEST_SUITE_P(Ranks, GpuAllreduce,
                         testing::Combine(testing::Values(Where{"loopback", 1}, Where{"loopback", 2},
                                                          Where{"loopback", 3}, Where{"loopback", 4, 0, 2},
                                                          Where{"loopback", 2, 1}),
                                          testing::ValuesIn(kAllTypes)),
                         name_of_run);
INSTANTIATE_TEST_SUITE_P(Transports, GpuAllreduce,
                         testing::Combine(testing::Values(Where{"shm", 2}, Where{"tcp", 3}, Where{"cma", 2}),
                                          testing::Values(DataType::float32)),
                         name_of_run);

/// A large tensor of many slices, in each way in which ranks exchange.
TEST(Gpu, EveryAlgorithmTakesIt) {
  for (const Algorithm algorithm : {Algorithm::push, Algorithm::doubling, Algorithm::merging}) {
    for (const int ranks : {2, 3, 4}) {
      const std::uint64_t count = algorithm == Algorithm::doubling ? 1000 : 1000003;
      const Problem p{.type = DataType::int32, .count = count, .block = 16, .ranks = ranks};
      const Expected expected = make_expected(p);
      const auto errors = run_ranks({.ranks = ranks, .options = {}}, [&](Communicator& communicator) {
        OnGpu on;
        for (int i = 0; i < 3; ++i) {
          GpuTensor tensor(on, make_input(p, communicator.rank()));
          const auto buffer = communicator.register_buffer(tensor.data(), tensor.bytes(), MemoryKind::device);
          Work work = communicator.allreduce({.input = tensor.data(),
                                              .output = tensor.data(),
                                              .count = count,
                                              .type = p.type,
                                              .block_elems = p.block,
                                              .algorithm = algorithm,
                                              .stream = on.stream()});
          work.wait();
          EXPECT_EQ(first_difference(tensor.read(), expected.data), -1) << static_cast<int>(algorithm);
          EXPECT_EQ(work.statistics().algorithm, algorithm);
        }
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

TEST(Gpu, LargeTensorOfManySlices) {
  for (const std::uint64_t block : {256, 100000}) {
    const Problem p{.count = (6 << 20) + 77, .block = block, .sparsity = Sparsity::random, .ranks = 2};
    const Expected expected = make_expected(p);
    const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
      OnGpu on;
      for (const Form form : {Form::in_place, Form::out_of_place, Form::with_bitmap, Form::dense_flag})
        run_one_on_gpu(communicator, on, p, expected, form, form == Form::out_of_place);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// Slices of so many blocks that their bits do not fit the memory that threads of a GPU share.
TEST(Gpu, HugeBitmapsAreMadeOnTheHost) {
  const Problem p{
      .type = DataType::uint8, .count = 3000007, .block = 1, .sparsity = Sparsity::random, .ranks = 1};
  const Expected expected = make_expected(p);
  const auto errors = run_ranks({.ranks = 1, .options = {}}, [&](Communicator& communicator) {
    OnGpu on;
    for (const Form form : {Form::in_place, Form::out_of_place, Form::with_bitmap, Form::dense_flag})
      run_one_on_gpu(communicator, on, p, expected, form, false);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The rounding of floats in a message, and tiles of single elements, are exchanged as from the host.
TEST(Gpu, NarrowerWireTypeIsTheSameAsFromTheHost) {
  const Problem p{.count = 70001, .block = 16, .ranks = 2};
  std::vector<std::byte> from_host[2], from_gpu[2];
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    OnGpu on;
    const auto input = make_input(p, communicator.rank());
    from_host[rank] = input;
    GpuTensor tensor(on, input);
    const auto host = communicator.register_buffer(from_host[rank].data(), p.bytes());
    const auto gpu = communicator.register_buffer(tensor.data(), p.bytes(), MemoryKind::device);
    AllreduceRequest request{.input = from_host[rank].data(),
                             .output = from_host[rank].data(),
                             .count = p.count,
                             .block_elems = p.block,
                             .wire_type = WireType::bfloat16};
    communicator.allreduce(request).wait();
    request.input = request.output = tensor.data();
    request.stream = on.stream();
    communicator.allreduce(request).wait();
    from_gpu[rank] = tensor.read();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const int rank : {0, 1}) EXPECT_EQ(first_difference(from_host[rank], from_gpu[rank]), -1);
}

/// Ranks whose memory is on a GPU and ranks whose memory is the host's sum together.
TEST(Gpu, RanksWithEitherKindOfMemorySumTogether) {
  for (const std::uint64_t count : {100, 300007}) {
    const Problem p{.count = count, .block = 64, .sparsity = Sparsity::random, .ranks = 3};
    const Expected expected = make_expected(p);
    const auto errors = run_ranks({.ranks = 3, .options = {}}, [&](Communicator& communicator) {
      if (communicator.rank() == 1) {
        OnGpu on;
        return run_one_on_gpu(communicator, on, p, expected, Form::out_of_place, false);
      }
      auto data = make_input(p, communicator.rank());
      const auto buffer = communicator.register_buffer(data.data(), data.size());
      communicator.allreduce({.input = data.data(), .output = data.data(), .count = count, .block_elems = 64})
          .wait();
      EXPECT_EQ(first_difference(data, expected.data), -1);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// Operations whose streams come to them in another order than that of the calls.
TEST(Gpu, SeveralOperationsOnSeveralStreamsAreInFlight) {
  constexpr int kInFlight = 6;
  const auto problem = [](int i) {
    return Problem{.count = 50000u + static_cast<unsigned>(i),
                   .block = 128,
                   .ranks = 2,
                   .seed = static_cast<unsigned>(i) + 1};
  };
  std::vector<Expected> expected;
  for (int i = 0; i < kInFlight; ++i) expected.push_back(make_expected(problem(i)));
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
    OnGpu on;
    for (int round = 0; round < 5; ++round) {
      std::vector<std::unique_ptr<GpuTensor>> tensors;
      std::vector<RegisteredBuffer> buffers;
      std::vector<Work> works;
      std::vector<void*> streams;
      for (int i = 0; i < kInFlight; ++i) {
        const Problem p = problem(i);
        tensors.push_back(std::make_unique<GpuTensor>(on, make_input(p, communicator.rank())));
        buffers.push_back(
            communicator.register_buffer(tensors.back()->data(), p.bytes(), MemoryKind::device));
        streams.push_back(on.gpu().make_stream());
      }
      on.gpu().synchronize(on.stream());
      for (int i = 0; i < kInFlight; ++i) {
        const auto n = static_cast<std::size_t>(i);
        works.push_back(communicator.allreduce({.input = tensors[n]->data(),
                                                .output = tensors[n]->data(),
                                                .count = problem(i).count,
                                                .block_elems = 128,
                                                .stream = streams[n]}));
        works.back().enqueue_wait(on.stream());
      }
      for (std::size_t i = 0; i < kInFlight; ++i)
        EXPECT_EQ(first_difference(tensors[i]->read(), expected[i].data), -1) << i;
      for (Work& work : works) EXPECT_TRUE(work.wait(std::chrono::seconds(10)));
      for (void* stream : streams) on.gpu().destroy_stream(stream);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Freeing memory waits for all that a GPU has to do, and nothing can be started on it meanwhile.
TEST(Gpu, MemoryIsFreedWhileAnOperationIsInFlight) {
  const Problem p{.count = 100003, .block = 256, .ranks = 2};
  const Expected expected = make_expected(p);
  std::atomic<bool> freeing{false};
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
    OnGpu on;
    GpuTensor tensor(on, make_input(p, communicator.rank()));
    const auto buffer = communicator.register_buffer(tensor.data(), tensor.bytes(), MemoryKind::device);
    std::byte* const other = on.allocate(1000);
    if (communicator.rank() == 1) {
      while (!freeing) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    Work work = communicator.allreduce({.input = tensor.data(),
                                        .output = tensor.data(),
                                        .count = p.count,
                                        .block_elems = p.block,
                                        .stream = on.stream()});
    work.enqueue_wait(on.stream());
    freeing = true;
    on.gpu().free(other);
    EXPECT_EQ(first_difference(tensor.read(), expected.data), -1) << "rank " << communicator.rank();
    work.wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// The input is written on one stream, and the request names one of nzcl's, which waits for that.
TEST(Gpu, StreamOfNzclsWaitsForThatOfTheCaller) {
  const Problem p{.count = 100003, .block = 256, .ranks = 2};
  const Expected expected = make_expected(p);
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [&](Communicator& communicator) {
    OnGpu on;
    for (int round = 0; round < 5; ++round) {
      GpuTensor tensor(on, make_input(p, communicator.rank()));
      const auto buffer = communicator.register_buffer(tensor.data(), tensor.bytes(), MemoryKind::device);
      void* const stream = communicator.device_stream(buffer);
      EXPECT_EQ(communicator.device_stream(buffer), stream);
      const gpu::Flag written = on.gpu().take_flag();
      on.gpu().raise(on.stream(), written.device, written.value);
      on.gpu().await(stream, written.device, written.value);
      communicator
          .allreduce({.input = tensor.data(),
                      .output = tensor.data(),
                      .count = p.count,
                      .block_elems = p.block,
                      .stream = stream})
          .wait();
      EXPECT_EQ(first_difference(tensor.read(), expected.data), -1);
      on.gpu().give_back(written);
    }
    std::vector<std::byte> elsewhere(64);
    const auto buffer = communicator.register_buffer(elsewhere.data(), elsewhere.size());
    EXPECT_THAT([&] { (void)communicator.device_stream(buffer); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("not registered as that of a GPU")));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test

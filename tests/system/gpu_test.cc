// Allreduces of memory that the host cannot touch, on an emulated GPU whose streams are late: every result is
// compared with the plain sum, bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>

#include "tests/system/on_gpu.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

enum class Form { in_place, out_of_place, with_bitmap, dense_flag };

/// Bytes around a tensor that nobody may write to.
constexpr std::size_t kGuard = 256;

/// A tensor in memory of a GPU, with other bytes before and behind it.
class GpuTensor {
 public:
  GpuTensor(OnGpu& on, const std::vector<std::byte>& data)
      : on_(on), all_(data.size() + 2 * kGuard, std::byte{0x77}), memory_(on.allocate(all_.size())) {
    std::copy(data.begin(), data.end(), all_.begin() + kGuard);
    on_.write(memory_, all_);
  }
  std::byte* data() const { return memory_ + kGuard; }
  std::size_t bytes() const { return all_.size() - 2 * kGuard; }
  /// Returns the tensor as it is now. The bytes around it must be as they were.
  std::vector<std::byte> read() {
    auto now = on_.read(memory_, all_.size());
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(now[i], std::byte{0x77}) << "written before the tensor";
      EXPECT_EQ(now[now.size() - 1 - i], std::byte{0x77}) << "written behind the tensor";
    }
    return {now.begin() + kGuard, now.end() - kGuard};
  }

 private:
  OnGpu& on_;
  std::vector<std::byte> all_;
  std::byte* memory_;
};

std::vector<std::uint64_t> bitmap_of(const Problem& p, int rank) {
  std::vector<std::uint64_t> bitmap(words_for(p.blocks()), 0);
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    if (holds(p, rank, b)) set_bit(std::span(bitmap), b);
  }
  set_bits_behind(bitmap, p.blocks());
  return bitmap;
}

/// Runs one operation on one rank, whose memory is on a GPU, and compares the result. With `in_stream`, the
/// result is read behind enqueue_wait(), and not after wait().
void run_one_on_gpu(Communicator& communicator, OnGpu& on, const Problem& p, const Expected& expected,
                    Form form, bool in_stream) {
  GpuTensor input(on, make_input(p, communicator.rank()));
  GpuTensor other(on, std::vector<std::byte>(p.bytes(), std::byte{0x5a}));
  GpuTensor& result = form == Form::out_of_place ? other : input;
  const auto in = communicator.register_buffer(input.data(), input.bytes(), MemoryKind::device);
  const auto out = communicator.register_buffer(other.data(), other.bytes(), MemoryKind::device);
  AllreduceRequest request{.input = input.data(),
                           .output = result.data(),
                           .count = p.count,
                           .type = p.type,
                           .op = p.op,
                           .block_elems = p.block,
                           .dense = form == Form::dense_flag,
                           .stream = on.stream()};
  const auto bitmap = bitmap_of(p, communicator.rank());
  if (form == Form::with_bitmap) request.bitmap = bitmap;
  Work work = communicator.allreduce(request);
  if (in_stream) work.enqueue_wait(on.stream());
  if (!in_stream) work.wait();
  EXPECT_EQ(first_difference(result.read(), expected.data), -1)
      << p.text() << ", form " << static_cast<int>(form) << ", rank " << communicator.rank();
  work.wait();
  if (form != Form::dense_flag) {
    const auto bits = work.union_bitmap();
    EXPECT_TRUE(std::equal(bits.begin(), bits.end(), expected.bits.begin(), expected.bits.end())) << p.text();
    EXPECT_EQ(work.statistics().union_blocks, count_bits(expected.bits)) << p.text();
  }
}

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

}  // namespace
}  // namespace nzcl::test

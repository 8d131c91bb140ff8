// Sparse streams on a GPU that cannot be summed: wrong lists, too little room, streams that come late or
// never.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/system/by_hierarchy.h"
#include "tests/system/failing.h"
#include "tests/system/gpu_streams.h"
#include "tests/system/gpu_tensor.h"
#include "tests/system/on_gpu.h"

namespace nzcl::test::streams {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

/// A list with these indices, all of it on a GPU, with a dense or a packed result there.
struct Sparse {
  Sparse(Communicator& communicator, OnGpu& on, const Case& shape, const std::vector<std::uint64_t>& numbers,
         std::uint64_t packed_capacity = 100)
      : c(shape),
        list(list_of(shape, numbers, communicator.rank())),
        values(communicator, on, list.values, true),
        indices(communicator, on, list.indices, true),
        result(communicator, on,
               std::vector<std::byte>(std::max(c.count, packed_capacity * c.block) * element_bytes(c.type)),
               true),
        result_indices(communicator, on, std::vector<std::byte>(packed_capacity * c.index_bytes()), true),
        count(communicator, on, std::vector<std::byte>(8, std::byte{0x33}), true) {
    request = request_of(c, list);
    request.values = values.data();
    request.indices = {indices.data(), numbers.size(), c.index_type};
    set_result(request, c, result.data(), result_indices.data());
    request.packed_capacity = c.result == Result::packed ? packed_capacity : 0;
    if (c.result == Result::packed) request.packed_count = reinterpret_cast<std::uint64_t*>(count.data());
    request.stream = on.stream();
  }
  std::uint64_t counted() {
    std::uint64_t blocks = 0;
    const auto bytes = count.read();
    std::memcpy(&blocks, bytes.data(), sizeof blocks);
    return blocks;
  }
  Case c;
  List list;
  AnyTensor values, indices, result, result_indices, count;
  SparseAllreduceRequest request;
};

/// The operation fails on all ranks with what is wrong, every stream goes on, and the next one succeeds.
TEST(GpuStreamErrors, AWrongListFailsItsOperationOnly) {
  struct Wrong {
    std::vector<std::uint64_t> numbers;
    const char* text;
  };
  const std::vector<Wrong> wrongs{{{1, 5000, 2}, "block index 5000 is not below the block count"},
                                  {{1, 7, 3, 7}, "block index 7 is there twice"}};
  for (const Algorithm algorithm :
       {Algorithm::automatic, Algorithm::push, Algorithm::doubling, Algorithm::merging}) {
    for (const std::uint64_t block : {1, 64}) {
      for (const Result result : {Result::dense, Result::packed}) {
        for (const Wrong& wrong : wrongs) {
          for (const int ranks : {1, 3}) {
            const Case c{
                .count = 40 * block, .block = block, .result = result, .algorithm = algorithm, .seed = 3};
            SCOPED_TRACE(c.text() + " algorithm " + std::to_string(static_cast<int>(algorithm)));
            const auto errors = run_ranks(setting(ranks), [&](Communicator& communicator) {
              OnGpu on;
              const bool is_wrong = communicator.rank() == ranks - 1;
              Sparse good(communicator, on, c, {1, 2, 9});
              Sparse bad(communicator, on, c, is_wrong ? wrong.numbers : std::vector<std::uint64_t>{3, 4});
              Work work = communicator.allreduce_sparse(bad.request);
              work.enqueue_wait(on.stream());
              on.gpu().synchronize(on.stream());
              const Error error = thrown_by([&] { work.wait(); });
              EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
              EXPECT_THAT(error.what(),
                          AllOf(HasSubstr("rank " + std::to_string(ranks - 1)), HasSubstr(wrong.text)));
              if (result == Result::packed) {
                EXPECT_EQ(bad.counted(), 0u);
              }
              Work next = communicator.allreduce_sparse(good.request);
              next.wait();
              if (result == Result::packed) {
                EXPECT_EQ(good.counted(), 3u);
              }
            });
            for (const std::string& error : errors) EXPECT_EQ(error, "");
          }
        }
      }
    }
  }
}

/// The same where others exchange the list, so that only the steps of the levels find out what is wrong.
TEST(GpuStreamErrors, AWrongListInAHierarchy) {
  for (const std::uint64_t block : {1, 64}) {
    for (const Result result : {Result::dense, Result::packed}) {
      const Case c{.count = 4000 * block, .block = block, .result = result, .seed = 3};
      SCOPED_TRACE(c.text());
      const auto errors = run_ranks(by_hierarchy({5, 2}), [&](Communicator& communicator) {
        OnGpu on;
        Sparse good(communicator, on, c, {1, 2, 9});
        Sparse bad(communicator, on, c, {1, communicator.rank() == 2 ? 5000u : 4u, 9});
        for (int i = 0; i < 2; ++i) {
          Work work = communicator.allreduce_sparse(bad.request);
          work.enqueue_wait(on.stream());
          on.gpu().synchronize(on.stream());
          const Error error = thrown_by([&] { work.wait(); });
          EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
          EXPECT_THAT(error.what(), HasSubstr("block index 5000 is not below the block count"));
          if (result == Result::packed) {
            EXPECT_EQ(bad.counted(), 0u);
          }
          communicator.allreduce_sparse(good.request).wait();
          if (result == Result::packed) {
            EXPECT_EQ(good.counted(), 3u);
          }
        }
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

/// The last step finds out that there is too little room.
TEST(GpuStreamErrors, TooLittleRoomInAHierarchy) {
  const Case c{.count = 300, .block = 1, .result = Result::packed};
  const auto errors = run_ranks(by_hierarchy({4, 2}), [&](Communicator& communicator) {
    OnGpu on;
    Sparse small(communicator, on, c, {1, 2, 9}, 2), good(communicator, on, c, {1, 2, 9}, 3);
    Work work = communicator.allreduce_sparse(small.request);
    EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("the packed result has 3 blocks"));
    EXPECT_EQ(small.counted(), 0u);
    communicator.allreduce_sparse(good.request).wait();
    EXPECT_EQ(good.counted(), 3u);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// A list that has not come must not keep a failed communicator waiting.
TEST(GpuStreamErrors, AbortInAHierarchy) {
  for (const Result result : {Result::dense, Result::packed}) {
    for (const int aborts : {0, 3, 0, 3, 0, 3}) {
      const Case c{.count = 300, .block = 1, .result = result};
      std::barrier called(4), failed(4);
      const auto errors = run_ranks(by_hierarchy({4, 2}), [&](Communicator& communicator) {
        OnGpu on;
        Sparse sparse(communicator, on, c, {1, 2, 9});
        communicator.allreduce_sparse(sparse.request).wait();  // by then the levels have met
        const gpu::Flag flag = on.gpu().take_flag();
        if (communicator.rank() == 0) on.gpu().await(on.stream(), flag.device, flag.value);
        Work work = communicator.allreduce_sparse(sparse.request);
        void* const other = on.gpu().make_stream();
        work.enqueue_wait(other);
        called.arrive_and_wait();
        if (communicator.rank() == aborts) communicator.abort("enough");
        on.gpu().synchronize(other);
        EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("enough")) << communicator.rank();
        failed.arrive_and_wait();  // as long as the list has not come, no rank can have a result
        flag.raise_here();
        on.gpu().synchronize(on.stream());
        on.gpu().destroy_stream(other);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

/// A large tensor has several slices, and all of them have to say that it was refused.
TEST(GpuStreamErrors, AWrongListOfALargeTensor) {
  for (const std::uint64_t block : {1, 256}) {
    const Case c{.count = 3000000, .block = block};
    const auto errors = run_ranks(setting(3), [&](Communicator& communicator) {
      OnGpu on;
      Sparse good(communicator, on, c, {1, 2, 9});
      Sparse bad(communicator, on, c, {1, communicator.rank() == 1 ? 3000000u : 4u, 9});
      for (int i = 0; i < 3; ++i) {
        Work work = communicator.allreduce_sparse(bad.request);
        EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("block index 3000000"));
        communicator.allreduce_sparse(good.request).wait();
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(GpuStreamErrors, TooLittleRoomSaysHowMuchIsNeeded) {
  for (const std::uint64_t block : {1, 64}) {
    const Case c{.count = 40 * block, .block = block, .result = Result::packed};
    const auto errors = run_ranks(setting(), [&](Communicator& communicator) {
      OnGpu on;
      Sparse little(communicator, on, c, {1, 2, 9, 11}, 3), enough(communicator, on, c, {1, 2, 9, 11}, 4);
      Work work = communicator.allreduce_sparse(little.request);
      work.enqueue_wait(on.stream());
      on.gpu().synchronize(on.stream());
      const Error error = thrown_by([&] { work.wait(); });
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("the packed result has 4 blocks, packed_capacity is 3"));
      EXPECT_EQ(little.counted(), 0u);
      communicator.allreduce_sparse(enough.request).wait();
      EXPECT_EQ(enough.counted(), 4u);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(GpuStreamErrors, ACountMayBeTheHosts) {
  const Case c{.count = 1000, .block = 1, .result = Result::packed};
  const auto errors = run_ranks(setting(), [&](Communicator& communicator) {
    OnGpu on;
    Sparse sparse(communicator, on, c, {1, 2, 9});
    std::uint64_t count = 77;
    sparse.request.packed_count = &count;
    sparse.request.packed_indices = {};
    communicator.allreduce_sparse(sparse.request).wait();
    EXPECT_EQ(count, 3u);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Each is refused at the call, by its own rank's own text, and the next one succeeds.
TEST(GpuStreamErrors, WhatIsNotTakenSaysSo) {
  const Case c{.count = 1000, .block = 1, .result = Result::packed};
  const auto errors = run_ranks(setting(), [&](Communicator& communicator) {
    OnGpu on, other;
    Sparse sparse(communicator, on, c, {1, 2, 9});
    Sparse elsewhere(communicator, other, c, {1, 2, 9});
    std::vector<std::byte> host(4000);
    std::byte* const unregistered = on.allocate(4000);
    const auto refused = [&](auto change, ErrorCode code, const char* text) {
      SparseAllreduceRequest request = sparse.request;
      change(request);
      const Error error = thrown_by([&] { static_cast<void>(communicator.allreduce_sparse(request)); });
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(text));
      communicator.allreduce_sparse(sparse.request).wait();
    };
    const auto unsupported = ErrorCode::unsupported, invalid = ErrorCode::invalid_argument;
    refused([&](auto& r) { r.packed_grow = [](std::uint64_t) { return PackedMemory{}; }; }, unsupported,
            "packed_grow");
    refused([&](auto& r) { r.indices = elsewhere.request.indices; }, unsupported, "must be on the same GPU");
    refused(
        [&](auto& r) {
          r.packed_indices = {host.data(), IndexType::int64};
        },
        unsupported, "packed_indices is host memory");
    refused([&](auto& r) { r.packed_values = host.data(); }, unsupported, "packed_values is host memory");
    refused([&](auto& r) { r.packed_count = reinterpret_cast<std::uint64_t*>(sparse.count.data() + 1); },
            invalid, "packed_count");
    refused([&](auto& r) { r.packed_count = elsewhere.request.packed_count; }, unsupported, "packed_count");
    refused([&](auto& r) { r.values = unregistered; }, invalid, "values");
    refused(
        [&](auto& r) {
          r.packed_values = host.data();
          r.packed_indices = {};
        },
        invalid, "packed_count");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuStreamErrors, AbortReleasesTheStreams) {
  for (const Result result : {Result::dense, Result::packed}) {
    const Case c{.count = 1000, .block = 1, .result = result};
    const auto errors = run_ranks(setting(3), [&](Communicator& communicator) {
      OnGpu on;
      Sparse sparse(communicator, on, c, {1, 2, 9});
      if (communicator.rank() == 2) {
        std::this_thread::sleep_for(50ms);
        return communicator.abort("enough");
      }
      Work work = communicator.allreduce_sparse(sparse.request);
      work.enqueue_wait(on.stream());
      on.gpu().synchronize(on.stream());
      EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("enough"));
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// A stream that never comes fails the operation by its timeout, and its list may still come afterwards.
TEST(GpuStreamErrors, AStreamThatDoesNotCome) {
  for (const Result result : {Result::dense, Result::packed}) {
    const Case c{.count = 1000, .block = 1, .result = result};
    Setting s = setting();
    s.options.timeout_s = 0.3;
    const auto errors = run_ranks(s, [&](Communicator& communicator) {
      OnGpu on;
      Sparse sparse(communicator, on, c, {1, 2, 9});
      // At the timeout the number of blocks is set, although the stream is not here.
      on.gpu().synchronize(on.stream());
      const gpu::Flag flag = on.gpu().take_flag();
      if (communicator.rank() == 0) on.gpu().await(on.stream(), flag.device, flag.value);
      Work work = communicator.allreduce_sparse(sparse.request);
      EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::timeout);
      communicator.close();
      flag.raise_here();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// Without a list of its own, a rank's result may be there before its stream has come to the operation. What
/// the stream does before with the result's memory is over first.
TEST(GpuStreamErrors, ResultsWaitForTheStream) {
  for (const Result result : {Result::dense, Result::packed}) {
    const Case c{.count = 1000, .block = 1, .result = result};
    const auto errors = run_ranks(setting(), [&](Communicator& communicator) {
      OnGpu on;
      const bool empty = communicator.rank() == 0;
      Sparse sparse(communicator, on, c,
                    empty ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{5});
      const gpu::Flag flag = on.gpu().take_flag();
      const std::vector<std::byte> other(400, std::byte{0x44});
      if (empty) {
        on.gpu().await(on.stream(), flag.device, flag.value);
        on.gpu().copy(on.stream(), sparse.result.data(), other.data(), other.size());
      }
      Work work = communicator.allreduce_sparse(sparse.request);
      std::this_thread::sleep_for(30ms);
      if (empty) {
        EXPECT_FALSE(work.test());
      }
      flag.raise_here();
      work.enqueue_wait(on.stream());
      const auto bytes = sparse.result.read();
      work.wait();
      float first = 0, expected = 0;
      const List list = list_of(c, {5}, 1);
      std::memcpy(&first, bytes.data() + (result == Result::dense ? 5 * sizeof first : 0), sizeof first);
      std::memcpy(&expected, list.values.data(), sizeof expected);
      EXPECT_EQ(first, expected);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace nzcl::test::streams

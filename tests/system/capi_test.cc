// The C API offers what the C++ API does, with statuses instead of exceptions. The ranks are threads here
// that meet as processes would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/nzcl.h"

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr std::size_t kCount = 10000, kBlock = 256;

#define NZCL_OK(call) ASSERT_EQ(call, nzclSuccess) << nzclGetLastError()

void on_ranks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { body(r); });
}

/// kRanks threads, each with a communicator; they meet by a unique id.
class CApiTest : public testing::Test {
 protected:
  void run(const std::function<void(nzclComm_t, int)>& body) {
    nzclUniqueId id;
    NZCL_OK(nzclGetUniqueId(&id));
    on_ranks(kRanks, [&](int rank) {
      nzclComm_t comm = nullptr;
      NZCL_OK(nzclCommInitRank(&comm, kRanks, id, rank));
      body(comm, rank);
      NZCL_OK(nzclCommDestroy(comm));
    });
  }
};

/// Rank r holds block 0 and block 3 + r, with the value r + 1.
std::vector<float> input_of(int rank) {
  std::vector<float> data(kCount, 0.0f);
  for (const std::size_t block : {std::size_t{0}, std::size_t{3} + static_cast<std::size_t>(rank)}) {
    std::fill_n(data.begin() + static_cast<std::ptrdiff_t>(block * kBlock), kBlock,
                static_cast<float>(rank + 1));
  }
  return data;
}
std::vector<float> expected_sum() {
  std::vector<float> sum(kCount, 0.0f);
  for (int r = 0; r < kRanks; ++r) {
    const auto part = input_of(r);
    for (std::size_t i = 0; i < kCount; ++i) sum[i] += part[i];
  }
  return sum;
}

void wait_and_free(nzclWork_t work) {
  NZCL_OK(nzclWorkWait(work, -1));
  NZCL_OK(nzclWorkFree(work));
}

TEST_F(CApiTest, AllReduceInPlaceWithStatisticsAndUnion) {
  run([](nzclComm_t comm, int rank) {
    int value = -1;
    NZCL_OK(nzclCommCount(comm, &value));
    EXPECT_EQ(value, kRanks);
    NZCL_OK(nzclCommUserRank(comm, &value));
    EXPECT_EQ(value, rank);

    std::vector<float> data = input_of(rank);
    nzclBuffer_t buffer = nullptr;
    NZCL_OK(nzclCommRegister(comm, data.data(), data.size() * sizeof(float), &buffer));
    nzclWork_t work = nullptr;
    NZCL_OK(nzclAllReduce(data.data(), data.data(), kCount, nzclFloat32, nzclSum, comm, &work));
    NZCL_OK(nzclWorkWait(work, -1));
    int done = 0;
    NZCL_OK(nzclWorkTest(work, &done));
    EXPECT_EQ(done, 1);
    EXPECT_EQ(data, expected_sum());
    const std::uint64_t* words = nullptr;
    std::size_t blocks = 0;
    NZCL_OK(nzclWorkUnionBitmap(work, &words, &blocks));
    EXPECT_EQ(blocks, (kCount + kBlock - 1) / kBlock);
    EXPECT_EQ(words[0], 0b111001u);
    NZCL_OK(nzclWorkFree(work));

    nzclStatistics statistics{};
    statistics.size = sizeof statistics;
    NZCL_OK(nzclCommGetStatistics(comm, &statistics));
    EXPECT_EQ(statistics.operations, 1u);
    EXPECT_GT(statistics.bytes_sent, 2 * kBlock * sizeof(float));
    NZCL_OK(nzclCommDeregister(comm, buffer));
  });
}

TEST_F(CApiTest, ExtendedArgumentsOutOfPlace) {
  run([](nzclComm_t comm, int rank) {
    std::vector<float> data = input_of(rank), result(kCount, -1.0f);
    nzclBuffer_t in = nullptr, out = nullptr;
    NZCL_OK(nzclCommRegister(comm, data.data(), data.size() * sizeof(float), &in));
    NZCL_OK(nzclCommRegister(comm, result.data(), result.size() * sizeof(float), &out));
    const std::uint64_t bitmap = 1u | (std::uint64_t{1} << (3 + rank));
    nzclAllReduceArgs args{};
    args.size = sizeof args;
    args.send = data.data();
    args.recv = result.data();
    args.count = kCount;
    args.type = nzclFloat32;
    args.op = nzclSum;
    args.bitmap = &bitmap;
    args.bitmap_words = 1;
    nzclWork_t work = nullptr;
    NZCL_OK(nzclAllReduceEx(&args, comm, &work));
    wait_and_free(work);
    EXPECT_EQ(result, expected_sum());
    args.bitmap = nullptr;
    args.dense = 1;
    args.op = nzclMax;
    args.block_elems = 100;
    NZCL_OK(nzclAllReduceEx(&args, comm, &work));
    wait_and_free(work);
    EXPECT_EQ(result[0], static_cast<float>(kRanks));
    NZCL_OK(nzclCommDeregister(comm, in));
    NZCL_OK(nzclCommDeregister(comm, out));
  });
}

TEST_F(CApiTest, SparseBlocksDenseAndPacked) {
  run([](nzclComm_t comm, int rank) {
    std::vector<float> values(2 * kBlock, static_cast<float>(rank + 1)), dense(kCount, -1.0f),
        packed(6 * kBlock);
    const std::array<std::int64_t, 2> indices{3 + rank, 0};
    std::vector<nzclBuffer_t> buffers(3);
    NZCL_OK(nzclCommRegister(comm, values.data(), values.size() * sizeof(float), &buffers[0]));
    NZCL_OK(nzclCommRegister(comm, dense.data(), dense.size() * sizeof(float), &buffers[1]));
    NZCL_OK(nzclCommRegister(comm, packed.data(), packed.size() * sizeof(float), &buffers[2]));
    nzclWork_t work = nullptr;
    NZCL_OK(nzclAllReduceSparseBlock(values.data(), indices.data(), 2, kBlock, dense.data(), kCount,
                                     nzclFloat32, nzclSum, comm, &work));
    wait_and_free(work);
    EXPECT_EQ(dense, expected_sum());

    NZCL_OK(nzclAllReduceSparseBlockPacked(values.data(), indices.data(), 2, kBlock, packed.data(), 6, kCount,
                                           nzclFloat32, nzclSum, comm, &work));
    NZCL_OK(nzclWorkWait(work, -1));
    const std::int64_t* found = nullptr;
    std::size_t blocks = 0;
    NZCL_OK(nzclWorkPackedIndices(work, &found, &blocks));
    EXPECT_THAT(std::vector(found, found + blocks), ElementsAre(0, 3, 4, 5));
    EXPECT_EQ(packed[0], 6.0f);
    EXPECT_EQ(packed[kBlock], 1.0f);
    EXPECT_EQ(packed[3 * kBlock], 3.0f);
    NZCL_OK(nzclWorkFree(work));
    for (nzclBuffer_t b : buffers) NZCL_OK(nzclCommDeregister(comm, b));
  });
}

/// Rank 0 has nothing, and passes null for values and indices.
TEST_F(CApiTest, ARankWithoutAnythingPassesNull) {
  run([](nzclComm_t comm, int rank) {
    std::vector<float> values(kBlock, 1.0f), dense(kCount, -1.0f), expected(kCount, 0.0f);
    const std::array<std::int64_t, 1> indices{4};
    std::fill_n(expected.begin() + 4 * kBlock, kBlock, 2.0f);
    std::vector<nzclBuffer_t> buffers(2);
    NZCL_OK(nzclCommRegister(comm, values.data(), values.size() * sizeof(float), &buffers[0]));
    NZCL_OK(nzclCommRegister(comm, dense.data(), dense.size() * sizeof(float), &buffers[1]));
    const bool empty = rank == 0;
    nzclWork_t work = nullptr;
    NZCL_OK(nzclAllReduceSparseBlock(empty ? nullptr : values.data(), empty ? nullptr : indices.data(),
                                     empty ? 0 : 1, kBlock, dense.data(), kCount, nzclFloat32, nzclSum, comm,
                                     &work));
    wait_and_free(work);
    EXPECT_EQ(dense, expected);
    nzclAllReduceSparseArgs args{};
    args.size = sizeof args;
    args.values = empty ? nullptr : values.data();
    args.indices = empty ? nullptr : indices.data();
    args.index_type = nzclIndexInt64;
    args.index_count = empty ? 0 : 1;
    args.count = kCount;
    args.block_elems = kBlock;
    args.output = dense.data();
    std::fill(dense.begin(), dense.end(), -1.0f);
    NZCL_OK(nzclAllReduceSparse(&args, comm, &work));
    wait_and_free(work);
    EXPECT_EQ(dense, expected);
    for (nzclBuffer_t b : buffers) NZCL_OK(nzclCommDeregister(comm, b));
  });
}

/// Room for a packed result that grows, and gives up what it held.
struct Grown {
  std::vector<float> values;
  std::vector<std::uint32_t> indices;
  int calls = 0;
};
int grow(std::uint64_t blocks, void** values, void** indices, void* context) {
  auto& grown = *static_cast<Grown*>(context);
  ++grown.calls;
  std::ranges::fill(grown.values, -1.0f);
  grown.values.resize(blocks);
  grown.indices.resize(blocks);
  *values = grown.values.data();
  *indices = grown.indices.data();
  return 0;
}

TEST_F(CApiTest, SparseStreams) {
  run([](nzclComm_t comm, int rank) {
    constexpr std::uint64_t kElements = 100000;
    // Index 50 is in the list twice, and the list does not ascend.
    std::vector<float> values{1.0f, 2.0f, 3.0f, 4.0f}, dense(kElements, -1.0f);
    const std::array<std::uint32_t, 4> indices{99999, 50, 50, static_cast<std::uint32_t>(1000 + rank)};
    nzclBuffer_t in = nullptr, out = nullptr;
    NZCL_OK(nzclCommRegister(comm, values.data(), values.size() * sizeof(float), &in));
    NZCL_OK(nzclCommRegister(comm, dense.data(), dense.size() * sizeof(float), &out));
    nzclAllReduceSparseArgs args{};
    args.size = sizeof args;
    args.values = values.data();
    args.indices = indices.data();
    args.index_type = nzclIndexUint32;
    args.index_count = indices.size();
    args.count = kElements;
    args.type = nzclFloat32;
    args.op = nzclSum;
    args.output = dense.data();
    nzclWork_t work = nullptr;
    EXPECT_EQ(nzclAllReduceSparse(&args, comm, &work), nzclInvalidArgument);
    EXPECT_THAT(nzclGetLastError(), HasSubstr("block index 50 is there twice"));
    args.sum_duplicates = 1;
    NZCL_OK(nzclAllReduceSparse(&args, comm, &work));
    wait_and_free(work);
    std::vector<float> expected(kElements);
    expected[50] = 5.0f * kRanks;
    expected[99999] = 1.0f * kRanks;
    for (int r = 0; r < kRanks; ++r) expected[1000 + static_cast<std::size_t>(r)] = 4.0f;
    EXPECT_EQ(dense, expected);

    Grown grown;
    args.output = nullptr;
    args.packed_grow = grow;
    args.packed_grow_context = &grown;
    args.wire_type = nzclWireFloat16;
    NZCL_OK(nzclAllReduceSparse(&args, comm, &work));
    wait_and_free(work);
    EXPECT_EQ(grown.calls, 1);
    ASSERT_EQ(grown.indices.size(), kRanks + 2u);
    EXPECT_EQ(grown.indices.front(), 50u);
    EXPECT_EQ(grown.indices[1], 1000u);
    EXPECT_EQ(grown.indices.back(), 99999u);
    EXPECT_EQ(grown.values.front(), 5.0f * kRanks);
    EXPECT_EQ(grown.values[1], 4.0f);
    EXPECT_EQ(grown.values.back(), 1.0f * kRanks);

    // Most callers grow what holds the first part of the result already.
    grown.values = {9, 9};
    grown.indices = {9, 9};
    args.packed_values = grown.values.data();
    args.packed_indices = grown.indices.data();
    args.packed_capacity = 2;
    NZCL_OK(nzclAllReduceSparse(&args, comm, &work));
    wait_and_free(work);
    EXPECT_EQ(grown.calls, 2);
    EXPECT_EQ(grown.values, (std::vector<float>{5.0f * kRanks, 4, 4, 4, 1.0f * kRanks}));
    EXPECT_EQ(grown.indices, (std::vector<std::uint32_t>{50, 1000, 1001, 1002, 99999}));
    args.size = 8;
    EXPECT_EQ(nzclAllReduceSparse(&args, comm, &work), nzclInvalidArgument);
    NZCL_OK(nzclCommDeregister(comm, in));
    NZCL_OK(nzclCommDeregister(comm, out));
  });
}

TEST_F(CApiTest, BarrierTimedWaitAndAbort) {
  std::barrier<> together(kRanks);
  run([&](nzclComm_t comm, int rank) {
    NZCL_OK(nzclBarrier(comm));
    together.arrive_and_wait();  // otherwise a rank could abort while others still wait at the barrier before
    if (rank == 0) {
      nzclWork_t work = nullptr;
      // The other ranks never start theirs.
      NZCL_OK(nzclAllReduce(nullptr, nullptr, 0, nzclFloat32, nzclSum, comm, &work));
      EXPECT_EQ(nzclWorkWait(work, 1000000), nzclInProgress);
      NZCL_OK(nzclCommAbort(comm, "enough"));
      EXPECT_EQ(nzclWorkWait(work, -1), nzclAborted);
      EXPECT_THAT(nzclGetLastError(), AllOf(HasSubstr("aborted by rank 0"), HasSubstr("enough")));
      NZCL_OK(nzclWorkFree(work));
    }
    together.arrive_and_wait();
    nzclResult_t async = nzclSuccess;
    while (async == nzclSuccess) NZCL_OK(nzclCommGetAsyncError(comm, &async));
    EXPECT_EQ(async, nzclAborted);
    EXPECT_EQ(nzclBarrier(comm), nzclAborted);
    together.arrive_and_wait();
  });
}

struct Oob {
  std::barrier<> barrier{kRanks};
  std::array<std::string, kRanks> parts;
};
struct OobRank {
  Oob* shared;
  int rank;
};
int oob_allgather(const void* send, void* recv, size_t bytes, void* context) {
  const auto* self = static_cast<OobRank*>(context);
  self->shared->parts[static_cast<std::size_t>(self->rank)].assign(static_cast<const char*>(send), bytes);
  self->shared->barrier.arrive_and_wait();
  for (std::size_t r = 0; r < kRanks; ++r)
    std::memcpy(static_cast<char*>(recv) + r * bytes, self->shared->parts[r].data(), bytes);
  self->shared->barrier.arrive_and_wait();
  return 0;
}

TEST_F(CApiTest, SplitByColourAndKey) {
  run([](nzclComm_t comm, int rank) {
    nzclComm_t child = nullptr, none = comm;
    NZCL_OK(nzclCommSplit(comm, rank == 1 ? NZCL_SPLIT_NOCOLOR : 4, -rank, &child));
    NZCL_OK(nzclCommSplit(comm, NZCL_SPLIT_NOCOLOR, 0, &none));
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(child == nullptr, rank == 1);
    if (child != nullptr) {
      int value = -1;
      NZCL_OK(nzclCommCount(child, &value));
      EXPECT_EQ(value, 2);
      NZCL_OK(nzclCommUserRank(child, &value));
      EXPECT_EQ(value, rank == 0 ? 1 : 0);
      std::vector<float> data = input_of(rank);
      nzclBuffer_t buffer = nullptr;  // the parent's, used by the child
      NZCL_OK(nzclCommRegister(comm, data.data(), data.size() * sizeof(float), &buffer));
      nzclWork_t work = nullptr;
      NZCL_OK(nzclAllReduce(data.data(), data.data(), kCount, nzclFloat32, nzclSum, child, &work));
      wait_and_free(work);
      std::vector<float> sum = input_of(0);
      const auto other = input_of(2);
      for (std::size_t i = 0; i < kCount; ++i) sum[i] += other[i];
      EXPECT_EQ(data, sum);
      NZCL_OK(nzclCommDeregister(child, buffer));
    }
    NZCL_OK(nzclBarrier(comm));  // so that the sum has come on both ranks before one of them aborts
    if (child != nullptr) {
      NZCL_OK(nzclCommAbort(child, "enough"));
      nzclResult_t result = nzclSuccess;
      while (result == nzclSuccess) result = nzclBarrier(child);
      EXPECT_EQ(result, nzclAborted);
      NZCL_OK(nzclCommDestroy(child));
    }
    NZCL_OK(nzclBarrier(comm));
  });
}

/// A sum over the communicator's `size` ranks, of which this one has `value`.
void check_sum_of(nzclComm_t comm, int size, int value, int sum) {
  int count = 0;
  NZCL_OK(nzclCommCount(comm, &count));
  EXPECT_EQ(count, size);
  std::vector<float> data(kCount, static_cast<float>(value));
  nzclBuffer_t buffer = nullptr;
  NZCL_OK(nzclCommRegister(comm, data.data(), data.size() * sizeof(float), &buffer));
  nzclWork_t work = nullptr;
  NZCL_OK(nzclAllReduce(data.data(), data.data(), kCount, nzclFloat32, nzclSum, comm, &work));
  wait_and_free(work);
  EXPECT_EQ(data.front(), static_cast<float>(sum));
  NZCL_OK(nzclCommDeregister(comm, buffer));
}

/// The ranks other than 1 shrink `comm` without it, and sum.
void shrink_without_rank_1(nzclComm_t comm, int rank, int flags) {
  const int left_out = 1;
  nzclComm_t smaller = nullptr;
  NZCL_OK(nzclCommShrink(comm, &left_out, 1, &smaller, flags));
  check_sum_of(smaller, kRanks - 1, rank, kRanks * (kRanks - 1) / 2 - 1);
  NZCL_OK(nzclCommDestroy(smaller));
}

TEST_F(CApiTest, ShrinksAsNcclDoes) {
  for (const int flags : {NZCL_SHRINK_DEFAULT, NZCL_SHRINK_ABORT}) {
    run([flags](nzclComm_t comm, int rank) {
      if (rank != 1) return shrink_without_rank_1(comm, rank, flags);
      nzclResult_t result = nzclSuccess;
      while (result == nzclSuccess) NZCL_OK(nzclCommGetAsyncError(comm, &result));
      EXPECT_EQ(result, nzclAborted);
    });
  }
}

TEST_F(CApiTest, ShrinkRefusesListsAndFlagsThatCannotBe) {
  run([](nzclComm_t comm, int) {
    nzclComm_t smaller = nullptr;
    const int unknown = kRanks;
    EXPECT_EQ(nzclCommShrink(comm, nullptr, 1, &smaller, NZCL_SHRINK_DEFAULT), nzclInvalidArgument);
    EXPECT_EQ(nzclCommShrink(comm, &unknown, -1, &smaller, NZCL_SHRINK_DEFAULT), nzclInvalidArgument);
    EXPECT_EQ(nzclCommShrink(comm, &unknown, 1, &smaller, NZCL_SHRINK_DEFAULT), nzclInvalidArgument);
    EXPECT_EQ(nzclCommShrink(comm, nullptr, 0, &smaller, 7), nzclInvalidArgument);
    EXPECT_EQ(nzclCommShrink(comm, nullptr, 0, nullptr, NZCL_SHRINK_DEFAULT), nzclInvalidArgument);
    EXPECT_EQ(smaller, nullptr);
    NZCL_OK(nzclBarrier(comm));
  });
}

TEST(CApiGrow, NewRanksComeByTheSameId) {
  nzclUniqueId id;
  NZCL_OK(nzclGetUniqueId(&id));
  std::barrier joined(kRanks + 1);
  on_ranks(kRanks + 1, [&](int rank) {
    nzclComm_t comm = nullptr, grown = nullptr;
    if (rank == kRanks) {
      joined.arrive_and_wait();
      NZCL_OK(nzclCommInitRank(&grown, kRanks + 1, id, rank));
    } else {
      NZCL_OK(nzclCommInitRank(&comm, kRanks, id, rank));
      joined.arrive_and_wait();
      NZCL_OK(nzclCommGrow(comm, kRanks + 1, nullptr, &grown));
      NZCL_OK(nzclCommDestroy(comm));
    }
    check_sum_of(grown, kRanks + 1, rank, (kRanks + 1) * kRanks / 2);
    NZCL_OK(nzclCommDestroy(grown));
  });
}

TEST_F(CApiTest, GrowRefusesSizesAndPlacesThatCannotBe) {
  run([](nzclComm_t comm, int) {
    nzclComm_t larger = nullptr;
    EXPECT_EQ(nzclCommGrow(comm, kRanks, nullptr, &larger), nzclInvalidArgument);
    EXPECT_EQ(nzclCommGrow(comm, kRanks + 1, "nowhere", &larger), nzclInvalidArgument);
    EXPECT_EQ(nzclCommGrow(comm, kRanks + 1, nullptr, nullptr), nzclInvalidArgument);
    EXPECT_EQ(nzclCommGrow(nullptr, kRanks + 1, nullptr, &larger), nzclInvalidArgument);
    EXPECT_EQ(larger, nullptr);
    NZCL_OK(nzclBarrier(comm));
  });
}

TEST(CApiOob, MeetsByTheCallersAllgather) {
  Oob shared;
  on_ranks(kRanks, [&](int rank) {
    OobRank self{&shared, rank};
    nzclComm_t comm = nullptr;
    NZCL_OK(nzclCommInitOob(&comm, kRanks, rank, oob_allgather, &self));
    NZCL_OK(nzclBarrier(comm));
    NZCL_OK(nzclCommDestroy(comm));
  });
}

TEST(CApiErrors, StatusAndTextNameTheMistake) {
  nzclComm_t comm = nullptr;
  EXPECT_EQ(nzclCommInitRank(nullptr, 1, {}, 0), nzclInvalidArgument);
  EXPECT_EQ(nzclCommInitRank(&comm, 2, {}, 0), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("nzclGetUniqueId"));
  EXPECT_EQ(nzclCommInitOob(&comm, 2, 0, nullptr, nullptr), nzclInvalidArgument);
  EXPECT_EQ(nzclBarrier(nullptr), nzclInvalidArgument);
  EXPECT_EQ(nzclWorkWait(nullptr, -1), nzclInvalidArgument);
  EXPECT_EQ(nzclCommDestroy(nullptr), nzclSuccess);
  EXPECT_EQ(nzclWorkFree(nullptr), nzclSuccess);
  nzclUniqueId id;
  NZCL_OK(nzclGetUniqueId(&id));
  EXPECT_EQ(nzclCommInitRank(&comm, 2, id, 2), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("rank 2 of 2"));

  NZCL_OK(nzclCommInitRank(&comm, 1, id, 0));
  nzclWork_t work = nullptr;
  float x = 1;
  EXPECT_EQ(nzclAllReduce(&x, &x, 1, nzclFloat32, nzclSum, comm, &work), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("not inside a registered buffer"));
  nzclAllReduceArgs args{};
  EXPECT_EQ(nzclAllReduceEx(&args, comm, &work), nzclInvalidArgument);
  nzclStatistics statistics{};
  EXPECT_EQ(nzclCommGetStatistics(comm, &statistics), nzclInvalidArgument);
  NZCL_OK(nzclCommDestroy(comm));
}

TEST(CApiErrors, EveryStatusHasAText) {
  for (int code = nzclSuccess; code <= nzclInProgress; ++code) {
    EXPECT_NE(std::string(nzclGetErrorString(static_cast<nzclResult_t>(code))), "");
    EXPECT_NE(std::string(nzclGetErrorString(static_cast<nzclResult_t>(code))), "?");
  }
  EXPECT_THAT(nzclGetVersion(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST_F(CApiTest, Collectives) {
  run([](nzclComm_t comm, int rank) {
    constexpr std::size_t kChunk = 1001;
    std::vector<float> one(kRanks * kChunk), two(kRanks * kChunk);
    nzclBuffer_t first = nullptr, second = nullptr;
    NZCL_OK(nzclCommRegister(comm, one.data(), one.size() * 4, &first));
    NZCL_OK(nzclCommRegister(comm, two.data(), two.size() * 4, &second));
    const auto is = [](const float* data, std::size_t n, float value) {
      return std::all_of(data, data + n, [value](float x) { return x == value; });
    };
    nzclWork_t work = nullptr;
    std::fill(one.begin(), one.end(), static_cast<float>(rank + 1));
    NZCL_OK(nzclReduceScatter(one.data(), two.data(), kChunk, nzclFloat32, nzclSum, comm, &work));
    const uint64_t* words = nullptr;
    std::size_t blocks = 0;
    NZCL_OK(nzclWorkWait(work, -1));
    NZCL_OK(nzclWorkUnionBitmap(work, &words, &blocks));
    EXPECT_EQ(blocks, 4u) << "of this rank's chunk";
    EXPECT_EQ(*words, 0xfu);
    NZCL_OK(nzclWorkFree(work));
    EXPECT_TRUE(is(two.data(), kChunk, 6));

    NZCL_OK(nzclReduce(one.data(), two.data(), kChunk, nzclFloat32, nzclMax, 2, comm, &work));
    wait_and_free(work);
    EXPECT_TRUE(is(two.data(), kChunk, rank == 2 ? 3.0f : 6.0f));

    NZCL_OK(nzclBroadcast(one.data(), kChunk, nzclFloat32, 1, comm, &work));
    wait_and_free(work);
    EXPECT_TRUE(is(one.data(), kChunk, 2));

    float* const own = two.data() + static_cast<std::size_t>(rank) * kChunk;
    std::fill_n(own, kChunk, static_cast<float>(10 + rank));
    NZCL_OK(nzclAllGather(own, two.data(), kChunk, nzclFloat32, comm, &work));
    wait_and_free(work);
    for (std::size_t r = 0; r < kRanks; ++r)
      EXPECT_TRUE(is(two.data() + r * kChunk, kChunk, static_cast<float>(10 + r)));

    const uint64_t counts[kRanks] = {5, 0, 700};
    nzclCollectiveArgs args{};
    args.size = sizeof args;
    args.send = one.data();
    args.recv = two.data();
    args.counts = counts;
    args.block_elems = 64;
    args.dense = 1;
    args.tag = 9;
    std::fill(one.begin(), one.end(), static_cast<float>(rank + 1));
    NZCL_OK(nzclAllGatherEx(&args, comm, &work));
    wait_and_free(work);
    EXPECT_TRUE(is(two.data(), 5, 1));
    EXPECT_TRUE(is(two.data() + 5, 700, 3));
    EXPECT_EQ(two[705], static_cast<float>(10)) << "nothing is written behind the last chunk";
    NZCL_OK(nzclReduceScatterEx(&args, comm, &work));
    wait_and_free(work);
    EXPECT_TRUE(is(two.data(), counts[rank], 6));
    args.count = 99;
    args.root = 1;
    NZCL_OK(nzclReduceEx(&args, comm, &work));
    wait_and_free(work);
    EXPECT_TRUE(rank != 1 || is(two.data(), 99, 6));
    NZCL_OK(nzclBroadcastEx(&args, comm, &work));
    wait_and_free(work);
    EXPECT_TRUE(is(two.data(), 99, 6));

    std::fill_n(two.data(), 99, 0.5f);
    std::pair<std::atomic<int>, std::string> told{-1, "?"};
    NZCL_OK(nzclBroadcastEx(&args, comm, &work));
    NZCL_OK(nzclWorkOnComplete(
        work,
        [](nzclResult_t result, const char* text, void* context) {
          auto& to = *static_cast<decltype(told)*>(context);
          to.second = text;
          to.first = static_cast<int>(result);
        },
        &told));
    NZCL_OK(nzclWorkFree(work));
    while (told.first < 0) std::this_thread::yield();
    EXPECT_EQ(told.first, static_cast<int>(nzclSuccess));
    EXPECT_EQ(told.second, "");

    EXPECT_EQ(nzclBroadcastEx(nullptr, comm, &work), nzclInvalidArgument);
    EXPECT_EQ(nzclWorkOnComplete(nullptr, nullptr, nullptr), nzclInvalidArgument);
    NZCL_OK(nzclCommDeregister(comm, first));
    NZCL_OK(nzclCommDeregister(comm, second));
  });
}

}  // namespace

// Unusual calls of the C API: argument structures with the sizes of other versions, empty tensors, and null
// in place of every handle and pointer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "nzcl/nzcl.h"

namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

#define NZCL_OK(call) ASSERT_EQ(call, nzclSuccess) << nzclGetLastError()

/// A communicator of a single rank, with a registered buffer.
class CApiMisuseTest : public testing::Test {
 protected:
  void SetUp() override {
    nzclUniqueId id;
    NZCL_OK(nzclGetUniqueId(&id));
    NZCL_OK(nzclCommInitRank(&comm_, 1, id, 0));
    NZCL_OK(nzclCommRegister(comm_, data_.data(), data_.size() * sizeof(float), &buffer_));
  }
  void TearDown() override {
    NZCL_OK(nzclCommDeregister(comm_, buffer_));
    NZCL_OK(nzclCommDestroy(comm_));
  }
  nzclResult_t start(const void* args) {
    nzclWork_t work = nullptr;
    const nzclResult_t result = nzclAllReduceEx(static_cast<const nzclAllReduceArgs*>(args), comm_, &work);
    if (result != nzclSuccess) return result;
    EXPECT_EQ(nzclWorkWait(work, -1), nzclSuccess) << nzclGetLastError();
    EXPECT_EQ(nzclWorkUnionBitmap(work, &words_, &blocks_), nzclSuccess);
    nzclWorkFree(work);
    return result;
  }

  nzclComm_t comm_ = nullptr;
  nzclBuffer_t buffer_ = nullptr;
  std::vector<float> data_ = std::vector<float>(1000, 1.0f);
  const std::uint64_t* words_ = nullptr;
  std::size_t blocks_ = 0;
};

/// The structure as a program knows it that was compiled before block_elems and the fields behind it were
/// added.
struct FirstArgs {
  std::size_t size;
  const void* send;
  void* recv;
  std::uint64_t count;
  nzclDataType_t type;
  nzclRedOp_t op;
};

TEST_F(CApiMisuseTest, AnOlderStructureGetsDefaultsForWhatItLacks) {
  struct {
    FirstArgs args;
    std::array<std::uint64_t, 8> behind;  // other memory of the caller, which must not be read as arguments
  } old{{sizeof(FirstArgs), data_.data(), data_.data(), data_.size(), nzclFloat32, nzclSum}, {}};
  old.behind.fill(0x7777777777777777);
  ASSERT_EQ(start(&old), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(blocks_, 4u) << "blocks of 256, the default";
}

TEST_F(CApiMisuseTest, ANewerStructureIsTakenIfItAsksForNothingNew) {
  struct {
    nzclAllReduceArgs args;
    std::array<std::uint64_t, 3> later;
  } future{};
  future.args.size = sizeof future;
  future.args.send = future.args.recv = data_.data();
  future.args.count = data_.size();
  future.args.block_elems = 10;
  ASSERT_EQ(start(&future), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(blocks_, 100u);
  future.later[2] = 1;
  EXPECT_EQ(start(&future), nzclUnsupported);
  EXPECT_THAT(nzclGetLastError(), AllOf(HasSubstr("nzclAllReduceArgs"),
                                        HasSubstr("byte " + std::to_string(sizeof(nzclAllReduceArgs) + 16)),
                                        HasSubstr(nzclGetVersion())));
}

TEST_F(CApiMisuseTest, AnOperationsTimeoutIsTheStructuresLast) {
  nzclAllReduceArgs args{};
  args.size = sizeof args;
  args.send = args.recv = data_.data();
  args.count = data_.size();
  args.timeout_ns = 5'000'000'000;
  EXPECT_EQ(start(&args), nzclSuccess) << nzclGetLastError();
  args.timeout_ns = -1;
  EXPECT_EQ(start(&args), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("timeout is -1e-09 s"));
}

TEST_F(CApiMisuseTest, TheExpectedDensityIsReadFromStructuresThatHaveIt) {
  nzclAllReduceArgs args{};
  args.size = sizeof args;
  args.send = args.recv = data_.data();
  args.count = data_.size();
  args.expected_density = 0.5;
  EXPECT_EQ(start(&args), nzclSuccess) << nzclGetLastError();
  args.expected_density = 2;
  EXPECT_EQ(start(&args), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("expected_density is 2"));
  args.size =
      offsetof(nzclAllReduceArgs, expected_density);  // of the version before, whose memory ends there
  EXPECT_EQ(start(&args), nzclSuccess) << nzclGetLastError();

  const std::int64_t index = 1;
  nzclAllReduceSparseArgs sparse{};
  sparse.size = sizeof sparse;
  sparse.values = data_.data();
  sparse.output = data_.data() + 500;
  sparse.indices = &index;
  sparse.index_type = nzclIndexInt64;
  sparse.index_count = 1;
  sparse.count = 500;
  sparse.expected_density = -1;
  nzclWork_t work = nullptr;
  EXPECT_EQ(nzclAllReduceSparse(&sparse, comm_, &work), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("expected_density is -1"));
  sparse.size = offsetof(nzclAllReduceSparseArgs, expected_density);
  NZCL_OK(nzclAllReduceSparse(&sparse, comm_, &work));
  NZCL_OK(nzclWorkWait(work, -1));
  NZCL_OK(nzclWorkFree(work));
}

TEST_F(CApiMisuseTest, TheStreamIsReadFromStructuresThatHaveIt) {
  nzclAllReduceArgs args{};
  args.size = sizeof args;
  args.send = args.recv = data_.data();
  args.count = data_.size();
  args.stream = data_.data();
  EXPECT_EQ(start(&args), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("a stream is given"));
  args.size = offsetof(nzclAllReduceArgs, stream);
  EXPECT_EQ(start(&args), nzclSuccess) << nzclGetLastError();
}

TEST_F(CApiMisuseTest, MemoryOfTheHostIsNoDevicesAndItsOperationsHaveNoStream) {
  nzclBuffer_t buffer = nullptr;
  EXPECT_NE(nzclCommRegisterDevice(comm_, data_.data(), sizeof(float), &buffer), nzclSuccess);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("register_buffer: "));
  nzclWork_t work = nullptr;
  NZCL_OK(nzclAllReduce(data_.data(), data_.data(), data_.size(), nzclFloat32, nzclSum, comm_, &work));
  EXPECT_EQ(nzclWorkEnqueueWait(work, nullptr), nzclInvalidUsage);
  NZCL_OK(nzclWorkWait(work, -1));
  NZCL_OK(nzclWorkFree(work));
  EXPECT_EQ(nzclWorkEnqueueWait(nullptr, nullptr), nzclInvalidArgument);
}

TEST_F(CApiMisuseTest, ASizeThatIsNoneIsRefusedByName) {
  nzclAllReduceArgs args{};
  args.send = args.recv = data_.data();
  args.count = data_.size();
  for (const std::size_t size : {std::size_t{0}, sizeof(FirstArgs) - 8, sizeof(FirstArgs) + 1,
                                 sizeof(args) + 1, std::numeric_limits<std::size_t>::max() - 7}) {
    args.size = size;
    EXPECT_EQ(start(&args), nzclInvalidArgument) << size;
    EXPECT_THAT(nzclGetLastError(),
                AllOf(HasSubstr("size is " + std::to_string(size)), HasSubstr("sizeof(nzclAllReduceArgs)")));
  }
  EXPECT_EQ(start(nullptr), nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("null"));
}

TEST_F(CApiMisuseTest, StatisticsAreWrittenUpToTheCallersSizeOnly) {
  NZCL_OK(nzclBarrier(comm_));
  struct {
    std::size_t size;
    std::uint64_t operations;
    std::uint64_t behind;  // other memory of the caller, which must not be written
  } old{2 * sizeof(std::uint64_t), 99, 99};
  NZCL_OK(nzclCommGetStatistics(comm_, reinterpret_cast<nzclStatistics*>(&old)));
  EXPECT_EQ(old.operations, 1u);
  EXPECT_EQ(old.behind, 99u);
  EXPECT_EQ(old.size, 2 * sizeof(std::uint64_t));

  struct {
    nzclStatistics known;
    std::uint64_t later;
  } future{{}, 99};
  future.known.size = sizeof future;
  NZCL_OK(nzclCommGetStatistics(comm_, &future.known));
  EXPECT_EQ(future.known.operations, 1u);
  EXPECT_EQ(future.known.size, sizeof future);
  EXPECT_EQ(future.later, 0u) << "what this version does not count is 0, not left as it was";

  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{20}, std::size_t{1} << 40}) {
    future.known.size = size;
    EXPECT_EQ(nzclCommGetStatistics(comm_, &future.known), nzclInvalidArgument) << size;
    EXPECT_THAT(nzclGetLastError(), HasSubstr("sizeof(nzclStatistics)"));
  }
}

TEST_F(CApiMisuseTest, AWaitForEverWaitsForEver) {
  nzclUniqueId id;
  NZCL_OK(nzclGetUniqueId(&id));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      nzclComm_t comm = nullptr;
      NZCL_OK(nzclCommInitRank(&comm, 2, id, rank));
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      nzclWork_t work = nullptr;
      NZCL_OK(nzclAllReduce(nullptr, nullptr, 0, nzclFloat32, nzclSum, comm, &work));
      EXPECT_EQ(nzclWorkWait(work, std::numeric_limits<std::int64_t>::max()), nzclSuccess);
      NZCL_OK(nzclWorkWait(work, -1));
      NZCL_OK(nzclWorkFree(work));
      NZCL_OK(nzclCommDestroy(comm));
    });
  }
}

TEST_F(CApiMisuseTest, AnEmptyTensorOfBlocks) {
  nzclWork_t work = nullptr;
  for (float* recv : {static_cast<float*>(nullptr), data_.data()}) {
    NZCL_OK(nzclAllReduceSparseBlock(nullptr, nullptr, 0, 256, recv, 0, nzclFloat32, nzclSum, comm_, &work));
    NZCL_OK(nzclWorkWait(work, -1));
    NZCL_OK(nzclWorkFree(work));
    NZCL_OK(nzclAllReduceSparseBlockPacked(nullptr, nullptr, 0, 256, recv, 0, 0, nzclFloat32, nzclSum, comm_,
                                           &work));
    NZCL_OK(nzclWorkWait(work, -1));
    const std::int64_t* indices = nullptr;
    std::size_t blocks = 99;
    NZCL_OK(nzclWorkPackedIndices(work, &indices, &blocks));
    EXPECT_EQ(blocks, 0u);
    NZCL_OK(nzclWorkFree(work));
  }
  const std::int64_t index = 0;
  EXPECT_EQ(nzclAllReduceSparseBlock(data_.data(), &index, 1, 256, data_.data(), 0, nzclFloat32, nzclSum,
                                     comm_, &work),
            nzclInvalidArgument);
  EXPECT_THAT(nzclGetLastError(), HasSubstr("block index 0 is not below the block count 0"));
}

/// The text of the call's error; the call must have found an argument that cannot be right.
std::string refusal(nzclResult_t result) {
  EXPECT_EQ(result, nzclInvalidArgument);
  return nzclGetLastError();
}

// Some of these numbers have the last 8 bits of one that exists.
TEST_F(CApiMisuseTest, EveryEnumeratorThatDoesNotExistIsRefusedByItsNumber) {
  constexpr std::array kNone{-1, 100, 255, 256, 257, 258, 512, 65536};
  float* const x = data_.data();
  nzclWork_t work = nullptr;
  const std::int64_t index = 0;
  nzclAllReduceArgs dense{};
  dense.size = sizeof dense;
  dense.send = dense.recv = x;
  dense.count = 1;
  nzclAllReduceSparseArgs sparse{};
  sparse.size = sizeof sparse;
  sparse.values = sparse.output = x;
  sparse.indices = &index;
  sparse.index_type = nzclIndexInt64;
  sparse.index_count = sparse.count = 1;
  nzclCollectiveArgs other{};
  other.size = sizeof other;
  other.send = other.recv = x;
  other.count = 1;
  const auto names = [](const char* what, int number) {
    return HasSubstr(std::string(what) + " " + std::to_string(number) + " does not exist");
  };
  for (const int none : kNone) {
    const auto type = static_cast<nzclDataType_t>(none);
    const auto op = static_cast<nzclRedOp_t>(none);
    const auto is_type = names("type", none), is_op = names("op", none);
    EXPECT_THAT(refusal(nzclAllReduce(x, x, 1, type, nzclSum, comm_, &work)), is_type);
    EXPECT_THAT(refusal(nzclAllReduce(x, x, 1, nzclFloat32, op, comm_, &work)), is_op);
    EXPECT_THAT(refusal(nzclAllReduceSparseBlock(x, &index, 1, 1, x, 1, type, nzclSum, comm_, &work)),
                is_type);
    EXPECT_THAT(
        refusal(nzclAllReduceSparseBlockPacked(x, &index, 1, 1, x, 1, 1, nzclFloat32, op, comm_, &work)),
        is_op);
    EXPECT_THAT(refusal(nzclBroadcast(x, 1, type, 0, comm_, &work)), is_type);
    EXPECT_THAT(refusal(nzclReduce(x, x, 1, nzclFloat32, op, 0, comm_, &work)), is_op);
    EXPECT_THAT(refusal(nzclReduceScatter(x, x, 1, nzclFloat32, op, comm_, &work)), is_op);
    EXPECT_THAT(refusal(nzclAllGather(x, x, 1, type, comm_, &work)), is_type);
    nzclAllReduceArgs d = dense;
    d.wire_type = static_cast<nzclWireType_t>(none);
    EXPECT_THAT(refusal(nzclAllReduceEx(&d, comm_, &work)), names("wire_type", none));
    d = dense, d.algorithm = static_cast<nzclAlgorithm_t>(none);
    EXPECT_THAT(refusal(nzclAllReduceEx(&d, comm_, &work)), names("algorithm", none));
    nzclAllReduceSparseArgs s = sparse;
    s.index_type = static_cast<nzclIndexType_t>(none);
    EXPECT_THAT(refusal(nzclAllReduceSparse(&s, comm_, &work)), names("index type", none));
    nzclCollectiveArgs o = other;
    o.op = op;
    EXPECT_THAT(refusal(nzclReduceEx(&o, comm_, &work)), is_op);
    EXPECT_STREQ(nzclGetErrorString(static_cast<nzclResult_t>(none)), "no status that nzcl returns");
  }
}

TEST_F(CApiMisuseTest, ARankThatIsNoneIsRefused) {
  nzclUniqueId id;
  NZCL_OK(nzclGetUniqueId(&id));
  nzclComm_t other = nullptr;
  for (const auto& [ranks, rank] : {std::pair{1, -1}, {2, -1}, {-1, 0}, {0, 0}, {1, 1}, {2, 5}}) {
    EXPECT_THAT(
        refusal(nzclCommInitRank(&other, ranks, id, rank)),
        HasSubstr("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " does not exist"));
  }
}

// A negative number, where there should have been none, is a number near 2^64.
TEST_F(CApiMisuseTest, ACountThatCannotBeIsRefused) {
  float* const x = data_.data();
  nzclWork_t work = nullptr;
  const std::int64_t index = 0;
  for (const std::size_t none : {static_cast<std::size_t>(-1), static_cast<std::size_t>(-256),
                                 std::size_t{1} << 63, std::size_t{1} << 62, std::size_t{1} << 61}) {
    refusal(nzclAllReduce(x, x, none, nzclFloat32, nzclSum, comm_, &work));
    refusal(nzclAllReduceSparseBlock(x, &index, 1, none, x, 1, nzclFloat64, nzclSum, comm_, &work));
    refusal(nzclAllReduceSparseBlock(x, &index, 1, 1, x, none, nzclFloat32, nzclSum, comm_, &work));
    refusal(nzclAllReduceSparseBlock(x, &index, none, 1, x, 1, nzclFloat32, nzclSum, comm_, &work));
    refusal(nzclAllReduceSparseBlockPacked(x, &index, 1, 1, x, none, 1, nzclFloat64, nzclSum, comm_, &work));
    refusal(nzclAllReduceSparseBlockPacked(x, &index, 1, 1, x, 1, none, nzclFloat32, nzclSum, comm_, &work));
    refusal(nzclBroadcast(x, none, nzclFloat32, 0, comm_, &work));
    refusal(nzclReduce(x, x, none, nzclFloat32, nzclSum, 0, comm_, &work));
    refusal(nzclReduceScatter(x, x, none, nzclFloat32, nzclSum, comm_, &work));
    refusal(nzclAllGather(x, x, none, nzclFloat32, comm_, &work));
    nzclBuffer_t buffer = nullptr;
    refusal(nzclCommRegister(comm_, x, none, &buffer));
  }
  NZCL_OK(nzclAllReduce(nullptr, nullptr, 0, nzclFloat32, nzclSum, comm_, &work));
  NZCL_OK(nzclWorkWait(work, -1));
  NZCL_OK(nzclWorkFree(work));
}

TEST_F(CApiMisuseTest, EveryNullPointerOfAStreamIsAnErrorThatNamesTheCall) {
  const auto names = AllOf(HasSubstr("nzclAllReduceSparse"), HasSubstr("null"));
  nzclWork_t work = nullptr;
  nzclAllReduceSparseArgs args{};
  args.size = sizeof args;
  args.count = args.index_count = args.packed_capacity = 1;
  args.values = args.output = data_.data();
  EXPECT_THAT(refusal(nzclAllReduceSparse(nullptr, comm_, &work)), names);
  EXPECT_THAT(refusal(nzclAllReduceSparse(&args, nullptr, &work)), names);
  EXPECT_THAT(refusal(nzclAllReduceSparse(&args, comm_, nullptr)), names);
  EXPECT_THAT(refusal(nzclAllReduceSparse(&args, comm_, &work)), names) << "indices";
  const std::int32_t index = 0;
  args.indices = &index;
  args.values = nullptr;
  EXPECT_THAT(refusal(nzclAllReduceSparse(&args, comm_, &work)), HasSubstr("values is null"));
  args.values = data_.data();
  args.output = nullptr;
  EXPECT_THAT(refusal(nzclAllReduceSparse(&args, comm_, &work)), HasSubstr("no memory is given"));
}

TEST_F(CApiMisuseTest, EveryNullPointerOfACollectiveIsAnErrorThatNamesTheCall) {
  nzclWork_t work = nullptr;
  float* const x = data_.data();
  const auto names = [](const char* call) { return AllOf(HasSubstr(call), HasSubstr("null")); };
  EXPECT_THAT(refusal(nzclBroadcast(x, 1, nzclFloat32, 0, nullptr, &work)), names("nzclBroadcast"));
  EXPECT_THAT(refusal(nzclBroadcast(x, 1, nzclFloat32, 0, comm_, nullptr)), names("nzclBroadcast"));
  EXPECT_THAT(refusal(nzclBroadcast(nullptr, 1, nzclFloat32, 0, comm_, &work)), names("broadcast: data"));
  EXPECT_THAT(refusal(nzclReduce(x, x, 1, nzclFloat32, nzclSum, 0, nullptr, &work)), names("nzclReduce"));
  EXPECT_THAT(refusal(nzclReduce(x, x, 1, nzclFloat32, nzclSum, 0, comm_, nullptr)), names("nzclReduce"));
  EXPECT_THAT(refusal(nzclReduce(nullptr, x, 1, nzclFloat32, nzclSum, 0, comm_, &work)),
              names("reduce: input"));
  EXPECT_THAT(refusal(nzclReduce(x, nullptr, 1, nzclFloat32, nzclSum, 0, comm_, &work)),
              names("reduce: output"));
  EXPECT_THAT(refusal(nzclReduceScatter(x, x, 1, nzclFloat32, nzclSum, nullptr, &work)),
              names("nzclReduceScatter"));
  EXPECT_THAT(refusal(nzclReduceScatter(x, x, 1, nzclFloat32, nzclSum, comm_, nullptr)),
              names("nzclReduceScatter"));
  EXPECT_THAT(refusal(nzclReduceScatter(nullptr, x, 1, nzclFloat32, nzclSum, comm_, &work)),
              names("reduce_scatter: input"));
  EXPECT_THAT(refusal(nzclReduceScatter(x, nullptr, 1, nzclFloat32, nzclSum, comm_, &work)),
              names("reduce_scatter: output"));
  EXPECT_THAT(refusal(nzclAllGather(x, x, 1, nzclFloat32, nullptr, &work)), names("nzclAllGather"));
  EXPECT_THAT(refusal(nzclAllGather(x, x, 1, nzclFloat32, comm_, nullptr)), names("nzclAllGather"));
  EXPECT_THAT(refusal(nzclAllGather(nullptr, x, 1, nzclFloat32, comm_, &work)), names("allgather: input"));
  EXPECT_THAT(refusal(nzclAllGather(x, nullptr, 1, nzclFloat32, comm_, &work)), names("allgather: output"));

  nzclCollectiveArgs args{};
  args.size = sizeof args;
  using Call = nzclResult_t (*)(const nzclCollectiveArgs*, nzclComm_t, nzclWork_t*);
  constexpr std::array<std::pair<const char*, Call>, 4> kCalls = {
      {{"nzclBroadcastEx", nzclBroadcastEx},
       {"nzclReduceEx", nzclReduceEx},
       {"nzclReduceScatterEx", nzclReduceScatterEx},
       {"nzclAllGatherEx", nzclAllGatherEx}}};
  for (const auto& [name, call] : kCalls) {
    EXPECT_THAT(refusal(call(nullptr, comm_, &work)), names(name));
    EXPECT_THAT(refusal(call(&args, nullptr, &work)), names(name));
    EXPECT_THAT(refusal(call(&args, comm_, nullptr)), names(name));
  }
}

TEST_F(CApiMisuseTest, EveryNullPointerOfACallbackOrCompressorIsAnErrorThatNamesTheCall) {
  const auto names = [](const char* call) { return AllOf(HasSubstr(call), HasSubstr("null")); };
  nzclWork_t work = nullptr;
  NZCL_OK(nzclAllReduce(nullptr, nullptr, 0, nzclFloat32, nzclSum, comm_, &work));
  const nzclCallback_t callback = [](nzclResult_t, const char*, void*) {};
  EXPECT_THAT(refusal(nzclWorkOnComplete(nullptr, callback, nullptr)), names("nzclWorkOnComplete"));
  EXPECT_THAT(refusal(nzclWorkOnComplete(work, nullptr, nullptr)), names("nzclWorkOnComplete"));
  NZCL_OK(nzclWorkFree(work));

  nzclCompressorState_t state = nullptr;
  const nzclLayer_t layer{10, 0};
  EXPECT_THAT(refusal(nzclCompressorStateCreate(nullptr, &layer, 1, &state)),
              names("nzclCompressorStateCreate"));
  EXPECT_THAT(refusal(nzclCompressorStateCreate("topk", nullptr, 1, &state)),
              names("nzclCompressorStateCreate"));
  EXPECT_THAT(refusal(nzclCompressorStateCreate("topk", &layer, 1, nullptr)),
              names("nzclCompressorStateCreate"));
  NZCL_OK(nzclCompressorStateCreate("topk", &layer, 1, &state));
  std::size_t bytes = 0;
  nzclCompressionReport report{};
  report.size = sizeof report;
  EXPECT_THAT(refusal(nzclCompressorStateReset(nullptr)), names("nzclCompressorStateReset"));
  EXPECT_THAT(refusal(nzclCompressorStateSave(nullptr, nullptr, &bytes)), names("nzclCompressorStateSave"));
  EXPECT_THAT(refusal(nzclCompressorStateSave(state, nullptr, nullptr)), names("nzclCompressorStateSave"));
  EXPECT_THAT(refusal(nzclCompressorStateRestore(nullptr, &bytes, 1)), names("nzclCompressorStateRestore"));
  EXPECT_THAT(refusal(nzclCompressorStateRestore(state, nullptr, 1)), names("nzclCompressorStateRestore"));
  EXPECT_THAT(refusal(nzclCompressorStateGetReport(nullptr, &report)), names("nzclCompressorStateGetReport"));
  EXPECT_THAT(refusal(nzclCompressorStateGetReport(state, nullptr)), names("nzclCompressorStateGetReport"));
  float* const x = data_.data();
  EXPECT_THAT(refusal(nzclAllReduceCompressed(x, x, 10, nzclSum, nullptr, comm_, &work)),
              names("nzclAllReduceCompressed"));
  EXPECT_THAT(refusal(nzclAllReduceCompressed(x, x, 10, nzclSum, state, nullptr, &work)),
              names("nzclAllReduceCompressed"));
  EXPECT_THAT(refusal(nzclAllReduceCompressed(x, x, 10, nzclSum, state, comm_, nullptr)),
              names("nzclAllReduceCompressed"));
  EXPECT_THAT(refusal(nzclAllReduceCompressed(nullptr, x, 10, nzclSum, state, comm_, &work)),
              HasSubstr("input is null"));
  EXPECT_THAT(refusal(nzclAllReduceCompressed(x, nullptr, 10, nzclSum, state, comm_, &work)),
              HasSubstr("output is null"));
  NZCL_OK(nzclCompressorStateDestroy(state));
  NZCL_OK(nzclCompressorStateDestroy(nullptr));
  NZCL_OK(nzclSetLogCallback(nullptr, nullptr));
}

TEST_F(CApiMisuseTest, EveryNullPointerIsAnErrorThatNamesTheCall) {
  const std::int64_t index = 0;
  const std::int64_t* indices = nullptr;
  const std::uint64_t* words = nullptr;
  std::size_t blocks = 0;
  int number = 0;
  nzclResult_t async = nzclSuccess;
  nzclBuffer_t buffer = nullptr;
  nzclWork_t work = nullptr;
  nzclAllReduceArgs args{};
  args.size = sizeof args;
  nzclStatistics statistics{};
  statistics.size = sizeof statistics;
  float* const x = data_.data();
  const auto refused = [](nzclResult_t result, const char* call, const char* what = "null") {
    EXPECT_EQ(result, nzclInvalidArgument) << call;
    EXPECT_THAT(nzclGetLastError(), AllOf(HasSubstr(call), HasSubstr(what))) << call;
  };
  NZCL_OK(nzclAllReduce(x, x, 1, nzclFloat32, nzclSum, comm_, &work));
  NZCL_OK(nzclWorkWait(work, -1));

  refused(nzclCommInitEnv(nullptr), "nzclCommInitEnv");
  refused(nzclGetUniqueId(nullptr), "nzclGetUniqueId");
  refused(nzclCommInitRank(nullptr, 1, {}, 0), "nzclCommInitRank");
  refused(nzclCommInitOob(nullptr, 1, 0, nullptr, nullptr), "nzclCommInitOob");
  nzclComm_t other = nullptr;
  refused(nzclCommInitOob(&other, 1, 0, nullptr, nullptr), "nzclCommInitOob");
  refused(nzclCommAbort(nullptr, "why"), "nzclCommAbort");
  refused(nzclCommGetAsyncError(nullptr, &async), "nzclCommGetAsyncError");
  refused(nzclCommGetAsyncError(comm_, nullptr), "nzclCommGetAsyncError");
  refused(nzclCommCount(nullptr, &number), "nzclCommCount");
  refused(nzclCommCount(comm_, nullptr), "nzclCommCount");
  refused(nzclCommUserRank(nullptr, &number), "nzclCommUserRank");
  refused(nzclCommUserRank(comm_, nullptr), "nzclCommUserRank");
  refused(nzclCommSplit(nullptr, 0, 0, &other), "nzclCommSplit");
  refused(nzclCommSplit(comm_, 0, 0, nullptr), "nzclCommSplit");
  refused(nzclCommRegister(nullptr, x, 4, &buffer), "nzclCommRegister");
  refused(nzclCommRegister(comm_, nullptr, 4, &buffer), "nzclCommRegister");
  refused(nzclCommRegister(comm_, x, 4, nullptr), "nzclCommRegister");
  refused(nzclCommDeregister(nullptr, buffer_), "nzclCommDeregister");
  refused(nzclAllReduce(x, x, 1, nzclFloat32, nzclSum, nullptr, &work), "nzclAllReduce");
  refused(nzclAllReduce(x, x, 1, nzclFloat32, nzclSum, comm_, nullptr), "nzclAllReduce");
  refused(nzclAllReduceEx(nullptr, comm_, &work), "nzclAllReduceEx");
  refused(nzclAllReduceEx(&args, nullptr, &work), "nzclAllReduceEx");
  refused(nzclAllReduceEx(&args, comm_, nullptr), "nzclAllReduceEx");
  const auto dense = [&](const void* send, const std::int64_t* i, void* recv, nzclComm_t c, nzclWork_t* w) {
    return nzclAllReduceSparseBlock(send, i, 1, 1, recv, 1, nzclFloat32, nzclSum, c, w);
  };
  refused(dense(nullptr, &index, x, comm_, &work), "allreduce", "values is null");
  refused(dense(x, nullptr, x, comm_, &work), "nzclAllReduceSparseBlock");
  refused(dense(x, &index, nullptr, comm_, &work), "allreduce", "no memory is given for the result");
  refused(dense(x, &index, x, nullptr, &work), "nzclAllReduceSparseBlock");
  refused(dense(x, &index, x, comm_, nullptr), "nzclAllReduceSparseBlock");
  const auto packed = [&](const void* send, const std::int64_t* i, void* recv, nzclComm_t c, nzclWork_t* w) {
    return nzclAllReduceSparseBlockPacked(send, i, 1, 1, recv, 1, 1, nzclFloat32, nzclSum, c, w);
  };
  refused(packed(nullptr, &index, x, comm_, &work), "allreduce", "values is null");
  refused(packed(x, nullptr, x, comm_, &work), "nzclAllReduceSparseBlockPacked");
  refused(packed(x, &index, nullptr, comm_, &work), "allreduce", "no memory is given for the result");
  refused(packed(x, &index, x, nullptr, &work), "nzclAllReduceSparseBlockPacked");
  refused(packed(x, &index, x, comm_, nullptr), "nzclAllReduceSparseBlockPacked");
  refused(nzclBarrier(nullptr), "nzclBarrier");
  refused(nzclWorkTest(nullptr, &number), "nzclWorkTest");
  refused(nzclWorkTest(work, nullptr), "nzclWorkTest");
  refused(nzclWorkWait(nullptr, -1), "nzclWorkWait");
  refused(nzclWorkUnionBitmap(nullptr, &words, &blocks), "nzclWorkUnionBitmap");
  refused(nzclWorkUnionBitmap(work, nullptr, &blocks), "nzclWorkUnionBitmap");
  refused(nzclWorkUnionBitmap(work, &words, nullptr), "nzclWorkUnionBitmap");
  refused(nzclWorkPackedIndices(nullptr, &indices, &blocks), "nzclWorkPackedIndices");
  refused(nzclWorkPackedIndices(work, nullptr, &blocks), "nzclWorkPackedIndices");
  refused(nzclWorkPackedIndices(work, &indices, nullptr), "nzclWorkPackedIndices");
  refused(nzclCommGetStatistics(nullptr, &statistics), "nzclCommGetStatistics");
  refused(nzclCommGetStatistics(comm_, nullptr), "nzclCommGetStatistics");
  NZCL_OK(nzclWorkFree(work));
  // Functions that free accept null, as free() does. The reason of an abort may be left out.
  NZCL_OK(nzclWorkFree(nullptr));
  NZCL_OK(nzclCommDeregister(comm_, nullptr));
  NZCL_OK(nzclCommDestroy(nullptr));
  NZCL_OK(nzclCommAbort(comm_, nullptr));
}

}  // namespace

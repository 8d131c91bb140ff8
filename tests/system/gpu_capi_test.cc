// Memory of a GPU through the C API.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "nzcl/nzcl.h"
#include "tests/system/on_gpu.h"

namespace nzcl::test {
namespace {

/// Two pieces of memory of a GPU, registered with a communicator of one rank.
class GpuCApi : public testing::Test {
 protected:
  void SetUp() override {
    nzclUniqueId id;
    ASSERT_EQ(nzclGetUniqueId(&id), nzclSuccess) << nzclGetLastError();
    ASSERT_EQ(nzclCommInitRank(&comm_, 1, id, 0), nzclSuccess) << nzclGetLastError();
    on_.write(in_, input_);
    ASSERT_EQ(nzclCommRegisterDevice(comm_, in_, input_.size(), &in_buffer_), nzclSuccess);
    ASSERT_EQ(nzclCommRegisterDevice(comm_, out_, input_.size(), &out_buffer_), nzclSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(nzclCommDeregister(comm_, in_buffer_), nzclSuccess);
    EXPECT_EQ(nzclCommDeregister(comm_, out_buffer_), nzclSuccess);
    EXPECT_EQ(nzclCommDestroy(comm_), nzclSuccess);
  }
  /// A request whose result is all of the output.
  template <typename Args>
  Args args(const void* send, void* stream) const {
    Args args{};
    args.size = sizeof args;
    args.send = send;
    args.recv = out_;
    args.count = input_.size();
    args.type = nzclUint8;
    args.op = nzclSum;
    args.stream = stream;
    return args;
  }
  void allreduce(const void* send, void* stream) {
    const auto request = args<nzclAllReduceArgs>(send, stream);
    nzclWork_t work = nullptr;
    ASSERT_EQ(nzclAllReduceEx(&request, comm_, &work), nzclSuccess) << nzclGetLastError();
    check(work);
  }
  /// Compares the output behind the wait of the stream.
  void check(nzclWork_t work) {
    EXPECT_EQ(nzclWorkEnqueueWait(work, on_.stream()), nzclSuccess) << nzclGetLastError();
    EXPECT_EQ(on_.read(out_, input_.size()), input_);
    EXPECT_EQ(nzclWorkWait(work, -1), nzclSuccess) << nzclGetLastError();
    EXPECT_EQ(nzclWorkFree(work), nzclSuccess);
  }

  OnGpu on_;
  const std::vector<std::byte> input_ = std::vector<std::byte>(40000, std::byte{3});
  const std::vector<std::byte> zeros_ = std::vector<std::byte>(input_.size());
  std::byte* const in_ = on_.allocate(input_.size());
  std::byte* const out_ = on_.allocate(input_.size());
  nzclComm_t comm_ = nullptr;
  nzclBuffer_t in_buffer_ = nullptr, out_buffer_ = nullptr;
};

TEST_F(GpuCApi, AStreamWaitsForAnAllreduce) { allreduce(in_, on_.stream()); }

TEST_F(GpuCApi, AStreamWaitsForOtherCollectives) {
  for (const auto start : {nzclReduceEx, nzclReduceScatterEx, nzclAllGatherEx}) {
    on_.write(out_, zeros_);
    const auto request = args<nzclCollectiveArgs>(in_, on_.stream());
    nzclWork_t work = nullptr;
    ASSERT_EQ(start(&request, comm_, &work), nzclSuccess) << nzclGetLastError();
    check(work);
  }
}

/// The data of a broadcast is `recv`. A rank alone keeps what it has.
TEST_F(GpuCApi, AStreamWaitsForABroadcast) {
  on_.write(out_, input_);
  const auto request = args<nzclCollectiveArgs>(nullptr, on_.stream());
  nzclWork_t work = nullptr;
  ASSERT_EQ(nzclBroadcastEx(&request, comm_, &work), nzclSuccess) << nzclGetLastError();
  check(work);
}

/// The input is the host's, which the stream has nothing to do with, and the result the GPU's.
TEST_F(GpuCApi, OneSideMayBeOnTheHost) {
  std::vector<std::byte> host = input_;
  nzclBuffer_t buffer = nullptr;
  ASSERT_EQ(nzclCommRegister(comm_, host.data(), host.size(), &buffer), nzclSuccess) << nzclGetLastError();
  allreduce(host.data(), on_.stream());
  EXPECT_EQ(nzclCommDeregister(comm_, buffer), nzclSuccess);
}

/// A stream of nzcl's waits for the caller's, and is the one that the request names.
TEST_F(GpuCApi, AStreamOfNzclsStandsForTheCallers) {
  void *stream = nullptr, *same = nullptr;
  ASSERT_EQ(nzclCommDeviceStream(comm_, in_buffer_, &stream), nzclSuccess) << nzclGetLastError();
  ASSERT_EQ(nzclCommDeviceStream(comm_, out_buffer_, &same), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(stream, same);
  const gpu::Flag written = on_.gpu().take_flag();
  on_.gpu().await(stream, written.device, written.value);
  on_.gpu().raise(on_.stream(), written.device, written.value);
  allreduce(in_, stream);
  std::vector<std::byte> host(64);
  nzclBuffer_t buffer = nullptr;
  ASSERT_EQ(nzclCommRegister(comm_, host.data(), host.size(), &buffer), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(nzclCommDeviceStream(comm_, buffer, &stream), nzclInvalidArgument);
  EXPECT_EQ(nzclCommDeviceStream(comm_, nullptr, &stream), nzclInvalidArgument);
  EXPECT_EQ(nzclCommDeregister(comm_, buffer), nzclSuccess);
}

/// A caller that was compiled when the structure ended before the stream.
TEST_F(GpuCApi, ArgumentsOfTheVersionBeforeHaveTheDefaultStream) {
  on_.gpu().synchronize(on_.stream());
  auto request = args<nzclCollectiveArgs>(in_, &on_);  // no stream, and not read
  request.size = offsetof(nzclCollectiveArgs, stream);
  nzclWork_t work = nullptr;
  ASSERT_EQ(nzclAllGatherEx(&request, comm_, &work), nzclSuccess) << nzclGetLastError();
  check(work);
}

/// A packed result whose size the GPU finds in its own memory.
TEST(GpuSparseCApi, ASparseStreamHasTheCountOfItsResult) {
  nzclUniqueId id;
  nzclComm_t comm = nullptr;
  ASSERT_EQ(nzclGetUniqueId(&id), nzclSuccess) << nzclGetLastError();
  ASSERT_EQ(nzclCommInitRank(&comm, 1, id, 0), nzclSuccess) << nzclGetLastError();
  OnGpu on;
  const std::vector<std::byte> values(3 * 8, std::byte{3});
  const std::vector<std::int32_t> numbers{1, 5, 8};
  std::vector<std::byte> indices(12);
  std::memcpy(indices.data(), numbers.data(), 12);
  constexpr std::size_t kPart = 256;
  std::byte* const memory = on.allocate(5 * kPart);
  on.write(memory, values);
  on.write(memory + kPart, indices);
  nzclBuffer_t buffer = nullptr;
  ASSERT_EQ(nzclCommRegisterDevice(comm, memory, 5 * kPart, &buffer), nzclSuccess) << nzclGetLastError();
  nzclAllReduceSparseArgs args{};
  args.size = sizeof args;
  args.values = memory;
  args.indices = memory + kPart;
  args.index_type = nzclIndexInt32;
  args.index_count = 3;
  args.count = 20;
  args.type = nzclFloat32;
  args.op = nzclSum;
  args.block_elems = 2;
  args.packed_values = memory + 2 * kPart;
  args.packed_indices = memory + 3 * kPart;
  args.packed_capacity = 10;
  args.packed_count = reinterpret_cast<uint64_t*>(memory + 4 * kPart);
  args.stream = on.stream();
  nzclWork_t work = nullptr;
  ASSERT_EQ(nzclAllReduceSparse(&args, comm, &work), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(nzclWorkEnqueueWait(work, on.stream()), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(on.read(memory + 2 * kPart, values.size()), values);
  EXPECT_EQ(on.read(memory + 3 * kPart, indices.size()), indices);
  EXPECT_EQ(on.read(memory + 4 * kPart, 1).front(), std::byte{3});
  EXPECT_EQ(nzclWorkWait(work, -1), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(nzclWorkFree(work), nzclSuccess);
  EXPECT_EQ(nzclCommDeregister(comm, buffer), nzclSuccess);
  EXPECT_EQ(nzclCommDestroy(comm), nzclSuccess);
}

/// A rank alone gets back what its state sends: here, every element that is large enough.
TEST_F(GpuCApi, AStateOnAGpuCompresses) {
  const std::size_t count = input_.size() / sizeof(float);
  const nzclLayer_t layer{count, 0};
  nzclCompressorState_t state = nullptr;
  EXPECT_EQ(nzclCompressorStateCreateOnGpu("threshold:1+asis", &layer, 1, nullptr, &state),
            nzclInvalidArgument);
  EXPECT_STREQ(nzclGetLastError(), "nzclCompressorStateCreateOnGpu: a null pointer was passed");
  ASSERT_EQ(nzclCompressorStateCreateOnGpu("threshold:1e-37+asis", &layer, 1, in_, &state), nzclSuccess)
      << nzclGetLastError();
  nzclWork_t work = nullptr;
  ASSERT_EQ(nzclAllReduceCompressedOnStream(reinterpret_cast<float*>(in_), reinterpret_cast<float*>(out_),
                                            count, nzclSum, state, comm_, on_.stream(), &work),
            nzclSuccess)
      << nzclGetLastError();
  check(work);  // the bytes 0x03 are floats above the threshold
  EXPECT_EQ(nzclCompressorStateDestroy(state), nzclSuccess);
}

}  // namespace
}  // namespace nzcl::test

// Memory of a GPU through the C API.
#include <gtest/gtest.h>

#include <vector>

#include "nzcl/nzcl.h"
#include "tests/system/on_gpu.h"

namespace nzcl::test {
namespace {

TEST(GpuCApi, AStreamWaitsForTheResult) {
  nzclUniqueId id;
  nzclComm_t comm = nullptr;
  ASSERT_EQ(nzclGetUniqueId(&id), nzclSuccess) << nzclGetLastError();
  ASSERT_EQ(nzclCommInitRank(&comm, 1, id, 0), nzclSuccess) << nzclGetLastError();
  OnGpu on;
  const std::vector<std::byte> input(40000, std::byte{3});
  std::byte *const in = on.allocate(input.size()), *const out = on.allocate(input.size());
  on.write(in, input);
  nzclBuffer_t in_buffer = nullptr, out_buffer = nullptr;
  ASSERT_EQ(nzclCommRegisterDevice(comm, in, input.size(), &in_buffer), nzclSuccess) << nzclGetLastError();
  ASSERT_EQ(nzclCommRegisterDevice(comm, out, input.size(), &out_buffer), nzclSuccess) << nzclGetLastError();
  nzclAllReduceArgs args{};
  args.size = sizeof args;
  args.send = in;
  args.recv = out;
  args.count = input.size();
  args.type = nzclUint8;
  args.op = nzclSum;
  args.stream = on.stream();
  nzclWork_t work = nullptr;
  ASSERT_EQ(nzclAllReduceEx(&args, comm, &work), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(nzclWorkEnqueueWait(work, on.stream()), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(on.read(out, input.size()), input);
  EXPECT_EQ(nzclWorkWait(work, -1), nzclSuccess) << nzclGetLastError();
  EXPECT_EQ(nzclWorkFree(work), nzclSuccess);
  EXPECT_EQ(nzclCommDeregister(comm, in_buffer), nzclSuccess);
  EXPECT_EQ(nzclCommDeregister(comm, out_buffer), nzclSuccess);
  EXPECT_EQ(nzclCommDestroy(comm), nzclSuccess);
}

}  // namespace
}  // namespace nzcl::test

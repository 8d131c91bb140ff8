// Broadcast, reduce, reduce-scatter and allgather of memory that the host cannot touch, on emulated GPUs
// whose streams are late: every result is compared with plain sums and copies, bit by bit.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/system/oracle.h"
#include "tests/system/run_on_gpu.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using Ran = std::tuple<Where, DataType>;
class GpuCollectives : public testing::TestWithParam<Ran> {};

TEST_P(GpuCollectives, HaveTheBitsOfPlainSumsAndCopies) {
  const auto& [where, type] = GetParam();
  struct Planned {
    Call call;
    Form form;
    bool in_stream;
  };
  std::vector<Planned> planned;
  unsigned turn = 0;
  for (const Kind kind : kKinds) {
    for (const std::uint64_t block : {1, 16, 256, 9001}) {
      for (const std::uint64_t count : {std::uint64_t{1}, block * 3 - 1, std::uint64_t{30011}}) {
        for (const Sparsity sparsity : kSparsities) {
          const Problem p{.type = type,
                          .op = static_cast<ReduceOp>(turn % kReduceOps),
                          .count = count,
                          .block = block,
                          .sparsity = sparsity,
                          .ranks = where.ranks,
                          .seed = ++turn};
          const int root = static_cast<int>(turn) % where.ranks;
          planned.push_back({make_call(kind, root, p, turn % 5 == 0),
                             static_cast<Form>((turn / 6 + static_cast<unsigned>(type)) % 4), turn % 3 == 0});
        }
      }
    }
  }
  const auto errors = run_ranks(where.setting(), [&](Communicator& c) {
    OnGpu on(static_cast<unsigned>(c.rank()) + 1);
    for (const auto& [call, form, in_stream] : planned) run_collective_on_gpu(c, on, call, form, in_stream);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

constexpr DataType kAllTypes[] = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16,
                                  DataType::int32,   DataType::int64,   DataType::uint8};

std::string name_of_run(const testing::TestParamInfo<Ran>& info) {
  return std::get<0>(info.param).text() + "_" + std::string(nzcl::name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Types, GpuCollectives,
                         testing::Combine(testing::Values(Where{"loopback", 3}),
                                          testing::ValuesIn(kAllTypes)),
                         name_of_run);
INSTANTIATE_TEST_SUITE_P(Places, GpuCollectives,
                         testing::Combine(testing::Values(Where{"loopback", 1}, Where{"loopback", 2},
                                                          Where{"loopback", 4, 0, 2}, Where{"loopback", 3, 2},
                                                          Where{"shm", 3}, Where{"tcp", 3}, Where{"cma", 3}),
                                          testing::Values(DataType::int32)),
                         name_of_run);

}  // namespace
}  // namespace nzcl::test

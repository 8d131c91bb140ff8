// Messages with checksums, of all members or of some: sums are as without, whatever their form.
#include <gtest/gtest.h>

#include "tests/system/oracle.h"
#include "tests/system/run_one.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

class ChecksumTest : public ::testing::TestWithParam<Where> {};

TEST_P(ChecksumTest, SumsAreThoseOfThePlainSum) {
  std::vector<std::pair<Problem, Expected>> problems;
  for (const std::uint64_t count : {1, 255, 4999, 300007}) {
    for (const Sparsity sparsity : kSparsities) {
      for (const std::uint64_t block : {1, 16, 256}) {
        if (block == 1 && count > 5000) continue;
        Problem p{.count = count, .block = block, .sparsity = sparsity, .ranks = GetParam().ranks};
        problems.emplace_back(p, make_expected(p));
      }
    }
  }
  Setting all = GetParam().setting(), one = all;
  all.options.checksum = 1;
  one.change = [](int rank, Options& options) { options.checksum = rank == 1 ? 1 : 0; };
  for (const Setting& setting : {all, one}) {
    const auto errors = run_ranks(setting, [&](Communicator& c) {
      for (const auto& [p, expected] : problems) {
        for (const Form form : {Form::in_place, Form::out_of_place, Form::with_bitmap})
          run_one(c, p, expected, form);
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, ChecksumTest,
                         ::testing::Values(Where{"loopback", 3}, Where{"loopback", 2, 1},
                                           Where{"loopback", 3, 0, 2}, Where{"cma", 3}, Where{"shm", 3},
                                           Where{"tcp", 2}, Where{"libfabric-shm", 2}),
                         [](const auto& p) { return p.param.text(); });

}  // namespace
}  // namespace nzcl::test

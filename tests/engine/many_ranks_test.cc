// What one rank keeps does not grow with the number of ranks. Its objects are made here without any of the
// others.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <ostream>

#include "perf/lane/lone_lane.h"

namespace nzcl::test {
namespace {

/// The memory of this process that is resident, in bytes.
std::size_t resident() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0, pages = 0;
  statm >> all >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

struct Job {
  int ranks = 0, per_host = 0;
  bool readable = false;  // ranks of a host read each other's messages in place
  friend void PrintTo(const Job& job, std::ostream* out) {
    *out << job.ranks << " ranks, " << job.per_host << " per host" << (job.readable ? ", readable" : "");
  }
};

class ManyRanksTest : public testing::TestWithParam<Job> {};

TEST_P(ManyRanksTest, AreKeptIn200MiB) {
  const auto [ranks, per_host, readable] = GetParam();
  const std::size_t before = resident();
  const perf::lane::LoneLane lone(ranks, per_host, {.ordered = true, .readable = readable, .costs = {}});
  const std::size_t beside = resident() - before;
  // A transport that pins the registered memory makes all of it resident.
  EXPECT_LE(lone.device().allocated() + beside, std::size_t{200} << 20)
      << (lone.device().allocated() >> 20) << " MiB of channels, " << (beside >> 20) << " MiB beside";
}

INSTANTIATE_TEST_SUITE_P(Engine, ManyRanksTest,
                         testing::Values(Job{64, 8, false}, Job{128, 8, false}, Job{256, 8, false},
                                         Job{1024, 8, false}, Job{4096, 8, false}, Job{1024, 1024, true},
                                         Job{4096, 4096, true}, Job{4096, 4096, false}));

}  // namespace
}  // namespace nzcl::test

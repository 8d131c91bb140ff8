// The library without its switch exchange: it links, sums, and says what it lacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "nzcl/communicator.h"

namespace nzcl {
namespace {

using ::testing::HasSubstr;

Options with(Algorithm algorithm) {
  Options options;
  options.algorithm = algorithm;
  options.pin = Pinning::off;
  return options;
}

/// Nobody else comes to this meeting, so whoever waited for it would wait for long.
TEST(WithoutSwitch, IsRefusedBeforeAnybodyIsWaitedFor) {
  const LocalGroup group(2, 1);
  const auto expect_refusal = [](auto join) {
    try {
      join();
      FAIL() << "there is no such exchange here";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unsupported);
      EXPECT_THAT(e.what(),
                  HasSubstr("this build of nzcl has no switch exchange: build it with NZCL_SWITCH=ON"));
    }
  };
  expect_refusal([&] { Communicator(group, 0, with(Algorithm::switch_)); });
  expect_refusal([&] { serve_aggregator(group, 0, with(Algorithm::switch_)); });
  expect_refusal([&] { Communicator{with(Algorithm::switch_)}; });
}

TEST(WithoutSwitch, AllElseWorks) {
  const LocalGroup group(2);
  std::vector<std::vector<float>> values(2, std::vector<float>(1000, 1.5f));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Communicator communicator(group, rank, with(Algorithm::automatic));
      auto& own = values[static_cast<std::size_t>(rank)];
      const auto buffer = communicator.register_buffer(own.data(), own.size() * sizeof(float));
      communicator.allreduce({.input = own.data(), .output = own.data(), .count = own.size()}).wait();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& sum : values) EXPECT_EQ(sum, std::vector<float>(1000, 3.0f));
}

}  // namespace
}  // namespace nzcl

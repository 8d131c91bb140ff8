// What a communicator sends, beside what the cost model says that it sends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/plan/exchange_cost.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

struct Case {
  int ranks;
  std::uint64_t block;
  double density;
  std::string text() const {
    return std::to_string(ranks) + " ranks, blocks of " + std::to_string(block) + ", density " +
           std::to_string(density);
  }
};

constexpr std::uint64_t kCount = 4'000'000;

/// The bytes that the rank sent which sent most.
double most_sent(const Case& c, Algorithm algorithm, std::uint64_t count) {
  std::vector<std::uint64_t> sent(static_cast<std::size_t>(c.ranks));
  Setting s{.transport = "shm", .ranks = c.ranks, .options = {}};
  s.options.pin = Pinning::off;
  s.options.log_level = LogLevel::off;
  const auto errors = run_ranks(s, [&](Communicator& communicator) {
    std::vector<float> data(count);
    std::mt19937 random(static_cast<unsigned>(communicator.rank()) + 1);
    std::bernoulli_distribution held(c.density);
    for (std::uint64_t first = 0; first < count; first += c.block) {
      if (held(random))
        std::fill_n(data.begin() + static_cast<std::ptrdiff_t>(first), std::min(c.block, count - first),
                    1.0f);
    }
    const auto registered = communicator.register_buffer(data.data(), count * sizeof(float));
    communicator.barrier();
    const std::uint64_t before = communicator.statistics().bytes_sent;
    communicator
        .allreduce({.input = data.data(),
                    .output = data.data(),
                    .count = count,
                    .block_elems = c.block,
                    .algorithm = algorithm})
        .wait();
    communicator.barrier();
    sent[static_cast<std::size_t>(communicator.rank())] = communicator.statistics().bytes_sent - before;
  });
  for (const auto& e : errors) EXPECT_EQ(e, "") << c.text();
  return static_cast<double>(*std::max_element(sent.begin(), sent.end()));
}

engine::ExchangeCase described(const Case& c, std::uint64_t count, std::uint64_t slices) {
  return {.ranks = c.ranks,
          .owners = c.ranks,
          .elements = count,
          .block_elems = c.block,
          .density = c.density,
          .slices = slices,
          .tiled = slices > 1 && c.block == 1};
}

TEST(PredictedBytes, OfPushAreWhatIsSent) {
  for (const int ranks : {2, 3, 5}) {
    for (const std::uint64_t block : {1, 256}) {
      for (const double density : {1.0, 0.4, 0.1, 0.01, 0.001}) {
        if (density * static_cast<double>(kCount / block) < 1000) continue;  // headers are most of it
        const Case c{ranks, block, density};
        const double predicted = predict_push(described(c, kCount, 1000), {}).sent_bytes;
        EXPECT_NEAR(most_sent(c, Algorithm::push, kCount) / predicted, 1, 0.15) << c.text();
      }
    }
  }
}

TEST(PredictedBytes, OfMergingAreWhatIsSent) {
  for (const int ranks : {2, 3, 4, 5}) {
    for (const double density : {1.0, 0.1, 0.01, 0.001}) {
      const Case c{ranks, 1, density};
      const double predicted = predict_merging(described(c, kCount, 1000), {}).sent_bytes;
      EXPECT_NEAR(most_sent(c, Algorithm::merging, kCount) / predicted, 1, 0.15) << c.text();
    }
  }
}

TEST(PredictedBytes, OfDoublingAreWhatIsSent) {
  for (const int ranks : {3, 4, 5}) {
    const Case c{ranks, 64, 1};
    const double predicted = predict_doubling(described(c, 2000, 1), {}).sent_bytes;
    EXPECT_NEAR(most_sent(c, Algorithm::doubling, 2000) / predicted, 1, 0.15) << c.text();
  }
}

}  // namespace
}  // namespace nzcl::test

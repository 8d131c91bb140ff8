// The loops with which the peers of scripts/compare add streams, against a plain sum. What a peer computes
// wrongly or leaves out would make nzcl look slow beside it.
#include "perf/peers/gather_and_sum.h"
#include "perf/peers/streams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace perf::peers {
namespace {

constexpr std::uint32_t kElements = 40000;  // more than two windows of sum_densely()

std::vector<Pair> random_stream(std::uint32_t seed, double density, std::uint32_t first = 0,
                                std::uint32_t end = kElements) {
  std::mt19937 random(seed);
  std::vector<Pair> pairs;
  for (std::uint32_t i = first; i < end; ++i) {
    const double draw = random() * 0x1p-32;
    if (draw < density) pairs.push_back({i, static_cast<float>(1 + random() % 7)});
  }
  return pairs;
}

std::vector<float> plain_sum(const std::vector<std::vector<Pair>>& streams) {
  std::vector<float> sum(kElements);
  for (const auto& stream : streams) {
    for (const Pair p : stream) sum[p.index] += p.value;
  }
  return sum;
}

std::vector<Pair> pairs_of(const std::vector<float>& dense) {
  std::vector<Pair> pairs;
  for (std::uint32_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != 0) pairs.push_back({i, dense[i]});
  }
  return pairs;
}

bool same(Stream a, const std::vector<Pair>& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

/// Streams of every kind of overlap: none, all, random, one of them empty or far shorter, and one behind the
/// other.
std::vector<std::vector<Pair>> kinds() {
  return {{},
          {{0, 1}},
          {{kElements - 1, 2}},
          random_stream(1, 0.1),
          random_stream(2, 0.1),
          random_stream(3, 1),
          random_stream(4, 0.001),
          random_stream(5, 0.5, 0, kElements / 2),
          random_stream(6, 0.5, kElements / 2)};
}

TEST(PeerStreams, MergingTwoIsTheirPlainSum) {
  const auto all = kinds();
  for (const auto& a : all) {
    for (const auto& b : all) {
      std::vector<Pair> out(a.size() + b.size() + 1, Pair{~0u, -1});
      const std::size_t n = merge(a, b, out.data());
      EXPECT_TRUE(same({out.data(), n}, pairs_of(plain_sum({a, b})))) << a.size() << ' ' << b.size();
      EXPECT_EQ(out.back().index, ~0u) << "written beyond the pairs of both";
    }
  }
}

TEST(PeerStreams, ASumOfManyIsTheirPlainSum) {
  for (std::uint32_t n = 0; n <= 9; ++n) {
    std::vector<std::vector<Pair>> streams;
    std::size_t pairs = 0;
    for (std::uint32_t r = 0; r < n; ++r) {
      streams.push_back(random_stream(10 + r, 0.03 * (r % 4)));
      pairs += streams.back().size();
    }
    std::vector<Pair> out(pairs), scratch(pairs);
    const std::vector<Stream> parts(streams.begin(), streams.end());
    EXPECT_TRUE(same(sum_of(parts, out.data(), scratch.data()), pairs_of(plain_sum(streams)))) << n;
  }
}

TEST(PeerStreams, ADenseSumIsThePlainSumAndEndsWhereItShould) {
  const std::vector<std::vector<Pair>> streams{random_stream(1, 0.4), {}, random_stream(2, 0.01)};
  const auto expected = plain_sum(streams);
  for (const std::uint32_t first : {0u, 17u, 39990u}) {
    std::vector<Stream> parts;
    for (const auto& s : streams) parts.push_back(cut(s, first, kElements));
    std::vector<float> dense(kElements - first + 1, -1);
    sum_densely(parts, {dense.data(), kElements - first}, first);
    EXPECT_TRUE(std::equal(expected.begin() + first, expected.end(), dense.begin())) << first;
    EXPECT_EQ(dense.back(), -1);
  }
}

TEST(PeerStreams, CutAndCollectAreInverse) {
  const auto stream = random_stream(7, 0.2);
  std::vector<float> dense(kElements);
  add_to(dense.data(), stream);
  std::vector<Pair> collected;
  for (std::uint32_t begin = 0; begin < kElements; begin += 9999) {
    const std::uint32_t end = std::min(kElements, begin + 9999);
    std::vector<Pair> pairs(end - begin);
    pairs.resize(collect({dense.data() + begin, end - begin}, begin, pairs.data()));
    EXPECT_TRUE(same(cut(stream, begin, end), pairs));
    collected.insert(collected.end(), pairs.begin(), pairs.end());
  }
  EXPECT_TRUE(same(collected, stream));
}

/// The gathered streams' sum is dense where it is asked for, and where more pairs came than a dense vector is
/// worth.
TEST(PeerStreams, GatheredStreamsAreSummedInEitherForm) {
  for (const double density : {0.0, 0.1, 0.3}) {
    const std::vector<std::vector<Pair>> streams{random_stream(1, density), random_stream(2, density)};
    GatherAndSum two(2, kElements,
                     {.counts =
                          [&](std::size_t own, std::vector<std::size_t>& counts) {
                            EXPECT_EQ(own, streams[0].size());
                            counts = {own, streams[1].size()};
                          },
                      .streams =
                          [&](Stream own, Pair* all, const std::vector<std::size_t>&) {
                            all = std::copy(own.begin(), own.end(), all);
                            std::copy(streams[1].begin(), streams[1].end(), all);
                          }});
    const auto expected = plain_sum(streams);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Vector packed = two.run(streams[0], false);
      EXPECT_EQ(packed.dense(), density == 0.3);
      if (!packed.dense()) {
        EXPECT_TRUE(same(packed.pairs, pairs_of(expected)));
      }
      const Vector dense = two.run(streams[0], true);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), dense.values.begin(), dense.values.end()));
      EXPECT_EQ(two.take_sent_bytes(), 2 * streams[0].size() * sizeof(Pair));
    }
  }
}

}  // namespace
}  // namespace perf::peers

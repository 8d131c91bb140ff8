// nzcl_train: its seeded random numbers, and the mini-batches that are drawn with them.
#include "perf/example_training/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "perf/example_training/batches.h"

namespace train {
namespace {

TEST(TrainRandom, IsSplitMix64) {
  Random random(1234567);  // the reference values that are published with the algorithm
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
}

TEST(TrainRandom, BelowReachesEveryNumberAndNoOther) {
  Random random(5);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.below(7));
  EXPECT_EQ(seen, (std::set<std::uint32_t>{0, 1, 2, 3, 4, 5, 6}));
}

/// Expects the counts of many draws within six standard deviations of their means. The seed is fixed, so that
/// a run cannot fail by chance.
void expect_distribution(const AliasTable& table, const std::vector<double>& weights) {
  constexpr int kDraws = 200000;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int> counts(weights.size());
  Random random(11);
  for (int i = 0; i < kDraws; ++i) ++counts.at(table.draw(random));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double p = weights[i] / sum;
    EXPECT_NEAR(counts[i], kDraws * p, 6 * std::sqrt(kDraws * p * (1 - p)) + 1e-9) << "number " << i;
  }
}

TEST(TrainAliasTable, DrawsByWeight) {
  for (const std::vector<double>& weights :
       {std::vector<double>{1}, {1, 1, 1}, {0, 5, 0, 1}, {1000, 1, 1, 1, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}})
    expect_distribution(AliasTable(weights), weights);
}

TEST(TrainSampler, NegativesFollowThreeQuarterPower) {
  std::string words;
  const std::vector<int> counts = {160, 81, 16, 1};
  for (int i = 0; i < 4; ++i)
    for (int n = 0; n < counts[static_cast<std::size_t>(i)]; ++n)
      words += std::string(2, static_cast<char>('a' + i)) + ' ';
  expect_distribution(negative_table(Vocabulary(words, 1)), {std::pow(160, 0.75), 27, 8, 1});
}

TEST(TrainSampler, KeepsRareWordsAndThinsFrequentOnes) {
  std::string words;
  for (int n = 0; n < 96; ++n) words += "the ";
  const std::vector<float> keep = keep_probabilities(Vocabulary(words + "cat cat cat dog", 1), 0.01);
  EXPECT_FLOAT_EQ(keep[0], static_cast<float>(std::sqrt(0.01 / 0.96) + 0.01 / 0.96));
  EXPECT_FLOAT_EQ(keep[1], static_cast<float>(std::sqrt(1.0 / 3) + 1.0 / 3));
  EXPECT_FLOAT_EQ(keep[2], 1);
}

/// A corpus where each word's number says where the word stands: paragraph * 100 + position.
Corpus numbered(WordId paragraphs, WordId length) {
  Corpus corpus;
  for (WordId p = 0; p < paragraphs; ++p) {
    std::vector<WordId> words(length);
    std::iota(words.begin(), words.end(), p * 100);
    corpus.add(words);
  }
  return corpus;
}

class TrainBatches : public testing::Test {
 protected:
  BatchStream stream(const BatchSettings& settings, std::uint64_t seed) {
    return BatchStream(corpus_, keep_, negatives_, settings, seed);
  }
  Corpus corpus_ = numbered(8, 10);
  std::vector<float> keep_ = std::vector<float>(800, 1.0f);
  AliasTable negatives_ = AliasTable(std::vector<double>(800, 1.0));
};

TEST_F(TrainBatches, ContextsAreTheNeighboursInTheParagraph) {
  BatchStream batches = stream({.words = 80, .window = 3, .negatives = 4}, 1);
  const Batch& batch = batches.next();
  ASSERT_EQ(batch.size(), 80u);
  std::size_t widest = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Example example = batch.example(i);
    EXPECT_EQ(example.negatives.size(), 4u);
    const int centre = static_cast<int>(example.centre);
    int reach = 0;
    for (const WordId word : example.contexts)
      reach = std::max(reach, std::abs(static_cast<int>(word) - centre));
    ASSERT_GE(reach, 1);
    ASSERT_LE(reach, 3);
    std::vector<WordId> expected;
    for (int at = centre - reach; at <= centre + reach; ++at)
      if (at != centre && at >= 0 && at / 100 == centre / 100 && at % 100 < 10)
        expected.push_back(static_cast<WordId>(at));
    EXPECT_THAT(example.contexts, testing::ElementsAreArray(expected));
    widest = std::max(widest, example.contexts.size());
  }
  EXPECT_EQ(widest, 6u);
}

TEST_F(TrainBatches, EveryPassVisitsEveryWordOnceInAnotherOrder) {
  BatchStream batches = stream({.words = 80, .window = 1, .negatives = 1}, 2);
  const std::vector<WordId> first = batches.next().centres, second = batches.next().centres;
  EXPECT_NE(first, second);
  for (const auto& pass : {first, second}) EXPECT_EQ(std::set<WordId>(pass.begin(), pass.end()).size(), 80u);
}

TEST_F(TrainBatches, SameSeedSameBatches) {
  const BatchSettings settings{.words = 33, .window = 5, .negatives = 5};
  BatchStream a = stream(settings, 3), b = stream(settings, 3), c = stream(settings, 4);
  bool other_differs = false;
  for (int i = 0; i < 5; ++i) {
    const Batch &from_a = a.next(), &from_b = b.next();
    EXPECT_EQ(from_a.centres, from_b.centres);
    EXPECT_EQ(from_a.contexts, from_b.contexts);
    EXPECT_EQ(from_a.negatives, from_b.negatives);
    other_differs |= c.next().centres != from_a.centres;
  }
  EXPECT_TRUE(other_differs);
}

TEST_F(TrainBatches, LeavesOutWordsByTheirProbability) {
  for (WordId word = 0; word < 800; word += 2) keep_[word] = 0;  // words with even numbers are never kept
  BatchStream batches = stream({.words = 200, .window = 2, .negatives = 1}, 5);
  const Batch& batch = batches.next();
  for (const WordId word : batch.centres) EXPECT_EQ(word % 2, 1u);
  for (const WordId word : batch.contexts) EXPECT_EQ(word % 2, 1u);
}

TEST_F(TrainBatches, AnEmptyShardIsAnError) {
  corpus_ = {};
  EXPECT_THROW(stream({}, 1), std::runtime_error);
}

}  // namespace
}  // namespace train

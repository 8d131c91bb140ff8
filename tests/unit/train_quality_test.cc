// nzcl_train: the checks of a learned model. They must fail for a bad model.
#include "perf/example_training/quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace train {
namespace {

/// Four words in a plane.
Model model_of_directions() {
  Model model(4, 2, 1);
  model.input.weights = {1, 0, 3, 4, -2, 0, 0.8f, 0.6f};  // cosines to word 0: 1, 0.6, -1, 0.8
  return model;
}

TEST(TrainSimilarity, CosineIgnoresLength) {
  const Similarity similarity(model_of_directions());
  EXPECT_FLOAT_EQ(similarity.cosine(0, 1), 0.6f);
  EXPECT_FLOAT_EQ(similarity.cosine(0, 2), -1);
}

TEST(TrainSimilarity, NearestComesFirstWithoutTheWordItself) {
  const auto near = Similarity(model_of_directions()).nearest(0, 10);
  ASSERT_EQ(near.size(), 3u);
  EXPECT_EQ(near[0].word, 3u);
  EXPECT_EQ(near[1].word, 1u);
  EXPECT_EQ(near[2].word, 2u);
  EXPECT_EQ(Similarity(model_of_directions()).nearest(0, 1).size(), 1u);
}

TEST(TrainSimilarity, RankCountsNearerWords) {
  const Similarity similarity(model_of_directions());
  EXPECT_EQ(similarity.rank(0, 3), 0u);
  EXPECT_EQ(similarity.rank(0, 1), 1u);
  EXPECT_EQ(similarity.rank(0, 2), 2u);
}

const char kSomePairs[] = "gold silver north south red yellow oxygen hydrogen king queen unknown words\n";

TEST(TrainRelatedWords, SeesThatPartnersAreNear) {
  const Vocabulary vocabulary(kSomePairs, 1);
  Model model(vocabulary.size(), 5, 1);
  std::fill(model.input.weights.begin(), model.input.weights.end(), 0.0f);
  const char* pairs[][2] = {
      {"gold", "silver"}, {"north", "south"}, {"red", "yellow"}, {"oxygen", "hydrogen"}, {"king", "queen"}};
  for (std::size_t axis = 0; axis < 5; ++axis)
    for (const char* word : pairs[axis]) model.input.row(*vocabulary.find(word))[axis] = 1;
  const RelatedWords words = related_words(Similarity(model), vocabulary);
  EXPECT_EQ(words.pairs, 5u);
  EXPECT_FLOAT_EQ(static_cast<float>(words.related_cosine), 1);
  EXPECT_FLOAT_EQ(static_cast<float>(words.control_cosine), 0);
  EXPECT_EQ(words.median_rank, 0);
}

TEST(TrainRelatedWords, AnUntrainedModelKnowsNothing) {
  const Vocabulary vocabulary(kSomePairs, 1);
  const Model model(vocabulary.size(), 64, 1);
  const RelatedWords words = related_words(Similarity(model), vocabulary);
  const Quality quality{.initial_loss = 4, .final_loss = 4, .words = words};
  Requirements required = quick_run_requirements();
  required.min_pairs = 5;
  EXPECT_EQ(shortcomings(quality, vocabulary.size(), required).size(), 3u);
}

Quality good() {
  return {.initial_loss = 4.15,
          .final_loss = 2.3,
          .words = {.pairs = 48, .related_cosine = 0.7, .control_cosine = 0.25, .median_rank = 5}};
}

TEST(TrainShortcomings, NoneForAGoodModel) {
  EXPECT_TRUE(shortcomings(good(), 38000, full_run_requirements()).empty());
}

TEST(TrainShortcomings, EachCheckFailsOnItsOwn) {
  Quality loss = good(), cosine = good(), rank = good();
  loss.final_loss = 4;
  cosine.words.control_cosine = 0.65;
  rank.words.median_rank = 19000;
  for (const Quality& quality : {loss, cosine, rank})
    EXPECT_EQ(shortcomings(quality, 38000, full_run_requirements()).size(), 1u);
}

TEST(TrainShortcomings, NotANumberIsNoSuccess) {
  Quality quality = good();
  quality.final_loss = quality.words.related_cosine = quality.words.median_rank =
      std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(shortcomings(quality, 38000, full_run_requirements()).size(), 3u);
}

TEST(TrainShortcomings, ATextWithoutTheWordsIsJudgedByItsLoss) {
  Quality quality = good();
  quality.words = {};
  EXPECT_TRUE(shortcomings(quality, 38000, full_run_requirements()).empty());
  quality.final_loss = quality.initial_loss;
  EXPECT_EQ(shortcomings(quality, 38000, full_run_requirements()).size(), 1u);
}

}  // namespace
}  // namespace train

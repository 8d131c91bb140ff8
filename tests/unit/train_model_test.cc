// nzcl_train: its gradient is compared with finite differences, and its optimizer is tested.
#include "perf/example_training/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "perf/example_training/optimizer.h"

namespace train {
namespace {

constexpr std::size_t kWords = 7;
constexpr std::size_t kDim = 5;

/// Has repeated words, a negative sample that is also a context word and so is left out, another that is the
/// centre word, and no word 6 at all.
Batch small_batch() {
  return {.centres = {0, 3}, .contexts = {1, 2, 1, 0, 4}, .context_ends = {3, 5}, .negatives = {5, 1, 3, 5}};
}

/// Both tables are random. Real training begins with output rows of zero, which would hide errors in the
/// gradient of the input.
Model random_model() {
  Model model(kWords, kDim, 3);
  Random random(4);
  for (Table* table : {&model.input, &model.output})
    for (float& weight : table->weights) weight = static_cast<float>(2 * random.uniform() - 1);
  return model;
}

/// The derivative of the loss by one weight, from central differences.
double slope(Model& model, float& weight, const Batch& batch) {
  constexpr float kStep = 1e-2f;
  const float before = weight;
  weight = before + kStep;
  const double above = model.loss(batch).sum;
  weight = before - kStep;
  const double below = model.loss(batch).sum;
  weight = before;
  return (above - below) / (2 * static_cast<double>(kStep));
}

TEST(TrainModel, GradientIsTheSlopeOfTheLoss) {
  Model model = random_model();
  const Batch batch = small_batch();
  model.add_gradients(batch);
  for (Table* table : {&model.input, &model.output})
    for (std::size_t i = 0; i < table->weights.size(); ++i)
      EXPECT_NEAR(table->gradient[i], slope(model, table->weights[i], batch), 2e-3) << "weight " << i;
}

TEST(TrainModel, LossIsTheFormulaOfTheComment) {
  const Model model = random_model();
  const Batch batch{.centres = {0}, .contexts = {1, 2}, .context_ends = {2}, .negatives = {5}};
  const auto score = [&](WordId u) {
    return std::inner_product(model.input.row(0).begin(), model.input.row(0).end(),
                              model.output.row(u).begin(), 0.0);
  };
  const auto minus_log_logistic = [](double x) { return std::log(1 + std::exp(-x)); };
  const double expected =
      minus_log_logistic(score(1)) + minus_log_logistic(score(2)) + 2 * minus_log_logistic(-score(5));
  EXPECT_NEAR(model.loss(batch).sum, expected, 1e-5);
  EXPECT_EQ(model.loss(batch).pairs, 2u);
}

TEST(TrainModel, AddGradientsReturnsTheLoss) {
  Model model = random_model();
  const double expected = model.loss(small_batch()).mean();
  EXPECT_DOUBLE_EQ(model.add_gradients(small_batch()).mean(), expected);
}

TEST(TrainModel, MarksExactlyTheRowsItTouches) {
  Model model = random_model();
  model.add_gradients(small_batch());
  for (Table* table : {&model.input, &model.output})
    for (std::size_t r = 0; r < kWords; ++r) {
      bool zero = true;
      for (const float g : table->gradient_row(r)) zero &= g == 0;
      EXPECT_EQ((table->touched[0] >> r & 1) == 0, zero) << "row " << r;
    }
  EXPECT_EQ(model.input.touched[0], 0b0001001u);
  EXPECT_EQ(model.output.touched[0], 0b0111111u);
}

TEST(TrainModel, LargeScoresStayFinite) {
  Model model = random_model();
  for (float& weight : model.input.weights) weight = 1e4f;
  for (float& weight : model.output.weights) weight = 1e4f;
  EXPECT_TRUE(std::isfinite(model.add_gradients(small_batch()).sum));
  for (const float g : model.input.gradient) EXPECT_TRUE(std::isfinite(g));
}

TEST(TrainModel, SameSeedSameHashAndOneBitChangesIt) {
  Model a(kWords, kDim, 1), b(kWords, kDim, 1), c(kWords, kDim, 2);
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_NE(a.hash(), c.hash());
  b.output.weights.back() = -b.output.weights.back();  // turns +0 into -0
  EXPECT_NE(a.hash(), b.hash());
}

TEST(TrainOptimizer, StepIsTheFormulaOfTheComment) {
  Table table(1, 2);
  RowAdagrad optimizer(1, 0.5f);
  const std::vector<std::uint64_t> all = {1};
  double w = 0, squares = 0;
  for (const float g : {2.0f, -1.0f, 4.0f}) {
    table.gradient = {g, 0};
    optimizer.apply(table, all, 0.25f);
    squares += g * g / 2;
    w -= 0.25 * 0.5 * g / std::sqrt(squares);
    EXPECT_NEAR(table.weights[0], w, 1e-6);
    EXPECT_EQ(table.weights[1], 0);
    EXPECT_EQ(table.gradient[0], 0);
  }
}

/// Because this holds, a sparse and a dense training run are equal to the last bit.
TEST(TrainOptimizer, AllRowsOrOnlyTheTouchedOnesIsTheSame) {
  Model touched = random_model(), everything = random_model();
  RowAdagrad touched_optimizer(kWords, 0.1f), everything_optimizer(kWords, 0.1f);
  const std::vector<std::uint64_t> all = {(1u << kWords) - 1};
  for (int step = 0; step < 3; ++step) {
    touched.add_gradients(small_batch());
    everything.add_gradients(small_batch());
    touched_optimizer.apply(touched.input, touched.input.touched, 1);
    everything_optimizer.apply(everything.input, all, 1);
    EXPECT_EQ(touched.hash(), everything.hash()) << "step " << step;
  }
}

TEST(TrainOptimizer, LowersTheLoss) {
  Model model(kWords, kDim, 1);
  RowAdagrad input(kWords, 0.1f), output(kWords, 0.1f);
  const double before = model.loss(small_batch()).mean();
  for (int step = 0; step < 200; ++step) {
    model.add_gradients(small_batch());
    input.apply(model.input, model.input.touched, 1);
    output.apply(model.output, model.output.touched, 1);
  }
  EXPECT_LT(model.loss(small_batch()).mean(), before / 2);
}

}  // namespace
}  // namespace train

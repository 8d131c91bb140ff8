// States beside a second implementation in plain loops, and what must hold whatever they select.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "compressor_cases.h"
#include "each_target.h"
#include "nzcl/compress.h"
#include "nzcl/error.h"
#include "perf/plain_compressor.h"

namespace nzcl {
namespace {

using test::normal_values;
using test::on_each_target;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const char* const kCompressors[] = {"adacomp:50",
                                    "adacomp:500",
                                    "adacomp:500:slice",
                                    "adacomp:50+asis",
                                    "adacomp:64+bf16",
                                    "adacomp:500,momentum=0.9",
                                    "topk:0.01",
                                    "topk:0.01:exact",
                                    "topk:0.3:exact+ternary",
                                    "topk:0.02+qsgd:4:64",
                                    "topk:0.01+qsgd:8:512:feedback",
                                    "topk:0.001,warm_up=8",
                                    "topk:0.01:exact,momentum=0.9,clip=3",
                                    "topk:0.01,refresh=2",
                                    "threshold:0.5",
                                    "threshold:0+fp16",
                                    "randomk:0.05",
                                    "randomk:0.05+bf16,seed=3",
                                    "randomk:1",
                                    "blocktopk:0.1:64",
                                    "blocktopk:0.05:500+fp16",
                                    "all",
                                    "qsgd:2",
                                    "qsgd:4:500",
                                    "qsgd:8:1024:feedback",
                                    "all+ternary",
                                    "bf16",
                                    "topk:0.01,residual=0",
                                    "adacomp:500,residual=0,momentum=0.5",
                                    "qsgd:4,residual=0",
                                    "adacomp:500,results=bf16",
                                    "topk:0.02,results=qsgd:8:512,seed=7",
                                    "randomk:0.05,results=qsgd:4:196,residual=0"};

std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> all;
  for (const float v : values) all.push_back(std::bit_cast<std::uint32_t>(std::isnan(v) ? kNan : v));
  return all;
}

/// A gradient with all that is special, different in every step.
std::vector<float> special_values(std::size_t count, unsigned step) {
  auto values = normal_values(count, step);
  const auto put = [&](std::size_t at, std::size_t n, float v) {
    for (std::size_t i = at; i < std::min(count, at + n); ++i) values[i] = v;
  };
  put(100, 300, 0.0f);   // bins of zeros
  put(500, 200, 0.25f);  // constant bins
  put(700, 50, -0.0f);
  put(1000, 600, 3 * std::numeric_limits<float>::denorm_min());
  if (step % 3 == 1) put(20 * step, 1, kNan);
  if (step % 3 == 2) put(70000, 1, -kInfinity);
  if (step == 3) put(0, count, 0.0f);
  if (step == 4) put(0, count / 2, 1e30f);
  return values;
}

std::vector<float> dense(const CompressedGradient& g, std::size_t elements) {
  std::vector<float> all(elements, 0.0f);
  std::int64_t before = -1;
  for (std::size_t i = 0; i < g.indices.size(); ++i) {
    EXPECT_GT(g.indices[i], before);
    before = g.indices[i];
    all[static_cast<std::size_t>(g.indices[i])] = g.values[i];
  }
  return all;
}

class States : public ::testing::TestWithParam<const char*> {};

TEST_P(States, EqualPlainLoopsOnEveryTarget) {
  const Compressor compressor = compressor_from_text(GetParam());
  const bool bins = std::holds_alternative<AdaComp>(compressor.selection);
  const std::vector<Layer> layers{{1000}, {10}, {0}, {70'000, bins ? 60u : 0u}, {5001}, {1}, {60'000}};
  const std::size_t elements = 1000 + 10 + 70'000 + 5001 + 1 + 60'000;
  std::vector<std::vector<std::uint32_t>> sent, residual;
  std::vector<std::vector<float>> gradients;
  perf::PlainCompressor plain(compressor, layers);
  constexpr unsigned kSteps = 12;
  for (unsigned step = 0; step < kSteps; ++step) {
    gradients.push_back(special_values(elements, step));
    sent.push_back(bits(plain.step(gradients[step], 2, 4)));
    residual.push_back(bits(plain.residual()));
  }
  on_each_target([&] {
    CompressorState state(compressor, layers);
    for (unsigned step = 0; step < kSteps; ++step) {
      const auto g = state.compress(gradients[step], 2, 4);
      ASSERT_EQ(bits(dense(g, elements)), sent[step]) << "step " << step;
      if (!compressor.residual) continue;
      ASSERT_EQ(bits(state.residual()), residual[step]) << "step " << step;
    }
  });
}

TEST_P(States, EqualPlainLoopsWhereTheRateChanges) {
  const Compressor compressor = compressor_from_text(GetParam());
  constexpr std::size_t kElements = 70'001;
  CompressorState state(compressor, kElements);
  perf::PlainCompressor plain(compressor, kElements);
  const float rates[] = {0.1f, 0.1f, 0.25f, 0.03f, 1e-4f, 2.0f};
  for (unsigned step = 0; step < 12; ++step) {
    if (step >= 2 && step % 2 == 0) {  // the first two steps are without one
      state.set_rate(rates[step / 2]);
      plain.set_rate(rates[step / 2]);
      EXPECT_EQ(state.rate(), rates[step / 2]);
    }
    const auto gradient = normal_values(kElements, step);
    ASSERT_EQ(bits(dense(state.compress(gradient), kElements)), bits(plain.step(gradient, 0, 1))) << step;
    if (!compressor.residual) continue;
    ASSERT_EQ(bits(state.residual()), bits(plain.residual())) << step;
  }
}

/// Those that keep a residual without momentum or clipping, and feed back what their values are off by.
class ConservingStates : public States {};

const char* const kConserving[] = {"adacomp:50",
                                   "adacomp:500:slice",
                                   "adacomp:50+asis",
                                   "adacomp:64+bf16",
                                   "topk:0.01",
                                   "topk:0.01:exact",
                                   "topk:0.3:exact+ternary",
                                   "topk:0.01+qsgd:8:512:feedback",
                                   "threshold:0.5",
                                   "threshold:0+fp16",
                                   "randomk:0.05+bf16,seed=3",
                                   "randomk:1",
                                   "blocktopk:0.1:64",
                                   "blocktopk:0.05:500+fp16",
                                   "all",
                                   "qsgd:8:1024:feedback",
                                   "all+ternary",
                                   "bf16"};

// Nothing is lost and nothing is invented: what is sent and what stays are, together, what came in.
TEST_P(ConservingStates, SendOrKeepEverything) {
  const Compressor compressor = compressor_from_text(GetParam());
  const bool exactly =
      std::holds_alternative<AsIs>(compressor.values) || std::holds_alternative<Narrow>(compressor.values);
  constexpr std::size_t kElements = 70'001;
  CompressorState state(compressor, kElements);
  for (unsigned step = 0; step < 5; ++step) {
    const auto gradient = normal_values(kElements, step);
    const std::vector<float> before(state.residual().begin(), state.residual().end());
    const auto sent = dense(state.compress(gradient), kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      const float total = before[i] + gradient[i];
      if (exactly) {
        ASSERT_EQ(double{sent[i]} + double{state.residual()[i]}, double{total}) << i;
      } else {
        ASSERT_NEAR(sent[i] + state.residual()[i], total, 1e-6) << i;
      }
    }
  }
}

// What is sent at a rate, and what is kept at it, are together what came in at the rates of its steps.
TEST_P(ConservingStates, SendOrKeepEverythingAtItsRate) {
  const Compressor compressor = compressor_from_text(GetParam());
  constexpr std::size_t kElements = 5'001;
  CompressorState state(compressor, kElements);
  std::vector<double> in(kElements), out(kElements);
  float rate = 1;
  for (unsigned step = 0; step < 20; ++step, rate *= 0.7f) {
    state.set_rate(rate);
    const auto gradient = normal_values(kElements, step);
    const auto sent = dense(state.compress(gradient), kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      in[i] += double{rate} * double{gradient[i]};
      out[i] += double{rate} * double{sent[i]};
      ASSERT_NEAR(in[i], out[i] + double{rate} * double{state.residual()[i]}, 1e-5) << i << ", step " << step;
    }
  }
}

TEST_P(States, ContinueFromACheckpointBitByBit) {
  const Compressor compressor = compressor_from_text(GetParam());
  constexpr std::size_t kElements = 70'001;
  CompressorState one(compressor, kElements), other(compressor, kElements);
  one.set_rate(0.5f);
  for (unsigned step = 0; step < 5; ++step) one.compress(normal_values(kElements, step));
  (void)other.compress(normal_values(kElements, 99));
  const auto saved = one.save();
  other.restore(saved);
  EXPECT_EQ(other.save(), saved);
  for (unsigned step = 5; step < 9; ++step) {
    for (CompressorState* const state : {&one, &other}) state->set_rate(1.0f / static_cast<float>(step));
    const auto a = dense(one.compress(normal_values(kElements, step)), kElements);
    const auto b = dense(other.compress(normal_values(kElements, step)), kElements);
    ASSERT_EQ(bits(a), bits(b)) << step;
    ASSERT_EQ(bits(one.residual()), bits(other.residual())) << step;
  }
  one.reset();
  EXPECT_EQ(one.save(), CompressorState(compressor, kElements).save());
}

TEST_P(States, HaveATextThatGivesTheSame) {
  const Compressor compressor = compressor_from_text(GetParam());
  EXPECT_EQ(to_text(compressor_from_text(to_text(compressor))), to_text(compressor));
}

INSTANTIATE_TEST_SUITE_P(Compressors, States, ::testing::ValuesIn(kCompressors), test::compressor_name);
INSTANTIATE_TEST_SUITE_P(Compressors, ConservingStates, ::testing::ValuesIn(kConserving),
                         test::compressor_name);

// ---- Selections

TEST(TopKState, TakesExactlyTheShareAndTheFirstOfEqualOnes) {
  CompressorState state(compressor_from_text("topk:0.01:exact"), 200'000);
  std::vector<float> gradient(200'000, 0.5f);
  gradient[150'000] = -0.75f;
  const auto g = state.compress(gradient);
  ASSERT_EQ(g.indices.size(), 2000u);
  for (std::size_t i = 0; i + 1 < 2000; ++i) ASSERT_EQ(g.indices[i], static_cast<std::int64_t>(i));
  EXPECT_EQ(g.indices.back(), 150'000);
}

/// The k largest magnitudes but no zeros, of equal ones the first.
std::vector<std::int64_t> largest(std::span<const float> values, std::size_t k) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto magnitude = [&](std::int64_t i) { return std::fabs(values[static_cast<std::size_t>(i)]); };
  std::ranges::stable_sort(order, std::greater(), magnitude);
  order.resize(k);
  std::erase_if(order, [&](std::int64_t i) { return magnitude(i) == 0; });
  std::ranges::sort(order);
  return order;
}

/// Gradients of 600,000 elements, in which a sample of the magnitudes says much, little, or something wrong.
std::vector<std::vector<float>> gradients_to_sample() {
  constexpr std::size_t kElements = 600'000;
  std::vector<std::vector<float>> all(7, std::vector<float>(kElements));
  all[0] = normal_values(kElements, 1);
  for (std::size_t i = 0; i < kElements; ++i) {
    all[1][i] = i % 100 == 0 ? all[0][i] : 0;              // as many as are wanted
    all[2][i] = (i / 3000 == 77 ? 1 : 1e-3f) * all[0][i];  // most of them in a clump
    all[3][i] = std::round(all[0][i] / 4);                 // many equal ones
    all[4][i] = std::round(all[0][i] / 2);                 // more of them than there is room for
    all[5][i] = i / 512 % 100 == 0 ? all[0][i] : 0;        // rows
    if (i % 150 == 0) all[6][i] = all[0][i];               // fewer than are wanted
  }
  return all;
}

TEST(TopKState, TakesExactlyTheLargestWhateverASampleSays) {
  const auto gradients = gradients_to_sample();
  for (std::size_t g = 0; g < gradients.size(); ++g) {
    for (const char* const text : {"topk:0.01:exact", "topk:0.01:exact,residual=0", "topk:0.2:exact",
                                   "topk:0.00001:exact", "topk:0.01:exact,momentum=0.5"}) {
      CompressorState state(compressor_from_text(text), gradients[g].size());
      const auto k = static_cast<std::size_t>(
          std::llround(std::get<TopK>(state.compressor().selection).ratio * 600'000));
      const auto indices = state.compress(gradients[g]).indices;
      ASSERT_TRUE(std::ranges::equal(indices, largest(gradients[g], k))) << text << ", gradient " << g;
    }
  }
}

// Ok-Topk's promise: the number that is sent stays near the ratio while the threshold is only carried over.
TEST(TopKState, StreamsWithinATenthOfTheRatio) {
  for (const double ratio : {0.1, 0.01, 0.001}) {
    Compressor compressor{.selection = TopK{.ratio = ratio, .refresh = 1000}};
    constexpr std::size_t kElements = 300'000;
    CompressorState state(compressor, kElements);
    double wanted = 0, sent = 0;
    for (unsigned step = 0; step < 40; ++step) {
      // Gradients that shrink as training goes on, with layers of different scales.
      auto gradient = normal_values(kElements, step);
      for (std::size_t i = 0; i < kElements; ++i)
        gradient[i] *= (i < kElements / 3 ? 0.1f : 1.0f) / (1.0f + 0.05f * static_cast<float>(step));
      const auto g = state.compress(gradient);
      if (step < 8) continue;  // these are exact
      wanted += ratio * kElements, sent += static_cast<double>(g.indices.size());
      EXPECT_NEAR(static_cast<double>(g.indices.size()), ratio * kElements, 0.35 * ratio * kElements) << step;
    }
    EXPECT_NEAR(sent, wanted, 0.1 * wanted) << ratio;
  }
}

// Most gradients of some layers are equal, for example where an activation is saturated.
TEST(TopKState, StreamsWithinATenthOfTheRatioWhereMostAreEqual) {
  constexpr std::size_t kElements = 300'000;
  for (const char* const text : {"topk:0.01", "topk:0.01,residual=0", "topk:0.01,refresh=1"}) {
    CompressorState state(compressor_from_text(text), kElements);
    std::vector<float> gradient(kElements, 0.5f);
    for (std::size_t i = 0; i < kElements; i += 3) gradient[i] = 1e-3f * static_cast<float>(i % 7);
    for (unsigned step = 0; step < 40; ++step) {
      const auto sent = state.compress(gradient).indices.size();
      EXPECT_NEAR(static_cast<double>(sent), 3000, 300) << text << ", step " << step;
    }
  }
}

TEST(NarrowState, CountsWhatIsBeyondTheRangeOfTheType) {
  for (const auto& [text, beyond] :
       {std::pair{"all+fp16", 1u}, {"topk:0.5:exact+fp16", 1u}, {"all+bf16", 0u}}) {
    CompressorState state(compressor_from_text(text), 4);
    (void)state.compress(std::vector<float>{1e6f, 1, 2, 3});
    EXPECT_EQ(state.report().non_finite, beyond) << text;
  }
}

TEST(RandomKState, DrawsTheSameOnEveryRankAndOthersInEveryStep) {
  const Compressor compressor = compressor_from_text("randomk:0.05");
  CompressorState a(compressor, 100'000), b(compressor, 100'000);
  std::vector<std::int64_t> before;
  for (unsigned step = 0; step < 3; ++step) {
    const auto of_a = a.compress(normal_values(100'000, step), 0).indices;
    const std::vector<std::int64_t> indices(of_a.begin(), of_a.end());
    const auto of_b = b.compress(normal_values(100'000, 50 + step), 1).indices;
    EXPECT_TRUE(std::ranges::equal(indices, of_b));
    EXPECT_NEAR(static_cast<double>(indices.size()), 5000, 5 * std::sqrt(5000.0));
    EXPECT_NE(indices, before);
    before = indices;
  }
}

TEST(AdaCompState, SendsNothingOfZeros) {
  CompressorState state(compressor_from_text("adacomp:50"), 10'000);
  EXPECT_TRUE(state.compress(std::vector<float>(10'000, 0.0f)).indices.empty());
  EXPECT_EQ(state.report().coded_bytes, 0u);
}

TEST(AdaCompState, ReportsWhatItSent) {
  CompressorState state(compressor_from_text("adacomp:500"), 100'000);
  for (unsigned step = 0; step < 3; ++step) (void)state.compress(normal_values(100'000, step));
  const auto g = state.compress(normal_values(100'000, 3));
  const CompressionReport r = state.report();
  EXPECT_EQ(r.steps, 4u);
  EXPECT_EQ(r.elements, 100'000u);
  EXPECT_EQ(r.sent, g.indices.size());
  EXPECT_GT(r.sent_total, r.sent);
  EXPECT_DOUBLE_EQ(r.element_ratio, 100'000.0 / static_cast<double>(r.sent));
  // About the entropy of the positions and a bit for the sign, and a scale of four bytes for each of the two
  // slices.
  const double share = 1 / r.element_ratio;
  const double entropy = -share * std::log2(share) - (1 - share) * std::log2(1 - share);
  EXPECT_NEAR(
      static_cast<double>(r.coded_bytes) / (entropy * 100'000 / 8 + static_cast<double>(r.sent) / 8 + 8), 1,
      0.05);
  EXPECT_EQ(r.scale, std::fabs(g.values[0]));
  double squares = 0;
  for (const float v : state.residual()) squares += double{v} * double{v};
  EXPECT_NEAR(r.residual_norm, std::sqrt(squares), 1e-9 * r.residual_norm);
}

// ---- What is not finite

TEST_P(States, PassOnWhatIsNotFinite) {
  const Compressor compressor = compressor_from_text(GetParam());
  auto gradient = normal_values(70'001, 1);
  gradient[5] = kNan, gradient[66'000] = -kInfinity;
  CompressorState state(compressor, gradient.size());
  const auto sent = dense(state.compress(gradient), gradient.size());
  EXPECT_TRUE(std::isnan(sent[5]));
  EXPECT_FALSE(std::isfinite(sent[66'000]));
  EXPECT_EQ(state.report().non_finite, 2u);
  for (const float v : state.residual()) ASSERT_TRUE(std::isfinite(v));
  // The next step is not touched by it.
  gradient[5] = gradient[66'000] = 0.1f;
  for (const float v : dense(state.compress(gradient), gradient.size())) ASSERT_TRUE(std::isfinite(v));
}

TEST_P(States, RefuseWhatIsNotFiniteIfTold) {
  Compressor compressor = compressor_from_text(GetParam());
  compressor.non_finite = NonFinite::error;
  auto gradient = normal_values(70'001, 1);
  CompressorState state(compressor, gradient.size());
  (void)state.compress(gradient);
  const auto before = state.save();
  gradient[66'000] = kNan;
  try {
    (void)state.compress(gradient);
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(e.what(), HasSubstr("element 66000 of the gradient is nan"));
  }
  EXPECT_EQ(state.save(), before);
}

// ---- Misuse

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "not refused";
}

TEST(CompressorStateRate, IsRefusedOutsideItsRange) {
  CompressorState state(compressor_from_text("topk:0.1"), 100);
  EXPECT_EQ(state.rate(), 0.0f);
  for (const float rate : {-1.0f, 1e-16f, 1e16f, kInfinity, kNan})
    EXPECT_THAT(refusal([&] { state.set_rate(rate); }), HasSubstr("it may be 0, or from 1e-15 to 1e15"))
        << rate;
  EXPECT_EQ(state.rate(), 0.0f);
  constexpr float kRate = 0.5f;
  state.set_rate(kRate);
  EXPECT_EQ(state.rate(), kRate);
  auto saved = state.save();
  constexpr std::size_t kPlaceOfRate = 92;  // in the header
  ASSERT_EQ(std::memcmp(saved.data() + kPlaceOfRate, &kRate, sizeof kRate), 0);
  std::memcpy(saved.data() + kPlaceOfRate, &kInfinity, sizeof kInfinity);
  EXPECT_THAT(refusal([&] { state.restore(saved); }), HasSubstr("its rate is inf"));
  EXPECT_EQ(state.rate(), kRate);
  state.reset();
  EXPECT_EQ(state.rate(), 0.0f);
}

// The first step of a warm-up and the last one of a cosine have a rate of 0.
TEST(CompressorStateRate, OfZeroChangesNothing) {
  CompressorState zero(compressor_from_text("topk:0.1:exact"), 1000),
      without(compressor_from_text("topk:0.1:exact"), 1000);
  const auto step = [&](unsigned seed) {
    const auto gradient = normal_values(1000, seed);
    const auto a = zero.compress(gradient), b = without.compress(gradient);
    EXPECT_EQ(bits(a.values), bits(b.values));
    EXPECT_EQ(bits(zero.residual()), bits(without.residual()));
  };
  for (const float rate : {0.0f, 0.5f, -0.0f, 0.25f, 0.0f}) {
    zero.set_rate(rate);
    if (rate != 0) without.set_rate(rate);
    EXPECT_EQ(zero.rate(), without.rate());
    step(static_cast<unsigned>(100 * rate));
  }
  EXPECT_EQ(zero.rate(), 0.25f);
}

TEST(CompressorStateCount, ThatCannotBeIsRefusedAtOnce) {
  const Compressor topk = compressor_from_text("topk:0.1");
  const auto too_large = HasSubstr("a tensor has at most 1099511627775");
  for (const std::uint64_t count :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 65535, std::uint64_t{1} << 63, std::uint64_t{1} << 40}) {
    EXPECT_THAT(refusal([&] { CompressorState(topk, count); }), too_large) << count;
    EXPECT_THAT(refusal([&] {
                  CompressorState(topk, std::vector<Layer>{{100}, {count}});
                }),
                too_large)
        << count;
  }
  // The sum of the layers would be 100.
  EXPECT_THAT(
      refusal([&] {
        CompressorState(topk, std::vector<Layer>{{std::uint64_t{1} << 63}, {std::uint64_t{1} << 63}, {100}});
      }),
      too_large);
  EXPECT_THAT(refusal([&] {
                CompressorState(topk, std::vector<Layer>{{(std::uint64_t{1} << 40) - 1}, {1}});
              }),
              too_large);
}

TEST(CompressorText, SaysWhatItDoesNotUnderstand) {
  const auto text = [](const char* t) { return refusal([&] { (void)compressor_from_text(t); }); };
  EXPECT_THAT(text(""), HasSubstr("there is no \"\""));
  EXPECT_THAT(text("best"), HasSubstr("there is no \"best\""));
  EXPECT_THAT(text("topk:x"), HasSubstr("\"x\" is no number"));
  EXPECT_THAT(text("topk:2"), HasSubstr("the ratio of TopK is 2; it may be above 0 and at most 1"));
  EXPECT_THAT(text("topk:nan"), HasSubstr("the ratio of TopK is nan"));
  EXPECT_THAT(text("topk:0.1:about"), HasSubstr("\"about\" should be \"exact\""));
  EXPECT_THAT(text("topk:0.1:exact:1"), HasSubstr("\"1\" is too much behind topk"));
  EXPECT_THAT(text("adacomp:2"), HasSubstr("the bin of AdaComp is 2; it may be 4 to 16383 elements"));
  EXPECT_THAT(text("adacomp:-2"), HasSubstr("\"-2\" is no number"));
  EXPECT_THAT(text("topk+lzw"), HasSubstr("there are no values \"lzw\""));
  EXPECT_THAT(text("topk+fp16+bf16"), HasSubstr("more than one +"));
  EXPECT_THAT(text("qsgd:3"), HasSubstr("bits of Qsgd is 3; it may be 2, 4 or 8"));
  EXPECT_THAT(text("threshold"), HasSubstr("threshold needs a value"));
  EXPECT_THAT(text("topk:0.1,momentum=1"), HasSubstr("momentum is 1; it may be 0 or more and below 1"));
  for (const char* const everything : {"all,momentum=0.9", "qsgd:8,momentum=0.9", "fp16,momentum=0.9"})
    EXPECT_THAT(text(everything), HasSubstr("momentum is 0.9; it may be 0 only where every element is sent"));
  EXPECT_THAT(text("adacomp,warm_up=10"), HasSubstr("only for selections that have a ratio"));
  EXPECT_THAT(text("all,speed=9"), HasSubstr("there is no speed here"));
  EXPECT_THAT(text("all,results=ternary"), HasSubstr("results cannot be \"ternary\""));
  EXPECT_THAT(text("all,results=bf16:2"), HasSubstr("\"2\" is too much behind bf16"));
  EXPECT_THAT(text("all,results=qsgd:2"), HasSubstr("bits of results is 2; it may be 4 or 8"));
  EXPECT_THAT(text("all,results=qsgd:4:197"),
              HasSubstr("the bucket of results is 197; it may be 16 to 196 values with 4 bits"));
}

TEST(CompressorStateMisuse, IsRefusedByName) {
  const Compressor topk = compressor_from_text("topk:0.1");
  CompressorState state(topk, 100);
  EXPECT_THAT(refusal([&] { (void)state.compress(std::vector<float>(99)); }),
              HasSubstr("the gradient has 99 elements, and the state was made for 100"));
  EXPECT_THAT(refusal([&] {
                CompressorState(topk, std::vector<Layer>{{100, 50}});
              }),
              HasSubstr("the bin of a layer is 50; it may be set only for AdaComp"));
  auto saved = state.save();
  EXPECT_THAT(refusal([&] { CompressorState(topk, 101).restore(saved); }),
              HasSubstr("its layers are others"));
  EXPECT_THAT(refusal([&] { CompressorState(compressor_from_text("topk:0.2"), 100).restore(saved); }),
              HasSubstr("its compressor is topk:0.1+asis, and not topk:0.2+asis"));
  EXPECT_THAT(refusal([&] { state.restore(std::span(saved).first(90)); }), HasSubstr("it is cut off"));
  saved.push_back({});
  EXPECT_THAT(refusal([&] { state.restore(saved); }), HasSubstr("something follows it"));
  saved[0] = {};
  EXPECT_THAT(refusal([&] { state.restore(saved); }), HasSubstr("it does not begin as one"));
  const CompressorState moved = std::move(state);
  EXPECT_THAT(refusal([&] { (void)state.elements(); }), HasSubstr("it was moved from"));
}

TEST(CompressorStateEmpty, HasNoElements) {
  CompressorState state(compressor_from_text("topk:0.1"), 0);
  EXPECT_TRUE(state.compress({}).indices.empty());
  CompressorState adacomp(compressor_from_text("adacomp"), std::vector<Layer>{});
  EXPECT_TRUE(adacomp.compress({}).indices.empty());
}

}  // namespace
}  // namespace nzcl

// The kernels of selection beside scalar loops, on every instruction set, in memory whose ends are guarded.
#include "runtime/compress/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "compressor_cases.h"
#include "each_target.h"
#include "guarded.h"
#include "runtime/base/bitmap.h"
#include "runtime/base/mix.h"

namespace nzcl::compress {
namespace {

using test::Guarded;
using test::on_each_target;
using Kind = Rule::Kind;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Floats that end where a page ends.
struct GuardedFloats {
  explicit GuardedFloats(const std::vector<float>& values) : memory(values.size() * sizeof(float)) {
    if (!values.empty()) std::memcpy(memory.data(), values.data(), memory.size());
  }
  std::span<float> span() const {
    return {reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float)};
  }
  std::vector<std::uint32_t> bits() const {
    std::vector<std::uint32_t> all;
    for (const float v : span()) all.push_back(std::bit_cast<std::uint32_t>(v));
    return all;
  }
  Guarded memory;
};

struct Inputs {
  std::vector<float> gradient, residual, velocity;
  std::vector<std::uint32_t> ends;
  std::vector<MagnitudeBits> thresholds;
};

/// Ordinary numbers, and now and then zeros, subnormal numbers and what is not finite.
float any_value(std::mt19937& random, bool finite) {
  const int kind = static_cast<int>(random() % 40);
  if (kind == 0) return 0.0f;
  if (kind == 1) return -0.0f;
  if (kind == 2) return static_cast<float>(random() % 100) * std::numeric_limits<float>::denorm_min();
  if (kind == 3 && !finite) return kInfinity;
  if (kind == 4 && !finite) return std::numeric_limits<float>::quiet_NaN();
  if (kind == 5) return 3e38f;
  return static_cast<float>(std::normal_distribution<double>()(random));
}

Inputs make_inputs(std::size_t elements, std::size_t bin, std::mt19937& random) {
  Inputs in;
  for (std::size_t i = 0; i < elements; ++i) {
    in.gradient.push_back(any_value(random, false));
    in.residual.push_back(any_value(random, true));
    in.velocity.push_back(any_value(random, true));
  }
  for (std::size_t at = 0; at < elements; at += bin) {
    const std::size_t end = std::min(elements, at + bin);
    const bool all_zero = random() % 8 == 0;
    for (std::size_t i = at; all_zero && i < end; ++i) in.gradient[i] = in.residual[i] = in.velocity[i] = 0;
    in.ends.push_back(static_cast<std::uint32_t>(end));
    in.thresholds.push_back(
        random() % 8 == 0 ? 0 : std::bit_cast<std::uint32_t>(static_cast<float>(random() % 20) / 10));
  }
  return in;
}

struct Outputs {
  std::vector<std::uint32_t> residual, velocity, values;
  std::vector<std::uint16_t> offsets;
  std::vector<MagnitudeBits> maxima;  // only of AdaComp
  std::size_t lower = 0;
  bool operator==(const Outputs&) const = default;
};

/// NaNs have one form, because sums of two NaNs may give either.
std::uint32_t canonical(float v) {
  return std::bit_cast<std::uint32_t>(std::isnan(v) ? std::numeric_limits<float>::quiet_NaN() : v);
}

MagnitudeBits magnitude(float v) { return std::bit_cast<std::uint32_t>(v) & 0x7fffffff; }

/// x and G of one element.
struct Sums {
  float x, total;
};
Sums sums_of(const Inputs& in, float factor, float momentum, std::size_t i) {
  volatile float product = factor * in.gradient[i];  // volatile, so that no sum is fused with it
  volatile float kept = momentum * in.velocity[i];
  const float x = momentum > 0 ? product + kept : product;
  return {x, in.residual[i] + x};
}

std::vector<MagnitudeBits> naive_maxima(const Inputs& in, float factor, float momentum) {
  std::vector<MagnitudeBits> maxima(in.ends.size());
  for (std::size_t i = 0, bin = 0; i < in.gradient.size(); ++i) {
    while (in.ends[bin] <= i) ++bin;
    const float total = sums_of(in, factor, momentum, i).total;
    if (std::isfinite(total)) maxima[bin] = std::max(maxima[bin], magnitude(total));
  }
  return maxima;
}

/// Without a rule: AdaComp.
Outputs naive(const Inputs& in, float factor, float momentum, const std::optional<Rule>& rule) {
  Outputs out;
  if (!rule) out.maxima = naive_maxima(in, factor, momentum);
  std::size_t bin = 0;
  for (std::size_t i = 0; i < in.gradient.size(); ++i) {
    while (in.ends[bin] <= i) ++bin;
    const auto [x, total] = sums_of(in, factor, momentum, i);
    bool selected = magnitude(total) >= kInfinityBits;
    if (!rule) {
      selected |= total != 0 && magnitude(total + x) >= out.maxima[bin];
    } else if (rule->kind == Kind::threshold) {
      selected |= magnitude(total) >= rule->threshold;
    } else if (rule->kind == Kind::bin_threshold) {
      selected |= total != 0 && magnitude(total) >= in.thresholds[bin];
    } else {
      selected |= hash32(rule->key, static_cast<std::uint32_t>(i)) < rule->draw_below;
    }
    if (rule && rule->lower_threshold != 0) out.lower += magnitude(total) >= rule->lower_threshold ? 1 : 0;
    if (selected) {
      out.offsets.push_back(static_cast<std::uint16_t>(i));
      out.values.push_back(canonical(total));
    }
    out.residual.push_back(selected ? 0 : std::bit_cast<std::uint32_t>(total));
    out.velocity.push_back(momentum > 0 && !selected ? std::bit_cast<std::uint32_t>(x) : 0);
  }
  return out;
}

/// With a rule in calls for so many words each; AdaComp always selects in the whole slice.
Outputs selected(const Inputs& in, float factor, float momentum, std::optional<Rule> rule,
                 std::size_t words) {
  const GuardedFloats gradient(in.gradient), residual(in.residual), velocity(in.velocity);
  const Guarded listed(in.gradient.size() * sizeof(std::uint16_t));
  const std::span offsets(reinterpret_cast<std::uint16_t*>(listed.data()), in.gradient.size());
  const GuardedFloats values(std::vector<float>(in.gradient.size()));
  const SliceData slice{.gradient = gradient.span().data(),
                        .residual = residual.span().data(),
                        .velocity = momentum > 0 ? velocity.span().data() : nullptr,
                        .elements = in.gradient.size(),
                        .factor = factor,
                        .momentum = momentum};
  Outputs out;
  std::size_t count = 0;
  if (!rule) {
    out.maxima.resize(in.ends.size());
    count = select_adacomp(slice, {in.ends}, out.maxima, offsets, values.span()).count;
  } else {
    rule->bins = {in.ends};
    rule->bin_thresholds = in.thresholds;
    const std::size_t all_words = words_for(in.gradient.size());
    for (std::size_t word = 0; word < all_words; word += words) {
      const std::size_t last = std::min(all_words, word + words);
      const Selected some =
          select(slice, *rule, word, last, offsets.subspan(count), values.span().subspan(count));
      count += some.count, out.lower += some.count_lower;
    }
  }
  out.offsets.assign(offsets.begin(), offsets.begin() + static_cast<std::ptrdiff_t>(count));
  for (const float v : values.span().first(count)) out.values.push_back(canonical(v));
  out.residual = residual.bits();
  out.velocity = momentum > 0 ? velocity.bits() : std::vector<std::uint32_t>(in.gradient.size());
  return out;
}

/// What is compared: a rule, or AdaComp, and a name for failures.
struct Selector {
  const char* name;
  std::optional<Rule> rule;
};

const Selector kSelectors[] = {
    {"AdaComp", std::nullopt},
    {"no zeros", Rule{.kind = Kind::threshold, .threshold = 1}},
    {"few, with a lower threshold", Rule{.kind = Kind::threshold,
                                         .threshold = std::bit_cast<std::uint32_t>(1.5f),
                                         .lower_threshold = std::bit_cast<std::uint32_t>(1.2f)}},
    {"many, with a lower threshold", Rule{.kind = Kind::threshold,
                                          .threshold = std::bit_cast<std::uint32_t>(0.5f),
                                          .lower_threshold = std::bit_cast<std::uint32_t>(0.3f)}},
    {"thresholds of bins", Rule{.kind = Kind::bin_threshold}},
    {"an eighth at random", Rule{.kind = Kind::random, .key = 0x123456789abcdef0, .draw_below = 1u << 29}},
    {"all at random", Rule{.kind = Kind::random, .key = 5, .draw_below = std::uint64_t{1} << 32}},
    {"none at random", Rule{.kind = Kind::random, .key = 5, .draw_below = 0}}};

TEST(Select, EqualsAScalarLoop) {
  std::mt19937 random(1);
  for (const std::size_t elements : {1, 2, 15, 16, 17, 63, 64, 65, 127, 500, 1000, 2048, 5003}) {
    for (const std::size_t bin : {4, 50, 64, 500}) {
      const Inputs in = make_inputs(elements, bin, random);
      for (const auto& [name, rule] : kSelectors) {
        for (const auto& [factor, momentum] : {std::pair{1.0f, 0.0f}, {0.3f, 0.0f}, {0.3f, 0.9f}}) {
          const Outputs expected = naive(in, factor, momentum, rule);
          on_each_target([&, name = name, rule = rule, f = factor, m = momentum] {
            for (const std::size_t words : {1000, 3}) {
              ASSERT_EQ(selected(in, f, m, rule, words), expected)
                  << elements << " elements, bins of " << bin << ", " << name << ", factor " << f
                  << ", momentum " << m << ", " << words << " words at a time";
            }
          });
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// A pass goes over to another way of listing where the share of the selected elements changes.
TEST(Select, EqualsAScalarLoopWhereTheShareChanges) {
  std::mt19937 random(7);
  Inputs in = make_inputs(40'000, 500, random);
  for (std::size_t i = 0; i < in.gradient.size(); ++i) {
    const std::size_t part = i / 5000;
    if (part % 2 == 0 && random() % 100 != 0) in.gradient[i] = in.residual[i] = 0;
  }
  for (const auto& [name, rule] : kSelectors) {
    for (const float momentum : {0.0f, 0.9f}) {
      const Outputs expected = naive(in, 0.3f, momentum, rule);
      on_each_target([&, name = name, rule = rule] {
        ASSERT_EQ(selected(in, 0.3f, momentum, rule, 1000), expected) << name << ", momentum " << momentum;
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CountNonFinite, CountsInfinitiesAndNans) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values{1, kInfinity, -0.0f, nan, -kInfinity, 3e38f, -nan};
  EXPECT_EQ(count_non_finite(values), 4u);
  EXPECT_EQ(count_non_finite({}), 0u);
}

TEST(ToSignAndScale, KeepsSignsAndWhatIsNotFinite) {
  std::vector<float> values{1, -2, kInfinity, 0, -0.0f, -kInfinity, -3e38f, 1e-45f};
  to_sign_and_scale(values, 0.5f);
  EXPECT_EQ(values, (std::vector<float>{0.5f, -0.5f, kInfinity, 0.5f, -0.5f, -kInfinity, -0.5f, 0.5f}));
}

TEST(FeedBack, KeepsWhatWasLostAndNothingOfWhatIsNotFinite) {
  for (const std::size_t count : {0, 1, 31, 32, 33, 100}) {
    std::vector<std::uint16_t> offsets;
    std::vector<float> before, sent, residual(3 * count + 1, 7.0f), expected = residual;
    for (std::size_t i = 0; i < count; ++i) {
      offsets.push_back(static_cast<std::uint16_t>(3 * i));
      before.push_back(static_cast<float>(i) + 0.25f);
      sent.push_back(i % 7 == 3 ? kInfinity : static_cast<float>(i));
      expected[3 * i] = i % 7 == 3 ? 0.0f : 0.25f;
    }
    feed_back(offsets, before, sent, residual.data());
    EXPECT_EQ(residual, expected) << count;
  }
}

TEST(BinMaxima, LeaveOutWhatIsNotFinite) {
  std::mt19937 random(2);
  for (const std::size_t elements : {1, 3, 16, 100, 777}) {
    for (const std::size_t bin : {4, 15, 16, 17, 50, 500}) {
      const Inputs in = make_inputs(elements, bin, random);
      const std::vector<MagnitudeBits> expected = naive_maxima(in, 0.7f, 0.9f);
      on_each_target([&] {
        const GuardedFloats gradient(in.gradient), residual(in.residual), velocity(in.velocity);
        const SliceData slice{
            gradient.span().data(), residual.span().data(), velocity.span().data(), elements, 0.7f, 0.9f};
        std::vector<MagnitudeBits> maxima(in.ends.size());
        bin_maxima(slice, {in.ends}, maxima);
        ASSERT_EQ(maxima, expected) << elements << " elements, bins of " << bin;
      });
    }
  }
}

TEST(MagnitudesFrom, AreThoseThatReachTheLeast) {
  std::mt19937 random(3);
  for (const std::size_t elements : {1, 3, 16, 17, 64, 100, 777}) {
    const Inputs in = make_inputs(elements, 50, random);
    for (const float momentum : {0.0f, 0.9f}) {
      for (const float least : {1e-45f, 0.5f, 2.0f, kInfinity}) {
        std::vector<MagnitudeBits> expected;
        for (std::size_t i = 0; i < elements; ++i) {
          const MagnitudeBits m = magnitude(sums_of(in, 0.7f, momentum, i).total);
          if (m >= magnitude(least)) expected.push_back(std::min(m, kInfinityBits + 1));
        }
        on_each_target([&] {
          const GuardedFloats gradient(in.gradient), residual(in.residual), velocity(in.velocity);
          const SliceData slice{.gradient = gradient.span().data(),
                                .residual = residual.span().data(),
                                .velocity = momentum > 0 ? velocity.span().data() : nullptr,
                                .elements = elements,
                                .factor = 0.7f,
                                .momentum = momentum};
          const Guarded memory(elements * sizeof(MagnitudeBits));
          const std::span to(reinterpret_cast<MagnitudeBits*>(memory.data()), elements);
          const std::size_t count = magnitudes_from(slice, magnitude(least), to);
          std::vector<MagnitudeBits> found(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(count));
          for (MagnitudeBits& m : found) m = std::min(m, kInfinityBits + 1);  // NaNs may have any bits
          ASSERT_EQ(found, expected) << elements << " elements, least " << least;
        });
      }
    }
  }
}

TEST(SumOfSquares, HasTheSameBitsOnEveryTarget) {
  for (const std::size_t count : {0, 1, 31, 32, 33, 1000, 4099, 140'001}) {
    const auto values = test::normal_values(count, 3);
    double expected = 0;
    for (std::size_t slice = 0; slice < count; slice += 65536) {
      double of_slice = 0;
      for (std::size_t part = slice; part < std::min(count, slice + 65536); part += 2048) {
        double sums[32] = {}, of_part = 0;
        for (std::size_t i = part; i < std::min(count, part + 2048); ++i) {
          volatile double square = double{values[i]} * double{values[i]};
          sums[i % 32] += square;
        }
        for (const double sum : sums) of_part += sum;
        of_slice += of_part;
      }
      expected += of_slice;
    }
    const GuardedFloats guarded(values);
    on_each_target([&] { ASSERT_EQ(sum_of_squares(guarded.span()), expected) << count; });
  }
}

TEST(FindNonFinite, TellsTheFirst) {
  for (const std::size_t count : {1, 7, 64, 300}) {
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      on_each_target([&] {
        for (std::size_t at = 0; at < count; ++at) {
          std::vector<float> values(count, 3e38f);
          ASSERT_EQ(find_non_finite(GuardedFloats(values).span()), count);
          values[at] = bad, values.back() = bad;
          ASSERT_EQ(find_non_finite(GuardedFloats(values).span()), at);
        }
      });
    }
  }
}

}  // namespace
}  // namespace nzcl::compress

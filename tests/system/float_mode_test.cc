// Programs that change how their threads compute floats: results have the same bits on all ranks all the
// same, and the program finds its threads as it has left them.
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <thread>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/base/plain_floats.h"
#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

#if defined(__x86_64__) || defined(__aarch64__)

constexpr PlainFloats::Mode kUpward =
#if defined(__x86_64__)
    2u << 13;
#else
    1u << 22;
#endif

/// Changes the mode of the thread, which those that it starts inherit.
class OtherMode {
 public:
  explicit OtherMode(PlainFloats::Mode bits) : before_(PlainFloats::mode()) {
    PlainFloats::set_mode(before_ | bits);
  }
  ~OtherMode() { PlainFloats::set_mode(before_); }
  OtherMode(const OtherMode&) = delete;
  OtherMode& operator=(const OtherMode&) = delete;

 private:
  const PlainFloats::Mode before_;
};

constexpr int kRanks = 3;

/// Sums of these are denormal, or are rounded.
float input_of(int rank, std::size_t element) {
  if (element % 2 == 0)
    return std::bit_cast<float>(
        static_cast<std::uint32_t>(0x100 + static_cast<std::size_t>(rank) + element % 512));
  return 1.0f + std::ldexp(static_cast<float>(rank + 1), -23 + rank);
}

/// By rank. To be called on a thread whose mode is the usual one, as the next function.
std::vector<std::vector<float>> all_inputs(std::size_t count) {
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(count));
  for (int r = 0; r < kRanks; ++r) {
    for (std::size_t i = 0; i < count; ++i) inputs[static_cast<std::size_t>(r)][i] = input_of(r, i);
  }
  return inputs;
}

/// Adds in rank order.
std::vector<float> sums_of(const std::vector<std::vector<float>>& inputs) {
  auto sums = inputs.front();
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += inputs[r][i];
  }
  return sums;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Case {
  PlainFloats::Mode bits;
  const char* name;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class FloatMode : public ::testing::TestWithParam<Case> {
 protected:
  /// Runs `body` on every rank. Rank 0 has the other mode, either from the beginning, so that the threads of
  /// its communicator inherit it, or on its own thread only.
  void run(const std::function<void(Communicator&)>& body) {
    for (const bool before : {true, false}) {
      Setting s{.ranks = kRanks, .options = {}};
      s.options.tune.slot_bytes = 16 << 10;
      s.options.pin = Pinning::off;
      s.options.log_level = LogLevel::off;
      LocalGroup group(kRanks);
      std::vector<std::jthread> threads;
      for (int r = 0; r < kRanks; ++r) {
        threads.emplace_back([&, r] {
          std::optional<OtherMode> mode;
          if (r == 0 && before) mode.emplace(GetParam().bits);
          Communicator c(group, r, s.options);
          if (r == 0 && !before) mode.emplace(GetParam().bits);
          const auto own = PlainFloats::mode();
          body(c);
          const auto now = PlainFloats::mode();
          // The program's own arithmetic may have set bits that say which exceptions there were.
          EXPECT_EQ(now & GetParam().bits, own & GetParam().bits) << "rank " << r;
        });
      }
    }
  }
};

TEST_P(FloatMode, DoesNotChangeSums) {
  for (const std::size_t count : {64u, 300000u}) {
    const auto inputs = all_inputs(count);
    const auto expected = sums_of(inputs);
    for (const std::uint64_t block : {1u, 256u}) {
      run([&](Communicator& c) {
        auto data = inputs[static_cast<std::size_t>(c.rank())];
        const auto registered = c.register_buffer(data.data(), count * sizeof(float));
        c.allreduce({.input = data.data(), .output = data.data(), .count = count, .block_elems = block})
            .wait();
        EXPECT_TRUE(same_bits(data, expected)) << "rank " << c.rank() << ", " << count << " in " << block;
      });
    }
  }
}

TEST_P(FloatMode, DoesNotChangeTheSumOfAStreamsDuplicates) {
  constexpr std::size_t kCount = 5000;
  auto inputs = all_inputs(kCount);
  auto twice = inputs;
  for (auto& of_rank : twice) {
    for (float& value : of_rank) value += value;
  }
  const auto expected = sums_of(twice);
  for (auto& of_rank : inputs) {
    const auto again = of_rank;
    of_rank.insert(of_rank.end(), again.begin(), again.end());
  }
  run([&](Communicator& c) {
    auto& values = inputs[static_cast<std::size_t>(c.rank())];
    std::vector<std::int32_t> indices(2 * kCount);
    for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int32_t>(i % kCount);
    std::vector<float> output(kCount);
    const auto in = c.register_buffer(values.data(), values.size() * sizeof(float));
    const auto out = c.register_buffer(output.data(), output.size() * sizeof(float));
    c.allreduce_sparse({.values = values.data(),
                        .indices = indices,
                        .count = kCount,
                        .block_elems = 1,
                        .output = output.data(),
                        .sum_duplicates = true})
        .wait();
    EXPECT_TRUE(same_bits(output, expected)) << "rank " << c.rank();
  });
}

/// What two steps of a state give, where `step` makes a step.
std::vector<float> two_steps(std::size_t count,
                             const std::function<std::vector<float>(CompressorState&)>& step) {
  CompressorState state(compressor_from_text("topk:0.1:exact,momentum=0.5"), count);
  std::vector<float> all;
  for (const float rate : {0.1f, 0.3f}) {
    state.set_rate(rate);
    const auto one = step(state);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::vector<float> compressed(CompressorState& state, const std::vector<float>& gradient) {
  const auto sent = state.compress(gradient);
  std::vector<float> dense(gradient.size());
  for (std::size_t i = 0; i < sent.indices.size(); ++i)
    dense[static_cast<std::size_t>(sent.indices[i])] = sent.values[i];
  return dense;
}

TEST_P(FloatMode, DoesNotChangeWhatACompressorSends) {
  for (const std::size_t count : {64u, 300000u}) {
    // All ranks have the same gradient, so that all send the same. Most of it is denormal.
    std::vector<float> gradient(count);
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = i % 64 == 0 ? input_of(1, i + 1) : input_of(1, i & ~std::size_t{1});
    const auto plain = two_steps(count, [&](CompressorState& s) { return compressed(s, gradient); });
    const auto expected = sums_of({plain, plain, plain});
    run([&](Communicator& c) {
      const auto own = two_steps(count, [&](CompressorState& s) { return compressed(s, gradient); });
      EXPECT_TRUE(same_bits(own, plain)) << "rank " << c.rank() << ", " << count;
      std::vector<float> output(count);
      const auto out = c.register_buffer(output.data(), count * sizeof(float));
      const auto sums = two_steps(count, [&](CompressorState& state) {
        c.allreduce_compressed({.state = &state, .input = gradient.data(), .output = output.data()}).wait();
        return output;
      });
      EXPECT_TRUE(same_bits(sums, expected)) << "rank " << c.rank() << ", " << count;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, FloatMode,
                         ::testing::Values(Case{PlainFloats::kFlushToZero, "FlushToZero"},
                                           Case{kUpward, "Upward"}),
                         [](const auto& i) { return i.param.name; });

TEST(FloatTraps, DoNotCatchWhatNzclComputes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto errors = run_ranks({.ranks = 2, .options = {}}, [](Communicator& c) {
    std::vector<float> data(300000, c.rank() == 0 ? kInfinity : -kInfinity);
    const auto registered = c.register_buffer(data.data(), data.size() * sizeof(float));
    feclearexcept(FE_ALL_EXCEPT);
    const int before = feenableexcept(FE_INVALID | FE_OVERFLOW);
    Work work = c.allreduce({.input = data.data(), .output = data.data(), .count = data.size()});
    work.wait();
    fedisableexcept(FE_ALL_EXCEPT);
    feenableexcept(before);
    EXPECT_TRUE(std::isnan(data.front()) && std::isnan(data.back()));
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

#endif

}  // namespace
}  // namespace nzcl::test

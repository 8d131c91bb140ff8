// Steps that several threads share, beside the same steps of one thread.
#include "runtime/compress/compression_step.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "compressor_cases.h"
#include "nzcl/compress.h"
#include "runtime/compress/whole_tensor.h"

namespace nzcl::compress {
namespace {

/// Five slices, of which the last is short. Layers end within slices.
constexpr std::size_t kElements = 4 * kMostSliceElements + 1001;
const std::vector<Layer> kLayers{{.elements = 70'000}, {.elements = 30}, {.elements = kElements - 70'030}};

std::vector<float> gradient_of(unsigned step) { return test::normal_values(kElements, step); }

std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> all;
  for (const float v : values) all.push_back(std::bit_cast<std::uint32_t>(v));
  return all;
}

/// What is sent of a tensor: the indices of elements, and the bits of their values.
struct Sent {
  std::vector<std::int64_t> indices;
  std::vector<std::uint32_t> values;
  bool operator==(const Sent&) const = default;
};

Sent sent_by(const CompressionStep& step, const TensorState& state) {
  Sent sent;
  for (std::size_t i = 0; i < step.slices(); ++i) {
    const SliceContent content = step.content(i);
    for (const std::uint16_t offset : content.offsets)
      sent.indices.push_back(static_cast<std::int64_t>(state.layout().slices()[i].begin) + offset);
    for (const std::uint32_t value : bits(content.values)) sent.values.push_back(value);
  }
  return sent;
}

/// Threads that call make() for all slices again and again, as scan threads do, from different ones on.
class Helpers {
 public:
  Helpers(CompressionStep& step, std::size_t threads) {
    for (std::size_t first = 0; first < threads; ++first) {
      threads_.emplace_back([this, &step, first] {
        for (std::size_t i = first; !stop_; ++i) {
          step.make(i % step.slices());
          std::this_thread::yield();
        }
      });
    }
  }
  ~Helpers() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

class SharedSteps : public ::testing::TestWithParam<const char*> {};

TEST_P(SharedSteps, SendWhatOneThreadSends) {
  const Compressor compressor = compressor_from_text(GetParam());
  TensorState alone(compressor, kLayers), shared(compressor, kLayers);
  WholeTensor whole;
  CompressionStep step(shared);
  const Helpers helpers(step, 3);
  for (unsigned number = 0; number < 8; ++number) {
    const auto gradient = gradient_of(number);
    const CompressedGradient expected = whole.compress(alone, gradient, 1, 4);
    step.begin(gradient, 1, 4);
    while (step.make_next()) std::this_thread::yield();
    step.end();
    ASSERT_EQ(sent_by(step, shared),
              (Sent{{expected.indices.begin(), expected.indices.end()}, bits(expected.values)}))
        << "step " << number;
    ASSERT_EQ(bits(shared.residual()), bits(alone.residual())) << "step " << number;
    ASSERT_EQ(shared.report().coded_bytes, alone.report().coded_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Compressors, SharedSteps,
                         ::testing::Values("adacomp:50", "adacomp:500", "adacomp:500:slice",
                                           "adacomp:50+asis", "adacomp:500,momentum=0.9",
                                           "adacomp:500,residual=0", "topk:0.01", "topk:0.01:exact+ternary",
                                           "randomk:0.05", "qsgd:4:64:feedback", "all"),
                         test::compressor_name);

/// With the exact scale, what a slice sends depends on all slices.
TEST(CompressionStep, CodesNothingBeforeAllIsSelectedIfTheScaleIsOfLayers) {
  const auto gradient = gradient_of(1);
  for (const bool exact : {true, false}) {
    TensorState state(compressor_from_text(exact ? "adacomp:500" : "adacomp:500:slice"), kLayers);
    CompressionStep step(state);
    step.begin(gradient, 0, 1);
    EXPECT_EQ(state.codes_after_all(), exact);
    for (std::size_t i = 0; i + 1 < step.slices(); ++i) {
      step.make(i);
      EXPECT_EQ(step.ready(i), !exact) << i;
    }
    step.make(0);
    EXPECT_EQ(step.ready(0), !exact);
    step.make(step.slices() - 1);
    step.make(0);
    EXPECT_TRUE(step.ready(0));
    step.end();
    for (std::size_t i = 0; i < step.slices(); ++i) EXPECT_TRUE(step.ready(i));
  }
}

TEST(CompressionStep, ThatIsAbandonedChangesNothing) {
  const auto gradient = gradient_of(1);
  TensorState state(compressor_from_text("adacomp:500"), kLayers);
  CompressionStep step(state);
  step.begin(gradient, 0, 1);
  step.abandon();
  step.make(0);
  EXPECT_FALSE(step.make_next());
  EXPECT_EQ(state.report().steps, 0u);
  EXPECT_EQ(bits(state.residual()), std::vector<std::uint32_t>(kElements, 0u));
}

}  // namespace
}  // namespace nzcl::compress

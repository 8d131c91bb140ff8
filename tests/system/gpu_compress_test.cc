// Compressors whose residual is in memory that the host cannot touch: every result is compared with that of
// states on the host, bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/compress.h"
#include "tests/system/by_hierarchy.h"
#include "tests/system/failing.h"
#include "tests/system/on_gpu.h"
#include "tests/system/ranks.h"
#include "tests/system/where.h"

namespace nzcl::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::vector<float> gradient_at(std::size_t elements, int rank, unsigned step) {
  std::mt19937 random(step * 97 + static_cast<unsigned>(rank));
  std::normal_distribution<float> normal(0, 0.5f);
  std::vector<float> gradient(elements);
  for (float& x : gradient) x = normal(random);
  // A part is zero, as the gradients of rows of an embedding are that were not used. Many are equal, so that
  // not all of them are among the largest.
  for (std::size_t i = elements / 3; i < elements / 2; ++i) gradient[i] = i % 7 == 0 ? -0.0f : 0.0f;
  for (std::size_t i = 3; i < elements; i += step == 1 ? 3 : 37) gradient[i] = i % 2 == 0 ? 1.25f : -1.25f;
  if (step != 2) return gradient;
  for (std::size_t i = 11; i < elements; i += 20'011) gradient[i] = std::numeric_limits<float>::infinity();
  for (std::size_t i = 77; i < elements; i += 30'011) gradient[i] = std::numeric_limits<float>::quiet_NaN();
  return gradient;
}

/// Floats on a GPU, registered.
struct GpuFloats {
  GpuFloats(Communicator& communicator, OnGpu& to, std::size_t elements)
      : on(to), bytes(elements * sizeof(float)), memory(on.allocate(bytes + 64)) {
    registered = communicator.register_buffer(memory, bytes + 64, MemoryKind::device);
  }
  float* data() const { return reinterpret_cast<float*>(memory); }
  void write(const std::vector<float>& from) {
    const auto* const at = reinterpret_cast<const std::byte*>(from.data());
    kept.assign(at, at + bytes);
    on.write(memory, kept);
  }
  std::vector<float> read() {
    const auto found = on.read(memory, bytes);
    std::vector<float> floats(bytes / sizeof(float));
    std::memcpy(floats.data(), found.data(), bytes);
    return floats;
  }
  OnGpu& on;
  std::size_t bytes;
  std::byte* memory;
  std::vector<std::byte> kept;  // until the stream has come to the copy
  RegisteredBuffer registered;
};

long first_different(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return static_cast<long>(i);
  }
  return a.size() == b.size() ? -1 : static_cast<long>(std::min(a.size(), b.size()));
}

enum class Output { on_gpu, in_place, on_host };

/// One step on a GPU. The output's form changes from step to step.
std::vector<float> step_on_gpu(Communicator& communicator, OnGpu& on, CompressorState& state,
                               const std::vector<float>& gradient, ReduceOp op, Output form, bool in_stream) {
  GpuFloats input(communicator, on, gradient.size()), output(communicator, on, gradient.size());
  std::vector<float> host(gradient.size() + 1);
  const auto buffer = communicator.register_buffer(host.data(), host.size() * sizeof(float));
  input.write(gradient);
  GpuFloats& result = form == Output::in_place ? input : output;
  Work work =
      communicator.allreduce_compressed({.state = &state,
                                         .input = input.data(),
                                         .output = form == Output::on_host ? host.data() : result.data(),
                                         .op = op,
                                         .stream = on.stream()});
  if (in_stream) {
    work.enqueue_wait(on.stream());
    on.gpu().synchronize(on.stream());
  } else {
    work.wait();
  }
  auto found = result.read();
  work.wait();
  if (form != Output::on_host) return found;
  host.pop_back();
  return host;
}

/// What the steps of one rank have come to.
struct Course {
  std::vector<std::vector<float>> results;
  std::vector<std::byte> saved;
  CompressionReport report;
};

/// Steps of a state, which is on a GPU or not. The residual is kept in units of a rate.
Course run_steps(Communicator& communicator, CompressorState& state, std::size_t elements, ReduceOp op,
                 unsigned steps, OnGpu* on) {
  Course course;
  std::vector<float> result(elements);
  const auto buffer = communicator.register_buffer(result.data(), elements * sizeof(float));
  for (unsigned step = 0; step < steps; ++step) {
    const auto gradient = gradient_at(elements, communicator.rank(), step);
    if (step >= 3) state.set_rate(step == 3 ? 0.1f : 0.03f);
    if (on != nullptr) {
      result =
          step_on_gpu(communicator, *on, state, gradient, op, static_cast<Output>(step % 3), step % 2 == 1);
    } else {
      communicator
          .allreduce_compressed(
              {.state = &state, .input = gradient.data(), .output = result.data(), .op = op})
          .wait();
    }
    course.results.push_back(result);
  }
  course.saved = state.save();
  course.report = state.report();
  return course;
}

/// Steps with states on the host, and the same steps with those of all ranks, or of some, on a GPU.
void compare_steps(const Setting& setting, const char* text, const std::vector<Layer>& layers, ReduceOp op,
                   bool mixed, unsigned steps = 5) {
  SCOPED_TRACE(text);
  std::size_t elements = 0;
  for (const Layer& layer : layers) elements += layer.elements;
  const Compressor compressor = compressor_from_text(text);
  std::vector<Course> expected(static_cast<std::size_t>(setting.ranks));
  auto errors = run_ranks(setting, [&](Communicator& communicator) {
    CompressorState state(compressor, layers);
    expected[static_cast<std::size_t>(communicator.rank())] =
        run_steps(communicator, state, elements, op, steps, nullptr);
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  errors = run_ranks(setting, [&](Communicator& communicator) {
    OnGpu on(static_cast<unsigned>(communicator.rank()) + 1);
    const bool uses_gpu = !mixed || communicator.rank() % 2 == 0;
    CompressorState state = uses_gpu ? CompressorState(compressor, layers, GpuOf{on.allocate(4)})
                                     : CompressorState(compressor, layers);
    const Course course = run_steps(communicator, state, elements, op, steps, uses_gpu ? &on : nullptr);
    const Course& host = expected[static_cast<std::size_t>(communicator.rank())];
    for (unsigned step = 0; step < steps; ++step)
      EXPECT_EQ(first_different(course.results[step], host.results[step]), -1) << "step " << step;
    EXPECT_EQ(course.saved, host.saved);
    EXPECT_EQ(course.report.steps, host.report.steps);
    EXPECT_EQ(course.report.sent, host.report.sent);
    EXPECT_EQ(course.report.sent_total, host.report.sent_total);
    EXPECT_EQ(course.report.coded_bytes, host.report.coded_bytes);
    EXPECT_EQ(course.report.residual_norm, host.report.residual_norm);
    EXPECT_EQ(course.report.non_finite, host.report.non_finite);
    EXPECT_EQ(course.report.threshold, host.report.threshold);
    EXPECT_EQ(course.report.scale, host.report.scale);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

const std::vector<Layer> kLayers{{100'000}, {1}, {40'000}};

class GpuCompressed : public testing::TestWithParam<const char*> {};

TEST_P(GpuCompressed, GivesWhatHostsGive) {
  for (const int ranks : {1, 2, 3})
    compare_steps({.ranks = ranks, .options = {}}, GetParam(), kLayers,
                  ranks == 2 ? ReduceOp::avg : ReduceOp::sum, false);
}

TEST_P(GpuCompressed, TogetherWithHosts) {
  compare_steps({.ranks = 3, .options = {}}, GetParam(), kLayers, ReduceOp::sum, true);
}

TEST_P(GpuCompressed, OfSmallTensors) {
  for (const std::uint64_t elements : {1, 100, 3000})
    compare_steps({.ranks = 2, .options = {}}, GetParam(), {{elements}}, ReduceOp::sum, elements == 100);
}

INSTANTIATE_TEST_SUITE_P(
    Compressors, GpuCompressed,
    testing::Values("adacomp:500+asis", "adacomp:50+asis,momentum=0.9", "adacomp:500+asis,results=bf16",
                    "adacomp:500", "adacomp:300:slice,momentum=0.5", "adacomp:300+qsgd:8",
                    "threshold:0.7+asis", "threshold:0.9+qsgd:4,momentum=0.5",
                    "threshold:0.9+qsgd:8:64:feedback", "threshold:0.9+ternary",
                    "threshold:0.7+bf16,residual=0,momentum=0.9", "topk:0.01", "topk:0.02:exact,momentum=0.9",
                    "topk:0.5:exact", "topk:0.01+ternary,clip=3", "topk:0.02+fp16,results=qsgd:8",
                    "randomk:0.05", "randomk:0.03+bf16,momentum=0.5,warm_up=8", "randomk:0.05,residual=0",
                    "blocktopk:0.05:64", "blocktopk:0.2:50+ternary,momentum=0.9,clip=0.5", "all", "bf16",
                    "qsgd:4:128,clip=2"),
    [](const auto& run) { return "Number" + std::to_string(run.index); });

class GpuCompressedPlaces : public testing::TestWithParam<Where> {};

TEST_P(GpuCompressedPlaces, GiveWhatHostsGive) {
  for (const char* text : {"adacomp:500+asis", "threshold:0.7+qsgd:4"})
    compare_steps(GetParam().setting(), text, kLayers, ReduceOp::sum, false);
}

INSTANTIATE_TEST_SUITE_P(Places, GpuCompressedPlaces,
                         testing::Values(Where{"loopback", 4, 0, 2}, Where{"loopback", 2, 1}, Where{"shm", 2},
                                         Where{"cma", 3}, Where{"tcp", 2}),
                         [](const auto& run) { return run.param.text(); });

/// In two levels, what is selected is a list that others exchange.
TEST(GpuCompressedInAHierarchy, GivesWhatHostsGive) {
  for (const char* text : {"adacomp:500", "topk:0.02+fp16,results=bf16", "randomk:0.05", "all"}) {
    for (const std::uint64_t elements : {100, 140'001})
      compare_steps(by_hierarchy({5, 2}), text, {{elements}}, ReduceOp::avg, elements == 100);
  }
}

/// In the first steps a top-k looks for its threshold, and then it corrects that of the step before.
TEST(GpuTopK, CarriesItsThresholdAsHostsDo) {
  for (const char* text :
       {"topk:0.01", "topk:0.001,momentum=0.9", "topk:0.01,warm_up=12", "topk:0.02,refresh=3"})
    compare_steps({.ranks = 2, .options = {}}, text, {{150'001}}, ReduceOp::sum, true, 20);
}

/// Tensors that are all zeros, all alike, or all broken.
TEST(GpuTopK, OfWhatHasNoLargest) {
  constexpr std::size_t kElements = 140'000;
  constexpr float kBroken = std::numeric_limits<float>::quiet_NaN();
  for (const char* text : {"topk:0.01", "topk:0.3:exact", "blocktopk:0.01", "blocktopk:0.3:64"}) {
    SCOPED_TRACE(text);
    const auto errors = run_ranks({.ranks = 1, .options = {}}, [&](Communicator& communicator) {
      OnGpu on;
      const Compressor compressor = compressor_from_text(text);
      CompressorState there(compressor, kElements, GpuOf{on.allocate(4)}), here(compressor, kElements);
      for (const float all : {0.0f, -2.0f, kBroken, 1e-40f}) {
        const std::vector<float> gradient(kElements, all);
        const auto sent =
            step_on_gpu(communicator, on, there, gradient, ReduceOp::sum, Output::on_gpu, false);
        std::vector<float> expected(kElements);
        const CompressedGradient on_host = here.compress(gradient);
        for (std::size_t i = 0; i < on_host.indices.size(); ++i)
          expected[static_cast<std::size_t>(on_host.indices[i])] += on_host.values[i];
        EXPECT_EQ(first_different(sent, expected), -1) << all;
        EXPECT_EQ(there.save(), here.save()) << all;
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

/// A state can go on where another one was saved, on a GPU or not.
TEST(GpuCompress, SavedStatesGoOnAnywhere) {
  for (const char* text : {"adacomp:500+asis,momentum=0.9", "adacomp:500", "topk:0.02+fp16",
                           "blocktopk:0.1:64+ternary", "randomk:0.1"}) {
    SCOPED_TRACE(text);
    const Compressor compressor = compressor_from_text(text);
    const auto errors = run_ranks({.ranks = 1, .options = {}}, [&](Communicator& communicator) {
      constexpr std::size_t kElements = 70'000;
      OnGpu on;
      const GpuOf there{on.allocate(4)};
      CompressorState first(compressor, kElements, there), second(compressor, kElements, there),
          host(compressor, kElements);
      const auto run = [&](CompressorState& state, unsigned step) {
        return step_on_gpu(communicator, on, state, gradient_at(kElements, 0, step), ReduceOp::sum,
                           Output::on_gpu, false);
      };
      run(first, 0);
      run(first, 1);
      const auto saved = first.save();
      second.restore(saved);
      host.restore(saved);
      EXPECT_EQ(second.save(), saved);
      const auto expected = run(first, 2);
      EXPECT_EQ(first_different(run(second, 2), expected), -1);
      host.compress(gradient_at(kElements, 0, 2));
      EXPECT_EQ(host.save(), first.save());
      second.restore(host.save());
      EXPECT_EQ(first_different(run(second, 3), run(first, 3)), -1);
      first.reset();
      CompressorState fresh(compressor, kElements);
      EXPECT_EQ(first.save(), fresh.save());
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

// --- What goes wrong

TEST(GpuCompressErrors, WhatItDoesNotTakeIsNamed) {
  OnGpu on;
  const GpuOf there{on.allocate(4)};
  const Error error =
      thrown_by([&] { CompressorState(compressor_from_text("topk:0.01,error=1"), 100, there); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_THAT(error.what(), HasSubstr("NonFinite::error"));
  CompressorState state(compressor_from_text("topk:0.01"), 100, there);
  const std::vector<float> gradient(100);
  EXPECT_EQ(thrown_by([&] { state.compress(gradient); }).code(), ErrorCode::unsupported);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(state.residual()); }).code(), ErrorCode::unsupported);
}

TEST(GpuCompressErrors, MemoryElsewhereIsRefused) {
  Setting setting{.ranks = 2, .options = {}};
  setting.options.log_level = LogLevel::off;
  const auto errors = run_ranks(setting, [&](Communicator& communicator) {
    OnGpu on, second;
    constexpr std::size_t kElements = 100'000;
    GpuFloats here(communicator, on, kElements), elsewhere(communicator, second, kElements);
    std::vector<float> host(kElements);
    const auto buffer = communicator.register_buffer(host.data(), kElements * sizeof(float));
    CompressorState state(compressor_from_text("adacomp:500+asis"), kElements, GpuOf{here.data()});
    CompressorState on_host(compressor_from_text("adacomp:500+asis"), kElements);
    const auto refused = [&](CompressedAllreduceRequest request, const char* text) {
      EXPECT_THAT(thrown_by([&] { static_cast<void>(communicator.allreduce_compressed(request)); }).what(),
                  HasSubstr(text));
      here.write(gradient_at(kElements, communicator.rank(), 1));
      communicator
          .allreduce_compressed(
              {.state = &state, .input = here.data(), .output = host.data(), .stream = on.stream()})
          .wait();
    };
    refused({.state = &state, .input = elsewhere.data(), .output = host.data()},
            "input is not on the GPU of the state");
    refused({.state = &state, .input = host.data(), .output = host.data()},
            "input is not on the GPU of the state");
    refused({.state = &state, .input = here.data(), .output = elsewhere.data()}, "must be on the same GPU");
    refused({.state = &on_host, .input = here.data(), .output = host.data()}, "input is memory of");
    refused({.state = &on_host, .input = host.data(), .output = host.data(), .stream = on.stream()},
            "a stream is given");
    // ThreadSanitizer does not see by what report() knows that the steps are over.
    on.gpu().synchronize(on.stream());
    EXPECT_EQ(state.report().steps, 5u);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuCompressErrors, AStreamThatDoesNotComeKeepsTheState) {
  Setting setting{.ranks = 2, .options = {}};
  setting.options.log_level = LogLevel::off;
  setting.options.timeout_s = 0.3;
  const auto errors = run_ranks(setting, [&](Communicator& communicator) {
    OnGpu on;
    constexpr std::size_t kElements = 100'000;
    GpuFloats input(communicator, on, kElements), output(communicator, on, kElements);
    input.write(gradient_at(kElements, communicator.rank(), 1));
    CompressorState state(compressor_from_text("adacomp:500+asis"), kElements, GpuOf{input.data()});
    const gpu::Flag flag = on.gpu().take_flag();
    if (communicator.rank() == 0) on.gpu().await(on.stream(), flag.device, flag.value);
    Work work = communicator.allreduce_compressed(
        {.state = &state, .input = input.data(), .output = output.data(), .stream = on.stream()});
    EXPECT_EQ(thrown_by([&] { work.wait(); }).code(), ErrorCode::timeout);
    if (communicator.rank() == 0) {
      EXPECT_THAT(thrown_by([&] { static_cast<void>(state.save()); }).what(),
                  HasSubstr("the stream has not come"));
    }
    communicator.close();
    flag.raise_here();
    on.gpu().synchronize(on.stream());
    EXPECT_NO_THROW(static_cast<void>(state.save()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GpuCompressErrors, AbortReleasesTheStreams) {
  Setting setting{.ranks = 3, .options = {}};
  setting.options.log_level = LogLevel::off;
  const auto errors = run_ranks(setting, [&](Communicator& communicator) {
    OnGpu on;
    constexpr std::size_t kElements = 100'000;
    GpuFloats input(communicator, on, kElements), output(communicator, on, kElements);
    input.write(gradient_at(kElements, communicator.rank(), 1));
    CompressorState state(compressor_from_text("threshold:0.5"), kElements, GpuOf{input.data()});
    if (communicator.rank() == 2) {
      std::this_thread::sleep_for(50ms);
      return communicator.abort("enough");
    }
    Work work = communicator.allreduce_compressed(
        {.state = &state, .input = input.data(), .output = output.data(), .stream = on.stream()});
    work.enqueue_wait(on.stream());
    on.gpu().synchronize(on.stream());
    EXPECT_THAT(thrown_by([&] { work.wait(); }).what(), HasSubstr("enough"));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace nzcl::test

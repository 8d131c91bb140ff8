// Steps of compression allocate nothing once they have warmed up. This program counts what it allocates.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "compressor_cases.h"
#include "nzcl/compress.h"
#include "runtime/comm/compressed/coded_results.h"
#include "runtime/compress/compression_step.h"

namespace {

std::atomic<std::uint64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;  // as aligned_alloc() wants it
  if (void* const memory = std::aligned_alloc(alignment, whole)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace nzcl {
namespace {

constexpr std::size_t kElements = 200'001;
constexpr int kWarmUp = 3, kSteps = 12;

/// How many times `step` allocates, after it has been done some times.
template <typename Step>
std::uint64_t allocations_of(Step step) {
  std::uint64_t before = 0;
  for (int i = 0; i < kWarmUp + kSteps; ++i) {
    if (i == kWarmUp) before = allocations;
    step(i);
  }
  return allocations - before;
}

class Allocations : public ::testing::TestWithParam<const char*> {};

TEST_P(Allocations, OfStepsAreNone) {
  const Compressor compressor = compressor_from_text(GetParam());
  const auto values = test::normal_values(kElements + kWarmUp + kSteps, 1);
  const auto gradient = [&](int step) {
    return std::span(values).subspan(static_cast<std::size_t>(step), kElements);
  };
  CompressorState whole(compressor, kElements);
  EXPECT_EQ(allocations_of([&](int i) { (void)whole.compress(gradient(i)); }), 0u);

  const Layer layer{.elements = kElements};
  compress::TensorState state(compressor, {&layer, 1});
  compress::CompressionStep step(state);
  EXPECT_EQ(allocations_of([&](int i) {
              step.begin(gradient(i), 0, 1);
              step.make(0);  // as another thread does
              step.end();
            }),
            0u);
}

INSTANTIATE_TEST_SUITE_P(Compressors, Allocations,
                         ::testing::Values("adacomp:50", "adacomp:500:slice", "adacomp:500,momentum=0.9",
                                           "topk:0.01", "topk:0.01,refresh=2", "topk:0.01:exact",
                                           "threshold:1", "randomk:0.02", "blocktopk:0.05:64", "all",
                                           "qsgd:4", "qsgd:8:64:feedback", "topk:0.02+qsgd:2", "fp16", "bf16",
                                           "all+ternary", "topk:0.1,clip=1,warm_up=8",
                                           "topk:0.01,residual=0,error=1"),
                         test::compressor_name);

TEST(AllocationsOfResults, AreNone) {
  for (const char* text : {"all,results=bf16", "all,results=fp16", "all,results=qsgd:8"}) {
    const Layer layer{.elements = kElements};
    compress::TensorState state(compressor_from_text(text), {&layer, 1});
    comm::CodedResults coder(state);
    const auto values = test::normal_values(1000, 1);
    std::vector<float> sums(values.size()), spare(values.size());
    std::vector<std::uint16_t> offsets(values.size());
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::uint16_t>(7 * i);
    std::vector<std::byte> coded(coder.bytes(values.size()));
    EXPECT_EQ(allocations_of([&](int) {
                std::ranges::copy(values, sums.begin());
                coder.code({.begin = 65536, .offsets = offsets, .sums = sums, .spare = spare}, coded.data());
              }),
              0u)
        << text;
  }
}

TEST(AllocationsOfThisProgram, AreCounted) {
  const std::uint64_t before = allocations;
  const std::vector<int> one(1);
  EXPECT_EQ(allocations, before + one.size());
}

}  // namespace
}  // namespace nzcl

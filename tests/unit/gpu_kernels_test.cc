// The kernels of a GPU: every unit, block size, cut and offset, against plain loops over the same bytes. They
// run on an emulated GPU, and with DEVICE_CHECK=1 in the environment on the first one of CUDA's
// (scripts/device-check).
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/base/bitmap.h"
#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/emulated/emulated_gpu.h"

namespace nzcl::gpu {
namespace {

std::shared_ptr<Gpu> tested_gpu() {
  if (std::getenv("DEVICE_CHECK") != nullptr) return CudaGpu::number(CudaDriver::open(), 0);
  return EmulatedGpu::make(7);
}

struct Fixture {
  std::shared_ptr<Gpu> gpu = tested_gpu();
  Stream stream = gpu->make_stream();
};

struct Case {
  Shape shape;
  std::size_t offset;  // of the tensor in its memory, in bytes
  int percent;         // of the blocks are not zero
  std::string text() const {
    return "bytes " + std::to_string(shape.bytes) + " block " + std::to_string(shape.block_bytes) +
           " slice " + std::to_string(shape.slice_blocks) + " offset " + std::to_string(offset) +
           " percent " + std::to_string(percent);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::size_t offset : {0, 1, 2, 4, 8, 16}) {
    for (const std::uint64_t block : {1, 2, 4, 24, 64, 1024, 4096, 12288, 65536}) {
      for (const std::uint64_t slice : {1, 3, 64, 100}) {
        for (const std::uint64_t bytes :
             {block, block * slice, block * slice * 2 + block / 2 + 1, block * slice * 3}) {
          if (bytes > 1 << 20 || (block > 64 && offset % 4 != 0)) continue;
          for (const int percent : {0, 30, 100})
            all.push_back({{.bytes = bytes, .block_bytes = block, .slice_blocks = slice}, offset, percent});
        }
      }
    }
  }
  return all;
}

/// A tensor with one bit set in each block that is not zero, at a random place, or the sign of -0.0.
std::vector<std::byte> make_tensor(const Case& c, std::mt19937& random) {
  std::vector<std::byte> tensor(c.shape.bytes);
  for (std::uint64_t b = 0; b < c.shape.blocks(); ++b) {
    if (static_cast<int>(random() % 100) >= c.percent) continue;
    const std::uint64_t begin = b * c.shape.block_bytes;
    const std::uint64_t n = std::min(c.shape.block_bytes, c.shape.bytes - begin);
    tensor[begin + random() % n] = std::byte{0x80};
  }
  return tensor;
}

bool block_is_zero(const Case& c, const std::vector<std::byte>& tensor, std::uint64_t b) {
  const std::uint64_t begin = b * c.shape.block_bytes;
  const std::uint64_t end = std::min(begin + c.shape.block_bytes, c.shape.bytes);
  return std::all_of(tensor.begin() + static_cast<std::ptrdiff_t>(begin),
                     tensor.begin() + static_cast<std::ptrdiff_t>(end),
                     [](std::byte x) { return x == std::byte{0}; });
}

TEST(GpuKernels, PackedBlocksAndBitsAreThoseOfPlainLoops) {
  Fixture f;
  std::mt19937 random(3);
  std::uint32_t use = 0;
  const auto everything = cases();
  ASSERT_GT(everything.size(), 500u);
  constexpr std::size_t kRoom = (1 << 20) + 64;
  std::byte* const memory = f.gpu->allocate(kRoom);
  const PinnedMemory packed = f.gpu->pin(kRoom);
  const PinnedMemory bits = f.gpu->pin(8 << 20);
  const PinnedMemory flags = f.gpu->pin(4 << 20);
  for (std::size_t i = 0; i < everything.size(); i += 1 + i % 3) {
    const Case& c = everything[i];
    const auto tensor = make_tensor(c, random);
    f.gpu->copy(f.stream, memory + c.offset, tensor.data(), tensor.size());
    auto* const words = reinterpret_cast<std::uint64_t*>(bits.host);
    auto* const raised = reinterpret_cast<std::uint32_t*>(flags.host);
    std::memset(packed.host, 0x5a, c.shape.bytes + 64);
    f.gpu->pack(f.stream, {.shape = c.shape,
                           .tensor = memory + c.offset,
                           .packed = packed.device,
                           .bits = bits.seen(words),
                           .flags = flags.seen(raised),
                           .value = ++use});
    f.gpu->synchronize(f.stream);
    for (std::uint64_t s = 0; s < c.shape.slices(); ++s) {
      ASSERT_EQ(raised[s], use) << c.text();
      std::uint64_t at = s * c.shape.slice_blocks * c.shape.block_bytes;
      const std::uint64_t end = std::min(c.shape.blocks(), (s + 1) * c.shape.slice_blocks);
      for (std::uint64_t b = s * c.shape.slice_blocks; b < end; ++b) {
        const std::uint64_t in_slice = b - s * c.shape.slice_blocks;
        const std::span slice_words(words + s * c.shape.words_per_slice(), c.shape.words_per_slice());
        ASSERT_EQ(test_bit(slice_words, in_slice), !block_is_zero(c, tensor, b)) << c.text() << " " << b;
        if (block_is_zero(c, tensor, b)) continue;
        const std::uint64_t begin = b * c.shape.block_bytes;
        const std::uint64_t n = std::min(c.shape.block_bytes, c.shape.bytes - begin);
        ASSERT_EQ(std::memcmp(packed.host + at, tensor.data() + begin, n), 0) << c.text() << " " << b;
        at += n;
      }
    }
    for (std::size_t behind = c.shape.bytes; behind < c.shape.bytes + 64; ++behind)
      ASSERT_EQ(packed.host[behind], std::byte{0x5a}) << c.text();
  }
}

TEST(GpuKernels, PlacesWhatTheBitsSayAndFillsTheRest) {
  Fixture f;
  std::mt19937 random(5);
  const auto everything = cases();
  constexpr std::size_t kRoom = (1 << 20) + 64;
  std::byte* const memory = f.gpu->allocate(kRoom);
  const PinnedMemory staged = f.gpu->pin(kRoom);
  const PinnedMemory bits = f.gpu->pin(8 << 20);
  for (std::size_t i = 0; i < everything.size(); i += 1 + i % 3) {
    const Case& c = everything[i];
    const bool fill = i % 2 == 0;
    std::vector<std::byte> before(c.shape.bytes + 32), after(before.size());
    for (auto& x : before) x = static_cast<std::byte>(random());
    f.gpu->copy(f.stream, memory + c.offset, before.data(), before.size());
    for (std::uint64_t b = 0; b < c.shape.bytes; ++b) staged.host[b] = static_cast<std::byte>(random());
    auto* const words = reinterpret_cast<std::uint64_t*>(bits.host);
    std::vector<std::byte> expected = before;
    for (std::uint64_t b = 0; b < c.shape.blocks(); ++b) {
      const std::uint64_t s = b / c.shape.slice_blocks;
      const std::span slice_words(words + s * c.shape.words_per_slice(), c.shape.words_per_slice());
      const bool there = static_cast<int>(random() % 100) < c.percent;
      if (b % c.shape.slice_blocks == 0) std::fill(slice_words.begin(), slice_words.end(), 0);
      if (there) set_bit(slice_words, b % c.shape.slice_blocks);
      const std::uint64_t begin = b * c.shape.block_bytes;
      const std::uint64_t n = std::min(c.shape.block_bytes, c.shape.bytes - begin);
      if (there) {
        std::memcpy(expected.data() + begin, staged.host + begin, n);
      } else if (fill) {
        std::memset(expected.data() + begin, 0, n);
      }
    }
    f.gpu->place(f.stream, {.shape = c.shape,
                            .slices = c.shape.slices(),
                            .tensor = memory + c.offset,
                            .staged = staged.device,
                            .bits = bits.seen(words),
                            .fill = fill});
    f.gpu->copy(f.stream, after.data(), memory + c.offset, after.size());
    f.gpu->synchronize(f.stream);
    ASSERT_EQ(after, expected) << c.text();
  }
}

TEST(GpuKernels, UnitIsTheWidestThatFits) {
  EXPECT_EQ(unit_bytes(0, 0, 0, 0), 16u);
  EXPECT_EQ(unit_bytes(4096, 64, 1024, 48), 16u);
  EXPECT_EQ(unit_bytes(4096, 64, 1024, 40), 8u);
  EXPECT_EQ(unit_bytes(4100, 64, 1024, 48), 4u);
  EXPECT_EQ(unit_bytes(4096, 64, 1022, 48), 2u);
  EXPECT_EQ(unit_bytes(4096, 64, 1024, 47), 1u);
}

}  // namespace
}  // namespace nzcl::gpu

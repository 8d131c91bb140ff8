// The kernels of a GPU: every unit, block size, cut and offset, against plain loops over the same bytes. They
// run on an emulated GPU, and with DEVICE_CHECK=1 in the environment on the first one of CUDA's
// (scripts/device-check).
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/base/bitmap.h"
#include "runtime/compress/layout.h"
#include "runtime/compress/select.h"
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
    // Of every other case some blocks are given, most of which are zero, and the others are found all the
    // same.
    const bool checked = i % 2 == 1;
    std::vector<std::uint64_t> given(checked ? c.shape.words() : 0);
    for (std::uint64_t b = 0; checked && b < c.shape.blocks(); ++b) {
      const std::uint64_t slice = b / c.shape.slice_blocks, in_slice = b % c.shape.slice_blocks;
      if (random() % 4 == 0) set_bit(std::span(given), slice * c.shape.words_per_slice() * 64 + in_slice);
    }
    std::copy(given.begin(), given.end(), words);
    f.gpu->pack(f.stream, {.shape = c.shape,
                           .tensor = memory + c.offset,
                           .packed = packed.device,
                           .bits = bits.seen(words),
                           .flags = flags.seen(raised),
                           .value = ++use,
                           .known = checked,
                           .checked = checked});
    f.gpu->synchronize(f.stream);
    for (std::uint64_t s = 0; s < c.shape.slices(); ++s) {
      ASSERT_EQ(raised[s], use) << c.text();
      std::uint64_t at = s * c.shape.slice_blocks * c.shape.block_bytes;
      const std::uint64_t end = std::min(c.shape.blocks(), (s + 1) * c.shape.slice_blocks);
      for (std::uint64_t b = s * c.shape.slice_blocks; b < end; ++b) {
        const std::uint64_t in_slice = b - s * c.shape.slice_blocks;
        const std::span slice_words(words + s * c.shape.words_per_slice(), c.shape.words_per_slice());
        const std::uint64_t word = s * c.shape.words_per_slice() + in_slice / 64;
        const bool packs =
            !block_is_zero(c, tensor, b) || (checked && (given[word] >> in_slice % 64 & 1) != 0);
        ASSERT_EQ(test_bit(slice_words, in_slice), packs) << c.text() << " " << b;
        if (!packs) continue;
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

/// Tiles of few and of many small blocks, of which few, about 1/16, many or all are not zero, and the
/// tensor's last one may be shorter.
std::vector<Case> tile_cases() {
  std::vector<Case> all;
  for (const std::uint64_t block : {1, 2, 4, 8, 28, 64, 112, 508, 4096}) {
    for (const std::uint64_t slice : {3, 64, 1024, 65536}) {
      for (const std::uint64_t bytes :
           {block, block * slice, block * slice * 2 + block / 2 + 1, block * slice * 3 + block * 17}) {
        if (bytes > 1 << 20) continue;
        for (const std::size_t offset : {0, 1, 2, 4, 8}) {
          if (offset > block || (block == 4096 && offset % 4 != 0)) continue;
          for (const int percent : {0, 1, 6, 50, 99, 100})
            all.push_back({{.bytes = bytes, .block_bytes = block, .slice_blocks = slice}, offset, percent});
        }
      }
    }
  }
  return all;
}

/// What tells which blocks of a tile are packed: as pack_tiles() leaves it, where `left` was before.
std::vector<std::uint64_t> told_of_tile(const std::vector<std::uint64_t>& packed, std::uint64_t blocks,
                                        std::vector<std::uint64_t> left) {
  if (packed.size() == blocks) return left;
  if (16 * packed.size() <= blocks) {
    for (std::size_t i = 0; i < packed.size(); ++i) {
      const auto number = static_cast<std::uint16_t>(packed[i]);
      std::memcpy(reinterpret_cast<std::byte*>(left.data()) + i * sizeof number, &number, sizeof number);
    }
    return left;
  }
  std::fill_n(left.begin(), words_for(blocks), 0);
  for (const std::uint64_t b : packed) set_bit(std::span(left), b);
  return left;
}

TEST(GpuKernels, TilesAreThoseOfPlainLoops) {
  Fixture f;
  std::mt19937 random(9);
  const auto everything = tile_cases();
  ASSERT_GT(everything.size(), 500u);
  constexpr std::size_t kRoom = (1 << 20) + 64;
  std::byte* const memory = f.gpu->allocate(kRoom);
  const PinnedMemory packed = f.gpu->pin(kRoom), sets = f.gpu->pin(8 << 20), counts = f.gpu->pin(4 << 20),
                     flags = f.gpu->pin(4 << 20);
  std::uint32_t use = 0;
  std::array<int, 3> told{};  // tiles whose blocks are told by numbers, by bits, and not at all
  for (std::size_t i = 0; i < everything.size(); i += 1 + i % 3) {
    const Case& c = everything[i];
    const auto tensor = make_tensor(c, random);
    f.gpu->copy(f.stream, memory + c.offset, tensor.data(), tensor.size());
    auto* const words = reinterpret_cast<std::uint64_t*>(sets.host);
    const auto* const counted = reinterpret_cast<const std::uint32_t*>(counts.host);
    const auto* const raised = reinterpret_cast<const std::uint32_t*>(flags.host);
    std::memset(packed.host, 0x5a, c.shape.bytes + 64);
    std::memset(sets.host, 0x5a, (c.shape.words() + 1) * sizeof(std::uint64_t));
    f.gpu->pack_tiles(f.stream, {.shape = c.shape,
                                 .tensor = memory + c.offset,
                                 .packed = packed.device,
                                 .sets = reinterpret_cast<std::uint64_t*>(sets.device),
                                 .counts = reinterpret_cast<std::uint32_t*>(counts.device),
                                 .flags = reinterpret_cast<std::uint32_t*>(flags.device),
                                 .value = ++use});
    f.gpu->synchronize(f.stream);
    for (std::uint64_t t = 0; t < c.shape.slices(); ++t) {
      ASSERT_EQ(raised[t], use) << c.text();
      const std::uint64_t first = t * c.shape.slice_blocks,
                          blocks = std::min(c.shape.slice_blocks, c.shape.blocks() - first);
      std::vector<std::uint64_t> there;
      std::uint64_t at = first * c.shape.block_bytes;
      for (std::uint64_t b = 0; b < blocks; ++b) {
        if (block_is_zero(c, tensor, first + b)) continue;
        there.push_back(b);
        const std::uint64_t begin = (first + b) * c.shape.block_bytes;
        const std::uint64_t n = std::min(c.shape.block_bytes, c.shape.bytes - begin);
        ASSERT_EQ(std::memcmp(packed.host + at, tensor.data() + begin, n), 0) << c.text() << " " << b;
        at += n;
      }
      ASSERT_EQ(counted[t], there.size()) << c.text();
      const std::vector<std::uint64_t> untouched(c.shape.words_per_slice(), 0x5a5a5a5a5a5a5a5a);
      const std::uint64_t* const set = words + t * c.shape.words_per_slice();
      ASSERT_EQ(std::vector(set, set + untouched.size()), told_of_tile(there, blocks, untouched)) << c.text();
      ++told[there.size() == blocks ? 2 : 16 * there.size() <= blocks ? 0 : 1];
      for (const std::uint64_t end = std::min(first + blocks, c.shape.blocks()) * c.shape.block_bytes;
           at < std::min(end, c.shape.bytes); ++at)
        ASSERT_EQ(packed.host[at], std::byte{0x5a}) << c.text();
    }
    ASSERT_EQ(words[c.shape.words()], 0x5a5a5a5a5a5a5a5a) << c.text();
    for (std::size_t behind = c.shape.bytes; behind < c.shape.bytes + 64; ++behind)
      ASSERT_EQ(packed.host[behind], std::byte{0x5a}) << c.text();
  }
  for (const int tiles : told) EXPECT_GT(tiles, 100);
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

/// Lists whose length is known, on their way to the host.
TEST(GpuKernels, ListsComeWhole) {
  Fixture f;
  std::mt19937 random(11);
  constexpr std::size_t kRoom = 300000;
  std::byte *const values = f.gpu->allocate(kRoom), *const indices = f.gpu->allocate(kRoom);
  const PinnedMemory to = f.gpu->pin(2 * kRoom), flags = f.gpu->pin(4096);
  auto* const raised = reinterpret_cast<std::uint32_t*>(flags.host);
  std::uint32_t use = 0;
  for (const std::uint64_t bytes : {0, 1, 17, 4096, 65537, 262143}) {
    for (const std::size_t offset : {0, 1, 4, 8, 16}) {
      for (const std::uint32_t runners : {1, 2, 7}) {
        std::vector<std::byte> data(bytes), numbers(bytes / 3);
        for (auto& x : data) x = static_cast<std::byte>(random());
        for (auto& x : numbers) x = static_cast<std::byte>(random());
        f.gpu->copy(f.stream, values + offset, data.data(), data.size());
        f.gpu->copy(f.stream, indices, numbers.data(), numbers.size());
        std::memset(to.host, 0x5a, to.bytes);
        f.gpu->copy_list(f.stream, {.values = {values + offset, to.device},
                                    .indices = {indices, to.device + kRoom},
                                    .sizes = {.value_bytes = data.size(), .index_bytes = numbers.size()},
                                    .flags = flags.seen(raised),
                                    .value = ++use,
                                    .runners = runners});
        f.gpu->synchronize(f.stream);
        for (std::uint32_t i = 0; i < runners; ++i) ASSERT_EQ(raised[i], use) << bytes;
        ASSERT_TRUE(std::equal(data.begin(), data.end(), to.host)) << bytes << " " << offset;
        ASSERT_TRUE(std::equal(numbers.begin(), numbers.end(), to.host + kRoom)) << bytes << " " << offset;
        ASSERT_EQ(to.host[bytes], std::byte{0x5a});
        ASSERT_EQ(to.host[kRoom + bytes / 3], std::byte{0x5a});
      }
    }
  }
}

/// Lists whose length the host writes down before it lets the kernel go, and which it may call off.
TEST(GpuKernels, ListsAreAsLongAsIsWrittenDown) {
  Fixture f;
  constexpr std::size_t kRoom = 100000, kCount = kRoom;
  std::byte* const memory = f.gpu->allocate(2 * kRoom + 8);
  const PinnedMemory from = f.gpu->pin(2 * kRoom), words = f.gpu->pin(4096);
  std::vector<std::byte> before(2 * kRoom + 8, std::byte{0x77}), after(before.size());
  for (std::size_t i = 0; i < from.bytes; ++i) from.host[i] = static_cast<std::byte>(i * 7 + 1);
  auto* const found = reinterpret_cast<ListSizes*>(words.host);
  auto* const go = reinterpret_cast<std::uint32_t*>(words.host + sizeof *found);
  for (const std::uint64_t blocks : {0, 1, 3, 1000, 5000}) {
    for (const bool goes : {true, false}) {
      *found = {.blocks = blocks, .value_bytes = blocks * 12, .index_bytes = blocks * 4};
      *go = goes ? 6 : 7;
      f.gpu->copy(f.stream, memory, before.data(), before.size());
      f.gpu->copy_list(f.stream, {.values = {from.device, memory},
                                  .indices = {from.device + kRoom, memory + kRoom + 8},
                                  .sizes = {.blocks = 5000, .value_bytes = 60000, .index_bytes = 20000},
                                  .found = words.seen(found),
                                  .count = reinterpret_cast<std::uint64_t*>(memory + kCount),
                                  .go = words.seen(go),
                                  .go_value = 6,
                                  .runners = 3});
      f.gpu->copy(f.stream, after.data(), memory, after.size());
      f.gpu->synchronize(f.stream);
      const std::uint64_t copied = goes ? blocks : 0;
      auto expected = before;
      std::copy_n(from.host, copied * 12, expected.begin());
      std::copy_n(from.host + kRoom, copied * 4, expected.begin() + kRoom + 8);
      std::memcpy(expected.data() + kCount, &copied, sizeof copied);
      ASSERT_EQ(after, expected) << blocks << " " << goes;
    }
  }
}

/// A few steps of a compressor, against the host's kernels: what is selected, and what is kept, bit by bit.
void compare_selections(std::uint64_t elements, std::uint32_t bin, float momentum, std::size_t offset) {
  SCOPED_TRACE(std::to_string(elements) + " bin " + std::to_string(bin) + " momentum " +
               std::to_string(momentum));
  Fixture f;
  std::mt19937 random(17);
  const compress::Layout layout(
      std::array{Layer{.elements = elements / 3}, Layer{.elements = elements - elements / 3}}, bin);
  const std::size_t slices = layout.slices().size();
  std::vector<std::uint32_t> ends;
  std::vector<std::uint64_t> first_bins{0};
  for (const compress::Slice& slice : layout.slices()) {
    const auto of_slice = layout.bin_ends(slice);
    ends.insert(ends.end(), of_slice.begin(), of_slice.end());
    first_bins.push_back(ends.size());
  }
  const auto on_gpu = [&](std::size_t n) {
    return reinterpret_cast<float*>(f.gpu->allocate((n + offset + 1) * sizeof(float))) + offset;
  };
  float *const gradient = on_gpu(elements), *const residual = on_gpu(elements),
               *const velocity = on_gpu(elements);
  auto* const bin_ends = reinterpret_cast<std::uint32_t*>(on_gpu(ends.size()));
  auto* const bins_of = reinterpret_cast<std::uint64_t*>(f.gpu->allocate(first_bins.size() * 8));
  f.gpu->copy(f.stream, bin_ends, ends.data(), ends.size() * sizeof(std::uint32_t));
  f.gpu->copy(f.stream, bins_of, first_bins.data(), first_bins.size() * sizeof(std::uint64_t));
  const PinnedMemory offsets = f.gpu->pin(elements * 2), values = f.gpu->pin(elements * 4),
                     words = f.gpu->pin(slices * 16);
  auto* const counts = reinterpret_cast<SelectCounts*>(words.host);
  auto* const flags = reinterpret_cast<std::uint32_t*>(words.host + slices * sizeof(SelectCounts));
  std::vector<float> kept(elements), speed(momentum > 0 ? elements : 0), now(elements);
  std::vector<std::uint16_t> chosen(kMostSliceElements);
  std::vector<float> taken(kMostSliceElements);
  std::vector<compress::MagnitudeBits> maxima(ends.size());
  const float threshold = 1.5F, lower = 1.2F;
  for (std::uint32_t step = 1; step <= 4; ++step) {
    std::normal_distribution<float> normal(0, 0.7F);
    for (float& x : now) x = normal(random);
    if (step == 3) {
      now[0] = std::numeric_limits<float>::infinity();
      now[elements / 2] = -std::numeric_limits<float>::infinity();
      std::fill_n(now.begin() + static_cast<std::ptrdiff_t>(elements / 4), elements / 8, 0.0F);
    }
    const float scale = step == 4 ? 0.3F : 1.0F;
    for (float& x : kept) x *= scale;
    f.gpu->copy(f.stream, gradient, now.data(), elements * sizeof(float));
    f.gpu->select(f.stream, {.by = bin > 0 ? SelectJob::By::adacomp : SelectJob::By::threshold,
                             .elements = elements,
                             .gradient = gradient,
                             .residual = residual,
                             .velocity = momentum > 0 ? velocity : nullptr,
                             .momentum = momentum,
                             .scale = scale,
                             .fresh_residual = step == 1,
                             .fresh_velocity = step == 1,
                             .threshold = std::bit_cast<std::uint32_t>(threshold),
                             .lower_threshold = std::bit_cast<std::uint32_t>(lower),
                             .bins = ends.size(),
                             .bin_ends = bin_ends,
                             .first_bins = bins_of,
                             .offsets = reinterpret_cast<std::uint16_t*>(offsets.device),
                             .values = reinterpret_cast<float*>(values.device),
                             .counts = words.seen(counts),
                             .flags = words.seen(flags),
                             .value = step});
    f.gpu->synchronize(f.stream);
    for (std::size_t s = 0; s < slices; ++s) {
      const compress::Slice& slice = layout.slices()[s];
      const compress::SliceData data{.gradient = now.data() + slice.begin,
                                     .residual = kept.data() + slice.begin,
                                     .velocity = momentum > 0 ? speed.data() + slice.begin : nullptr,
                                     .elements = slice.elements,
                                     .momentum = momentum};
      const compress::Selected selected =
          bin > 0 ? compress::select_adacomp(data, {layout.bin_ends(slice)},
                                             std::span(maxima).subspan(slice.first_bin, slice.bins), chosen,
                                             taken)
                  : compress::select(data,
                                     {.threshold = std::bit_cast<std::uint32_t>(threshold),
                                      .lower_threshold = std::bit_cast<std::uint32_t>(lower)},
                                     0, words_for(slice.elements), chosen, taken);
      ASSERT_EQ(flags[s], step);
      ASSERT_EQ(counts[s].selected, selected.count) << "slice " << s << " step " << step;
      if (bin == 0) {
        ASSERT_EQ(counts[s].lower, selected.count_lower);
      }
      const auto* const found = reinterpret_cast<const std::uint16_t*>(offsets.host) + slice.begin;
      const auto* const told = reinterpret_cast<const float*>(values.host) + slice.begin;
      for (std::size_t i = 0; i < selected.count; ++i) ASSERT_EQ(found[i], chosen[i]);
      ASSERT_EQ(std::memcmp(told, taken.data(), selected.count * sizeof(float)), 0);
    }
    const auto same = [&](const float* there, const std::vector<float>& here) {
      std::vector<float> copied(here.size());
      f.gpu->copy(f.stream, copied.data(), there, here.size() * sizeof(float));
      f.gpu->synchronize(f.stream);
      return here.empty() || std::memcmp(copied.data(), here.data(), here.size() * sizeof(float)) == 0;
    };
    ASSERT_TRUE(same(residual, kept)) << "step " << step;
    ASSERT_TRUE(same(velocity, speed)) << "step " << step;
  }
}

TEST(GpuKernels, SelectionsAreThoseOfTheHost) {
  for (const std::uint64_t elements : {1, 63, 64, 4097, 65536, 150001}) {
    for (const float momentum : {0.0F, 0.9F}) {
      for (const std::uint32_t bin : {0, 4, 50, 500, 16383})
        compare_selections(elements, bin, momentum, elements % 3);
    }
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

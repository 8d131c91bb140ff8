#include "runtime/kernels/offsets.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "each_target.h"
#include "guarded.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/elements.h"

namespace nzcl {
namespace {

using test::Guarded;
using test::on_each_target;
using Words = std::vector<std::uint64_t>;
using Offsets = std::vector<std::uint16_t>;

Words random_bitmap(std::size_t words, double density, std::mt19937_64& random) {
  Words bitmap(words);
  for (std::size_t i = 0; i < 64 * words; ++i) {
    if (std::uniform_real_distribution()(random) < density) set_bit(bitmap, i);
  }
  return bitmap;
}

Offsets naive_offsets(const Words& bitmap) {
  Offsets offsets;
  for (std::size_t i = 0; i < 64 * bitmap.size(); ++i) {
    if (test_bit(bitmap, i)) offsets.push_back(static_cast<std::uint16_t>(i));
  }
  return offsets;
}

/// Lists the offsets in memory that holds exactly these and ends at an inaccessible page.
Offsets listed(const Words& bitmap) {
  const Guarded memory(2 * count_bits(bitmap));
  const std::span offsets(reinterpret_cast<std::uint16_t*>(memory.data()), memory.size() / 2);
  EXPECT_EQ(offsets_of(bitmap, offsets), offsets.size());
  return {offsets.begin(), offsets.end()};
}

TEST(Offsets, OfABitmapAndBack) {
  std::mt19937_64 random(1);
  for (const std::size_t words : {0, 1, 2, 7, 63, 64, 65, 128, 1000, 1024}) {
    for (const double density : {0.0, 0.001, 0.02, 0.1, 0.5, 1.0}) {
      const Words bitmap = random_bitmap(words, density, random);
      const Offsets offsets = naive_offsets(bitmap);
      on_each_target([&] {
        ASSERT_EQ(listed(bitmap), offsets) << words << " words, density " << density;
        Words back(words, 7);
        bitmap_of(offsets, back);
        ASSERT_EQ(back, bitmap);
        EXPECT_TRUE(are_offsets(offsets, 64 * words));
        if (!offsets.empty()) {
          EXPECT_FALSE(are_offsets(offsets, offsets.back()));
        }
      });
    }
  }
}

// Two neighbours that are swapped or equal are found wherever they are.
TEST(Offsets, ThatDoNotAscend) {
  const Guarded memory(2 * 100);
  const std::span offsets(reinterpret_cast<std::uint16_t*>(memory.data()), std::size_t{100});
  on_each_target([&] {
    for (std::size_t count = 2; count <= offsets.size(); ++count) {
      const auto some = offsets.last(count);
      // These lie on both sides of 2^15, so that a signed comparison would be wrong.
      for (std::size_t i = 0; i < count; ++i) some[i] = static_cast<std::uint16_t>(32768 - 120 + 3 * i);
      ASSERT_TRUE(are_offsets(some, 65536)) << count;
      for (std::size_t i = 0; i + 1 < count; ++i) {
        const std::uint16_t before = some[i];
        some[i] = some[i + 1];
        ASSERT_FALSE(are_offsets(some, 65536)) << i << " of " << count;
        some[i] = static_cast<std::uint16_t>(some[i + 1] + 1);
        ASSERT_FALSE(are_offsets(some, 65536)) << i << " of " << count;
        some[i] = before;
      }
    }
  });
}

// A peer's list is copied to where it is to begin, from any address, and what does not ascend there, or does
// not end there, is found wherever it is.
TEST(Offsets, AreCopiedAndChecked) {
  constexpr std::uint32_t kFirst = 1000, kBase = 7, kApart = 3;
  const Guarded from(4 * 700 + 1), to(4 * 700);
  on_each_target([&] {
    for (const std::size_t count : {0, 1, 2, 17, 256, 257, 300, 700}) {
      const std::span list(from.data() + from.size() - 4 * count - 1, 4 * count);
      const std::span copy(reinterpret_cast<std::uint32_t*>(to.data()) + 700 - count, count);
      const auto set = [&](std::size_t i, std::uint32_t offset) {
        std::memcpy(list.data() + 4 * i, &offset, sizeof offset);
      };
      const auto offset_at = [&](std::size_t i) {
        return kFirst + 5 + kApart * static_cast<std::uint32_t>(i);
      };
      for (std::size_t i = 0; i < count; ++i) set(i, offset_at(i));
      const std::uint64_t elements = 5 + kApart * count;
      const auto copies = [&](std::uint64_t end) {
        return copy_offsets(list, kFirst, kBase, end, copy.data());
      };
      ASSERT_TRUE(copies(elements)) << count;
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(copy[i], offset_at(i) - kFirst + kBase);
      if (count == 0) continue;
      ASSERT_TRUE(copies(elements - 2));
      ASSERT_FALSE(copies(elements - 3));
      set(0, kFirst - 1);
      ASSERT_FALSE(copies(elements)) << "an offset before the first";
      set(0, kFirst - kBase - 1);
      ASSERT_FALSE(copies(elements)) << "an offset before the first, beyond zero";
      set(0, offset_at(0));
      for (std::size_t i = 0; i + 1 < count; ++i) {
        for (const std::uint32_t wrong : {offset_at(i + 1), offset_at(i + 1) + 1, 0xffffffffu}) {
          set(i, wrong);
          ASSERT_FALSE(copies(elements)) << i << " of " << count;
        }
        set(i, offset_at(i));
      }
    }
  });
}

TEST(Offsets, Unite) {
  std::mt19937_64 random(2);
  for (const std::size_t words : {0, 1, 3, 8, 100, 1024}) {
    const Words bits = random_bitmap(words, 0.5, random);
    const Words any = random_bitmap(words, 0.5, random), all = random_bitmap(words, 0.5, random);
    on_each_target([&] {
      Words or_ed = any, and_ed = all;
      unite(bits, or_ed, and_ed);
      for (std::size_t w = 0; w < words; ++w) {
        ASSERT_EQ(or_ed[w], any[w] | bits[w]);
        ASSERT_EQ(and_ed[w], all[w] & bits[w]);
      }
    });
  }
}

}  // namespace
}  // namespace nzcl

#include "runtime/kernels/scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "each_target.h"
#include "guarded.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/scan_streams.h"

namespace nzcl {
namespace {

using test::Guarded;
using Words = std::vector<std::uint64_t>;

constexpr std::uint64_t kUntouched = 0x5555555555555555;

Words naive_scan(std::span<const std::byte> data, std::uint64_t block_bytes) {
  const std::uint64_t blocks = (data.size() + block_bytes - 1) / block_bytes;
  Words bitmap(words_for(blocks) + 1);
  bitmap.back() = kUntouched;
  for (std::uint64_t i = 0; i < data.size(); ++i) {
    if (data[i] != std::byte{0}) set_bit(bitmap, i / block_bytes);
  }
  return bitmap;
}

/// Scans into a bitmap with one word more than the scan may write.
Words scan(std::span<const std::byte> data, std::uint64_t block_bytes, int streams = kMaxScanStreams) {
  Words bitmap(words_for((data.size() + block_bytes - 1) / block_bytes) + 1, kUntouched);
  scan_blocks(data.data(), data.size(), block_bytes, bitmap, streams);
  return bitmap;
}

TEST(Scan, Empty) {
  test::on_each_target([] { EXPECT_EQ(scan({}, 16), (Words{kUntouched})); });
}

TEST(Scan, NegativeZeroIsNotZero) {
  const float values[] = {0.0f, -0.0f, 0.0f};
  test::on_each_target([&] { EXPECT_EQ(scan(std::as_bytes(std::span(values)), 4)[0], 0b010u); });
}

// A byte that is not zero sets the bit of its own block and no other, wherever it lies in the block.
TEST(Scan, FindsASingleByteAnywhere) {
  for (const std::uint64_t block : {1, 2, 3, 4, 8, 12, 16, 24, 63, 64, 65, 100, 512, 600, 1024, 1100}) {
    const Guarded buffer(2 * block + 1100 + block / 2);
    test::on_each_target([&] {
      for (std::size_t i = 0; i < buffer.size(); ++i) {
        buffer.bytes()[i] = std::byte{0x80};
        ASSERT_EQ(scan(buffer.bytes(), block), naive_scan(buffer.bytes(), block))
            << "byte " << i << ", block " << block;
        buffer.bytes()[i] = std::byte{0};
      }
    });
  }
}

// Tries every length up to several steps of every code path. The buffer ends at an inaccessible page.
TEST(Scan, ReadsNothingBeyondTheEnd) {
  const Guarded buffer(1300);
  buffer.bytes().back() = std::byte{1};
  test::on_each_target([&] {
    for (const std::uint64_t block : {1, 2, 4, 8, 24, 60, 64, 100, 700}) {
      for (std::size_t length = 1; length <= buffer.size(); ++length) {
        const auto data = buffer.bytes().last(length);
        ASSERT_EQ(scan(data, block), naive_scan(data, block)) << length << " bytes, block " << block;
      }
    }
  });
}

TEST(Scan, DoesNotSeeTheNeighbours) {
  const Guarded buffer(5000);
  std::ranges::fill(buffer.bytes(), std::byte{1});
  const auto middle = buffer.bytes().subspan(1001, 2999);
  std::ranges::fill(middle, std::byte{0});
  test::on_each_target([&] {
    for (const std::uint64_t block : {1, 4, 8, 24, 60, 64, 192, 1000, 2999, 4000}) {
      EXPECT_EQ(scan(middle, block), naive_scan(middle, block)) << block;
    }
  });
}

// The buffer is large enough to be read in several streams, which must leave no gap between them.
TEST(Scan, FindsEveryByteOfALargeBuffer) {
  std::mt19937_64 random(7);
  for (const std::size_t size : {std::size_t{1} << 18, std::size_t{300'001}, (std::size_t{1} << 20) + 77}) {
    const Guarded buffer(size);
    for (int i = 0; i < 60; ++i) buffer.bytes()[random() % size] = std::byte{1};
    test::on_each_target([&] {
      for (const std::uint64_t block : {64, 100, 192, 700, 1024, 4096, 10'000}) {
        const Words expected = naive_scan(buffer.bytes(), block);
        for (int streams = 1; streams <= kMaxScanStreams; ++streams)
          ASSERT_EQ(scan(buffer.bytes(), block, streams), expected)
              << size << " bytes, block " << block << ", " << streams << " streams";
      }
    });
  }
}

TEST(ScanStreams, AreMeasuredOnce) {
  const int streams = fastest_scan_streams();
  EXPECT_THAT(streams, testing::AnyOf(1, 2, kMaxScanStreams));
  EXPECT_EQ(fastest_scan_streams(), streams);
}

RC_GTEST_PROP(Scan, AgreesWithANaiveLoop, ()) {
  const auto element = *rc::gen::element<std::uint64_t>(1, 2, 4, 8);
  const auto count =
      *rc::gen::oneOf(rc::gen::inRange<std::uint64_t>(1, 40), rc::gen::inRange<std::uint64_t>(1, 1500));
  const std::uint64_t block = element * count;
  const auto bytes = *rc::gen::inRange<std::uint64_t>(0, std::min<std::uint64_t>(block * 300, 60'000) + 1);
  const auto offset = *rc::gen::inRange<std::uint64_t>(0, std::min<std::uint64_t>(bytes, 70) + 1);
  const auto density = *rc::gen::element(0.0, 0.001, 0.02, 0.5, 1.0);  // the share of bytes that are not zero

  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const Guarded buffer(bytes);
  for (std::byte& byte : buffer.bytes()) {
    if (std::uniform_real_distribution()(random) < density) byte = static_cast<std::byte>(random() % 255 + 1);
  }
  const auto data = buffer.bytes().subspan(offset);
  const Words expected = naive_scan(data, block);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ForcedTarget forced(target);
    RC_ASSERT(scan(data, block) == expected);
  }
}

}  // namespace
}  // namespace nzcl

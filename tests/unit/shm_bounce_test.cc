// Tests the ring of bytes of shm, and the table of regions that says what may be written out of it.
#include "verbs/shm/bounce_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "verbs/shm/region_table.h"

namespace nzcl::verbs::shm {
namespace {

using testing::HasSubstr;

class BounceTest : public testing::Test {
 protected:
  static constexpr RemoteMemory kTarget{.address = 1 << 20, .key = 99};

  /// Writes `bytes` bytes of the source, cut into segments, as if to kTarget plus `at`.
  bool push(std::size_t at, std::size_t bytes, std::size_t pieces = 1) {
    std::vector<verbs::Segment> segments;
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t begin = bytes * i / pieces, end = bytes * (i + 1) / pieces;
      if (end > begin)
        segments.push_back({source.data() + at + begin, static_cast<std::uint32_t>(end - begin), nullptr});
    }
    const Write write{
        .peer = 1, .segments = segments, .target = kTarget.offset(at), .immediate = std::nullopt};
    return writer.push(write, bytes);
  }
  /// Takes all records to their places in `landed`. Returns what is wrong.
  std::string take() {
    const char* wrong = reader.take([this](const BounceRecord& r, const std::byte* bytes) -> const char* {
      ++records;
      const std::uint64_t at = r.address - kTarget.address;
      if (r.key != kTarget.key || at > landed.size() || r.bytes > landed.size() - at) return "lies elsewhere";
      std::memcpy(landed.data() + at, bytes, r.bytes);
      return nullptr;
    });
    return wrong == nullptr ? "" : wrong;
  }
  void SetUp() override {
    std::mt19937 random(11);
    for (std::byte& b : source) b = static_cast<std::byte>(random());
  }

  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
  };
  std::unique_ptr<std::byte[], Free> area{new (std::align_val_t{4096}) std::byte[kBounceArea]{}};
  BounceRing ring{area.get()};
  BounceWriter writer{ring};
  BounceReader reader{ring};
  std::vector<std::byte> source = std::vector<std::byte>(4 << 20), landed = std::vector<std::byte>(4 << 20);
  std::size_t records = 0;
};

TEST_F(BounceTest, IsEmptyAtFirst) {
  EXPECT_TRUE(reader.empty());
  EXPECT_TRUE(BounceReader().empty());
  EXPECT_EQ(take(), "");
  EXPECT_EQ(records, 0u);
}

TEST_F(BounceTest, WritesOfAllSizesLandOverManyLapsHoweverTheyAreCut) {
  std::mt19937 random(5);
  for (int lap = 0; lap < 40; ++lap) {
    for (std::size_t at = 0; at < source.size();) {
      const std::size_t most = lap % 2 == 0 ? 3000 : kMostBounced;
      const std::size_t bytes = std::min<std::size_t>(1 + random() % most, source.size() - at);
      while (!push(at, bytes, 1 + random() % kMaxSegments)) {
        ASSERT_FALSE(reader.empty()) << "nothing in it, and no room for " << bytes;
        ASSERT_EQ(take(), "");
      }
      at += bytes;
    }
    ASSERT_EQ(take(), "");
    ASSERT_TRUE(reader.empty());
    ASSERT_EQ(source, landed) << lap;
    std::ranges::fill(landed, std::byte{0});
  }
}

TEST_F(BounceTest, TheLargestWriteFitsWhereverTheRingBegins) {
  for (std::size_t step = 0; step < kBounceBytes / kLine; ++step) {
    ASSERT_TRUE(push(0, kMostBounced)) << step;
    ASSERT_EQ(take(), "");
    ASSERT_TRUE(push(0, 1));  // moves the beginning by two lines, and now and then by one
    if (step % 7 == 0) {
      ASSERT_TRUE(push(0, 65));
    }
    ASSERT_EQ(take(), "");
  }
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + kMostBounced, landed.begin()));
}

TEST_F(BounceTest, AWriteForWhichThereIsNoRoomIsNotBegun) {
  std::size_t at = 0;
  for (; push(at, 10'000); at += 10'000) {
  }
  EXPECT_GT(at, kBounceBytes * 9 / 10);
  EXPECT_FALSE(push(at, 10'000));
  ASSERT_EQ(take(), "");
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(at), landed.begin()));
  EXPECT_EQ(landed[at], std::byte{0});
  EXPECT_TRUE(push(at, 10'000));
}

TEST_F(BounceTest, AWriteThatIsCutBecomesVisibleAsAWhole) {
  ASSERT_TRUE(push(0, kBounceBytes - 3 * kLine));  // leaves two lines before the end
  ASSERT_EQ(take(), "");
  records = 0;
  ASSERT_TRUE(push(0, 100));
  ASSERT_EQ(take(), "");
  EXPECT_EQ(records, 2u);
  ASSERT_TRUE(reader.empty());
}

TEST_F(BounceTest, ACountThatCannotBeIsNotRoom) {
  while (push(0, 100'000)) {
  }
  for (const std::uint64_t taken :
       {~std::uint64_t{0}, std::uint64_t{1} << 40, std::uint64_t{kBounceBytes} * 3}) {
    ring.taken().store(taken);
    EXPECT_FALSE(push(0, 100'000)) << taken;
  }
}

TEST_F(BounceTest, RecordsThatCannotBeAreRefused) {
  const auto announce = [&](std::uint64_t bytes, std::uint64_t written) {
    const BounceRecord record{kTarget.address, kTarget.key, bytes};
    std::memcpy(ring.at(0), &record, sizeof record);
    ring.written().store(written);
    return take();
  };
  EXPECT_THAT(announce(1, kLine), HasSubstr("more bytes than it has written"));
  EXPECT_THAT(announce(kBounceBytes - kLine + 1, kBounceBytes), HasSubstr("more bytes"));
  EXPECT_THAT(announce(~std::uint64_t{0}, kBounceBytes), HasSubstr("more bytes"));
  EXPECT_THAT(announce(1, kBounceBytes + 2 * kLine), HasSubstr("beyond the end"));
  EXPECT_THAT(announce(1, 2 * kLine + 8), HasSubstr("a part of a line"));
}

TEST_F(BounceTest, OneThreadWritesWhileAnotherReads) {
  constexpr std::size_t kStep = 4099;
  std::thread peer([&] {
    for (std::size_t at = 0; at + kStep <= source.size(); at += kStep) {
      while (!push(at, kStep, 3)) std::this_thread::yield();
    }
  });
  std::string wrong;
  const std::size_t all = source.size() / kStep * kStep;
  while (wrong.empty() && landed[all - 1] != source[all - 1]) {
    wrong = take();
    std::this_thread::yield();
  }
  peer.join();
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(take(), "");
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(all), landed.begin()));
}

class RegionTableTest : public testing::Test {
 protected:
  bool write(std::uint64_t key, std::ptrdiff_t at, std::uint64_t bytes) {
    std::vector<std::byte> from(bytes, std::byte{7});
    return table.write(key, reinterpret_cast<std::uint64_t>(memory.data()) + static_cast<std::uint64_t>(at),
                       from.data(), bytes);
  }
  RegionTable table;
  std::vector<std::byte> memory = std::vector<std::byte>(8192);
};

TEST_F(RegionTableTest, WritesInsideOfTheRegionAndNowhereElse) {
  const std::uint64_t key = table.add(std::span(memory).subspan(100, 1000));
  EXPECT_TRUE(write(key, 100, 1000));
  EXPECT_TRUE(write(key, 1099, 1));
  const auto before = memory;
  EXPECT_FALSE(write(key, 99, 2));
  EXPECT_FALSE(write(key, 1099, 2));
  EXPECT_FALSE(write(key, 1100, 1));
  EXPECT_FALSE(write(key, 2000, 10));
  EXPECT_FALSE(write(key, -5000, 10));
  EXPECT_EQ(memory, before);
  table.remove(key);
}

TEST_F(RegionTableTest, OtherKeysAreRefused) {
  const std::uint64_t one = table.add(memory), two = table.add(memory);
  EXPECT_NE(one, two);
  for (const std::uint64_t key : {one ^ std::uint64_t{1} << 63, one ^ std::uint64_t{1} << 24, one + 1,
                                  one | 0xffffff, std::uint64_t{0}, ~std::uint64_t{0}, one & 0xffffff})
    EXPECT_FALSE(write(key, 0, 8)) << key;
  table.remove(one);
  EXPECT_FALSE(write(one, 0, 8)) << "the region is gone";
  const std::uint64_t three = table.add(memory);
  EXPECT_FALSE(write(one, 0, 8)) << "its place is another one's now";
  EXPECT_TRUE(write(two, 0, 8));
  EXPECT_TRUE(write(three, 0, 8));
  table.remove(two);
  table.remove(three);
}

TEST_F(RegionTableTest, ThereMayBeManyRegions) {
  std::vector<std::uint64_t> keys;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 5000; ++i) keys.push_back(table.add(std::span(memory).subspan(i, 1)));
    for (std::size_t i = 0; i < 5000; ++i)
      EXPECT_TRUE(write(keys[i], static_cast<std::ptrdiff_t>(i), 1)) << i;
    for (const std::uint64_t key : keys) table.remove(key);
    keys.clear();
  }
}

/// Who takes a region out may use its memory for something else at once.
TEST_F(RegionTableTest, NothingIsWrittenAfterARegionIsGone) {
  std::atomic<std::uint64_t> key{0};
  std::atomic<bool> stop{false};
  std::thread peer([&] {
    std::vector<std::byte> from(memory.size(), std::byte{7});
    while (!stop) table.write(key, reinterpret_cast<std::uint64_t>(memory.data()), from.data(), from.size());
  });
  std::size_t wrong = 0;
  for (int round = 0; round < 3000; ++round) {
    key = table.add(memory);
    std::this_thread::yield();
    table.remove(key);
    std::ranges::fill(memory, std::byte{1});
    std::this_thread::yield();
    wrong += static_cast<std::size_t>(std::ranges::count(memory, std::byte{7}));
  }
  stop = true;
  peer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace nzcl::verbs::shm

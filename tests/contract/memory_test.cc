// Tests registered memory: offsets, and several registrations of the same bytes.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/contract/pair.h"
#include "verbs/fd.h"

namespace nzcl::verbs::test {
namespace {

class MemoryTest : public ContractTest {
 protected:
  static constexpr std::size_t kBytes = 48 << 10;

  /// Posts one write and polls until it has arrived.
  static AssertionResult write(Peers& peers, const Segment& from, const RemoteMemory& to) {
    const std::size_t before = peers[1].arrived.size();
    Writes writes;
    writes.add(1, {from}, to, 1);
    if (auto posted = peers.post(0, writes); !posted) return posted;
    return peers.until([&] { return peers[1].arrived.size() > before; });
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, MemoryTest, ::testing::ValuesIn(all_backends()), backend_name);

TEST_P(MemoryTest, RegionsKnowTheirBytes) {
  std::vector<std::byte> memory(1000);
  const auto region = devices()[0]->register_memory(std::span(memory).subspan(100, 300), MemoryKind::host);
  EXPECT_EQ(region->bytes().data(), &memory[100]);
  EXPECT_EQ(region->bytes().size(), 300u);
}

TEST_P(MemoryTest, WritesGoToAnyOffsetOfARegion) {
  Peers peers(devices(), 2, kBytes);
  auto expected = peers[1].target;
  std::size_t from = 0;
  for (const std::size_t to : {kBytes - 1, kBytes - 300, std::size_t{0}, std::size_t{4095}, kBytes / 2 + 1}) {
    SCOPED_TRACE(to);
    const std::size_t bytes = std::min<std::size_t>(kBytes - to, 299);
    ASSERT_TRUE(write(peers, peers[0].segment(from, bytes), peers.at(0, 1, to)));
    std::memcpy(&expected[to], &peers[0].source[from], bytes);
    ASSERT_TRUE(same(expected, peers[1].target));
    from += 1001;
  }
}

TEST_P(MemoryTest, BytesRegisteredTwiceCanBeUsedThroughBoth) {
  Peers peers(devices(), 2, kBytes);
  const auto source = devices()[0]->register_memory(peers[0].source, MemoryKind::host);
  const auto target = devices()[1]->register_memory(peers[1].target, MemoryKind::host);
  auto expected = peers[1].target;
  std::size_t at = 0;
  for (const auto* from : {source.get(), peers[0].source_region.get()}) {
    for (const auto* to : {target.get(), peers[1].target_region.get()}) {
      ASSERT_TRUE(
          write(peers, {&peers[0].source[at + 1], 5000, from}, to->remote_at(level_of(0, 1)).offset(at)));
      std::memcpy(&expected[at], &peers[0].source[at + 1], 5000);
      ASSERT_TRUE(same(expected, peers[1].target));
      at += 6000;
    }
  }
}

// Other regions of the receiver, older and younger than the target, are registered and go on another thread.
TEST_P(MemoryTest, OtherRegionsComeAndGoWhileAPeerWrites) {
  constexpr int kRounds = 20, kOthers = 200;
  Peers peers(devices(), 2, kBytes);
  std::mt19937 random(7);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<MemoryRegion>> others;
    std::unique_ptr<MemoryRegion> target;
    for (int i = 0; i < kOthers; ++i) {
      if (i == kOthers / 2) target = devices()[1]->register_memory(peers[1].target, MemoryKind::host);
      others.push_back(devices()[1]->register_memory(peers[1].source, MemoryKind::host));
    }
    std::ranges::shuffle(others, random);
    std::atomic<bool> gone{false};
    std::jthread owner([&] {
      for (auto& other : others) {
        other.reset();
        std::this_thread::yield();
      }
      gone = true;
    });
    do {
      ASSERT_TRUE(write(peers, peers[0].segment(0, 64), target->remote_at(level_of(0, 1))));
    } while (!gone);
  }
}

TEST_P(MemoryTest, OverlappingRegistrationsReachTheSameBytes) {
  Peers peers(devices(), 2, kBytes);
  const auto front =
      devices()[1]->register_memory(std::span(peers[1].target).first(kBytes * 2 / 3), MemoryKind::host);
  const auto back =
      devices()[1]->register_memory(std::span(peers[1].target).subspan(kBytes / 3), MemoryKind::host);
  const auto source =
      devices()[0]->register_memory(std::span(peers[0].source).subspan(777), MemoryKind::host);
  auto expected = peers[1].target;
  // Two writes go into the part that both registrations cover, and the second overwrites half of the first.
  ASSERT_TRUE(write(peers, {&peers[0].source[777], 4000, source.get()},
                    front->remote_at(level_of(0, 1)).offset(kBytes / 2)));
  std::memcpy(&expected[kBytes / 2], &peers[0].source[777], 4000);
  ASSERT_TRUE(same(expected, peers[1].target));
  ASSERT_TRUE(write(peers, peers[0].segment(9000, 4000),
                    back->remote_at(level_of(0, 1)).offset(kBytes / 2 - kBytes / 3 + 2000)));
  std::memcpy(&expected[kBytes / 2 + 2000], &peers[0].source[9000], 4000);
  ASSERT_TRUE(same(expected, peers[1].target));
}

TEST_P(MemoryTest, OneRegistrationOutlivesAnother) {
  Peers peers(devices(), 2, kBytes);
  for (const bool second_goes : {true, false}) {
    auto source = devices()[0]->register_memory(peers[0].source, MemoryKind::host);
    auto target = devices()[1]->register_memory(peers[1].target, MemoryKind::host);
    if (!second_goes) {
      std::swap(source, peers[0].source_region);
      std::swap(target, peers[1].target_region);
    }
    source.reset();
    target.reset();
    std::ranges::fill(peers[1].target, kUntouched);
    auto expected = peers[1].target;
    ASSERT_TRUE(write(peers, peers[0].segment(5, 20'000), peers.at(0, 1, kGuard)));
    std::memcpy(&expected[kGuard], &peers[0].source[5], 20'000);
    ASSERT_TRUE(same(expected, peers[1].target));
  }
}

TEST_P(MemoryTest, WhatCanBeReadIsSeenWhereItLies) {
  const std::span<std::byte> memory = devices()[0]->allocate(kBytes);
  const auto region = devices()[0]->register_memory(memory, MemoryKind::host);
  {
    Peers peers(devices(), 2, kBytes);
    const RemoteMemory begin = region->remote_at(level_of(0, 1));
    const std::byte* seen = peers[1].endpoint->view(0, begin, kBytes);
    const Limits& limits = devices()[0]->limits_at(level_of(0, 1));
    if (!limits.readable) {
      EXPECT_EQ(seen, nullptr);
    } else {
      EXPECT_TRUE(limits.ordered);
      ASSERT_NE(seen, nullptr);
      EXPECT_EQ(peers[1].endpoint->view(0, begin.offset(100), kBytes - 100), seen + 100);
      EXPECT_EQ(peers[1].endpoint->view(0, begin, kBytes + 1), nullptr) << "beyond the end";
      EXPECT_EQ(peers[1].endpoint->view(0, {begin.address - 1, begin.key}, 1), nullptr)
          << "before the beginning";
      for (std::size_t round = 0; round < 20; ++round) {
        std::ranges::copy(pattern(kBytes, round), memory.begin());
        ASSERT_TRUE(write(peers, peers[0].segment(0, 1), peers.at(0, 1, 0)));
        ASSERT_TRUE(same(memory, {seen, kBytes}));
      }
      peers[0].endpoint.reset();
      EXPECT_TRUE(same(memory, {seen, kBytes})) << "after the owner has gone";
    }
  }
  devices()[0]->release(memory);
}

/// Memory as an emulated GPU lends it: pages that this process finds at other addresses than their own.
class LentMemory {
 public:
  explicit LentMemory(std::size_t pages)
      : bytes_((pages + 1) * kPage), fd_(::memfd_create("lent", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(bytes_)), 0);
    named_ = map(PROT_NONE), seen_ = map(PROT_READ | PROT_WRITE);
  }
  ~LentMemory() {
    ::munmap(named_, bytes_);
    ::munmap(seen_, bytes_);
  }
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  /// All but the first page.
  GpuMemory lent() const { return {fd_.get(), kPage, {named_ + kPage, bytes_ - kPage}}; }
  /// Where the test itself reads and writes what is lent.
  std::span<std::byte> seen() const { return {seen_ + kPage, bytes_ - kPage}; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::byte* map(int protection) const {
    void* const at = ::mmap(nullptr, bytes_, protection, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(at, MAP_FAILED);
    return static_cast<std::byte*>(at);
  }
  const std::size_t bytes_;
  const Fd fd_;
  std::byte *named_ = nullptr, *seen_ = nullptr;
};

/// From memory of a GPU into that of another one, mixed with memory of the host in one gather list. Short
/// writes are those that a device may send inline, which would have the host read them.
TEST_P(MemoryTest, MemoryOfAGpuIsReadAndWrittenAtItsOwnAddresses) {
  Peers peers(devices(), 2, kBytes);
  const LentMemory from(16), to(16);
  std::unique_ptr<MemoryRegion> source, target;
  try {
    source = devices()[0]->register_gpu_memory(from.lent());
    target = devices()[1]->register_gpu_memory(to.lent());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("does not reach memory of a GPU"));
    return;
  }
  EXPECT_FALSE(source->host_reaches());
  EXPECT_EQ(source->bytes().data(), from.lent().bytes.data());
  const auto bytes = pattern(from.seen().size(), 5);
  std::ranges::copy(bytes, from.seen().begin());
  std::vector<std::byte> expected(to.seen().size());
  std::size_t at = 0;
  for (const std::uint32_t length : {1u, 60u, 4095u, 20000u}) {
    Writes writes;
    writes.add(1, {peers[0].segment(at, 33), {source->bytes().data() + at + 7, length, source.get()}},
               target->remote().offset(at + 3), 1);
    const std::size_t before = peers[1].arrived.size();
    ASSERT_TRUE(peers.post(0, writes));
    ASSERT_TRUE(peers.until([&] { return peers[1].arrived.size() > before; }));
    std::memcpy(&expected[at + 3], &peers[0].source[at], 33);
    std::memcpy(&expected[at + 36], &bytes[at + 7], length);
    ASSERT_TRUE(same(expected, to.seen())) << length;
    at += length + 50;
  }
}

}  // namespace
}  // namespace nzcl::verbs::test

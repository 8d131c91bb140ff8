// Tests that the bytes of a write land at its target, completely, and nowhere else.
#include "tests/contract/pair.h"

namespace nzcl::verbs::test {
namespace {

constexpr std::size_t kMostBytes = 4 << 20;  // largest write of these tests, even if the limits allow more

class WriteTest : public ContractTest {};
INSTANTIATE_TEST_SUITE_P(Transports, WriteTest, ::testing::ValuesIn(all_backends()), backend_name);

TEST_P(WriteTest, LandsByteForByteAndNowhereElse) {
  const std::size_t most = std::min(limits().max_write_bytes, kMostBytes);
  Peers peers(devices(), 2, most + 2 * kGuard);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
                                  std::size_t{128} << 10, most}) {
    SCOPED_TRACE(bytes);
    std::ranges::fill(peers[1].target, kUntouched);
    auto expected = peers[1].target;
    std::memcpy(&expected[kGuard], &peers[0].source[13], bytes);
    peers[1].arrived.clear();
    Writes writes;
    writes.add(1, {peers[0].segment(13, bytes)}, peers.at(0, 1, kGuard), 7);
    ASSERT_TRUE(peers.post(0, writes));
    ASSERT_TRUE(peers.until([&] { return !peers[1].arrived.empty(); }));
    ASSERT_TRUE(same(expected, peers[1].target));
    ASSERT_TRUE(same(pattern(peers[0].source.size(), 0), peers[0].source)) << "the source changed";
  }
}

TEST_P(WriteTest, WithoutImmediateLandsAndTheReceiverHearsNothing) {
  Peers peers(devices(), 2, 64 << 10);
  auto expected = peers[1].target;
  std::memcpy(&expected[kGuard], peers[0].source.data(), 5000);
  Writes writes;
  writes.add(1, {peers[0].segment(0, 5000)}, peers.at(0, 1, kGuard));
  ASSERT_TRUE(peers.post(0, writes));
  ASSERT_TRUE(peers.until([&] { return same(expected, peers[1].target); }));
  ASSERT_TRUE(peers.drain());
  ASSERT_TRUE(peers.linger());
  EXPECT_TRUE(peers[1].arrived.empty());
  EXPECT_TRUE(peers[1].written.empty());
}

TEST_P(WriteTest, GatherListsLandConcatenated) {
  const std::size_t region = 512 << 10;
  Peers peers(devices(), 2, region);
  // A few bytes, some pages, and more than an eager protocol would take.
  for (const std::size_t scale : {1, 40, 10000}) {
    for (std::size_t count = 1; count <= limits().max_segments; ++count) {
      SCOPED_TRACE(::testing::Message() << count << " segments, scale " << scale);
      std::vector<Segment> segments;
      std::ranges::fill(peers[1].target, kUntouched);
      auto expected = peers[1].target;
      std::size_t from = region, to = kGuard;
      for (std::size_t i = 0; i < count; ++i) {  // in reverse order, so not one contiguous run
        const std::size_t bytes = 1 + scale * (i % 4 + 1);
        if (from < bytes + 1 || to + bytes + kGuard > region || to + bytes > limits().max_write_bytes) break;
        from -= bytes + 1;
        segments.push_back(peers[0].segment(from, bytes));
        std::memcpy(&expected[to], &peers[0].source[from], bytes);
        to += bytes;
      }
      peers[1].arrived.clear();
      Writes writes;
      writes.add(1, segments, peers.at(0, 1, kGuard), 1);
      ASSERT_TRUE(peers.post(0, writes));
      ASSERT_TRUE(peers.until([&] { return !peers[1].arrived.empty(); }));
      ASSERT_TRUE(same(expected, peers[1].target));
    }
  }
}

TEST_P(WriteTest, ImmediateComesAfterItsOwnData) {
  constexpr std::size_t kSlot = 20000, kSlots = 100;
  Peers peers(devices(), 2, kSlot * kSlots);
  const auto bytes = [](std::uint32_t slot) { return 1 + slot * 7919 % (kSlot - 1); };
  std::size_t torn = 0;
  peers[1].on_completion = [&](const Completion& c) {
    const std::size_t at = c.immediate * kSlot;
    torn += !same(std::span(peers[0].source).subspan(at, bytes(c.immediate)),
                  std::span(peers[1].target).subspan(at, bytes(c.immediate)));
  };
  Writes writes;
  for (std::uint32_t i = 0; i < kSlots; ++i)
    writes.add(1, {peers[0].segment(i * kSlot, bytes(i))}, peers.at(0, 1, i * kSlot), i);
  ASSERT_TRUE(peers.post(0, writes));
  ASSERT_TRUE(peers.until([&] { return peers[1].arrived.size() == kSlots; }));
  EXPECT_EQ(torn, 0u);
}

TEST_P(WriteTest, ImmediatesAreCarriedWhole) {
  const std::vector<std::uint32_t> values{0, 1, 0x7fffffff, 0x80000000, 0xffffffff};
  Peers peers(devices(), 2, 4096);
  for (const std::uint32_t value : values) {
    Writes writes;
    writes.add(1, {peers[0].segment(0, 8)}, peers.at(0, 1, 0), value);
    const std::size_t before = peers[1].arrived.size();
    ASSERT_TRUE(peers.post(0, writes));
    ASSERT_TRUE(peers.until([&] { return peers[1].arrived.size() > before; }));
  }
  EXPECT_EQ(peers[1].arrived, values);
}

TEST_P(WriteTest, SourceMayBeReusedOnceWritten) {
  const std::size_t slot = std::min<std::size_t>(limits().max_write_bytes, 200'000), slots = 12;
  Peers peers(devices(), 2, slot * slots);
  const auto original = peers[0].source;
  peers[0].on_completion = [&](const Completion& c) {
    std::memset(&peers[0].source[c.context * slot], 0xff, slot);
  };
  Writes writes;
  for (std::uint32_t i = 0; i < slots; ++i)
    writes.add(1, {peers[0].segment(i * slot, slot)}, peers.at(0, 1, i * slot), i, i);
  ASSERT_TRUE(peers.post(0, writes));
  ASSERT_TRUE(
      peers.until([&] { return peers[0].written.size() == slots && peers[1].arrived.size() == slots; }));
  EXPECT_TRUE(same(original, peers[1].target));
}

}  // namespace
}  // namespace nzcl::verbs::test

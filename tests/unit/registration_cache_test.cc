// The registration cache against a device that counts.
#include "verbs/registration_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "nzcl/error.h"

namespace nzcl::verbs {
namespace {

struct Counts {
  int made = 0;
  int alive = 0;
};

class CountedRegion final : public MemoryRegion {
 public:
  CountedRegion(Counts& counts, std::span<std::byte> bytes) : counts_(counts), bytes_(bytes) {
    ++counts_.made;
    ++counts_.alive;
  }
  ~CountedRegion() override { --counts_.alive; }
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  RemoteMemory remote() const noexcept override { return {}; }

 private:
  Counts& counts_;
  std::span<std::byte> bytes_;
};

class CountingDevice final : public Device {
 public:
  std::string name() const override { return "counting"; }
  const Limits& limits() const noexcept override { return limits_; }
  std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind) override {
    if (refuse) throw Error(ErrorCode::system, "no locked memory left");
    return std::make_unique<CountedRegion>(counts, bytes);
  }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions&) override { return nullptr; }

  Counts counts;
  bool refuse = false;

 private:
  Limits limits_;
};

class RegistrationCacheTest : public ::testing::Test {
 protected:
  auto get(std::size_t offset, std::size_t bytes) {
    return cache.get(std::span(memory).subspan(offset, bytes), MemoryKind::host);
  }
  std::vector<std::byte> memory = std::vector<std::byte>(1000);
  CountingDevice device;
  RegistrationCache cache{device};
};

TEST_F(RegistrationCacheTest, TheSameRangeIsRegisteredOnce) {
  const auto first = get(100, 500), second = get(100, 500);
  EXPECT_EQ(first, second);
  EXPECT_EQ(device.counts.made, 1);
}

TEST_F(RegistrationCacheTest, AnEnclosedRangeUsesTheRegionAround) {
  const auto outer = get(100, 500);
  EXPECT_EQ(get(100, 1), outer);
  EXPECT_EQ(get(300, 50), outer);
  EXPECT_EQ(get(599, 1), outer);
  EXPECT_EQ(device.counts.made, 1);
}

TEST_F(RegistrationCacheTest, ARangeThatSticksOutGetsItsOwn) {
  const auto region = get(100, 500);
  const auto before = get(99, 2), after = get(599, 2), around = get(0, 1000);
  EXPECT_EQ(device.counts.made, 4);
  EXPECT_EQ(before->bytes().data(), &memory[99]);
  EXPECT_EQ(after->bytes().size(), 2u);
  EXPECT_EQ(around->bytes().size(), 1000u);
}

TEST_F(RegistrationCacheTest, ARegionEndsWithItsLastHandle) {
  auto first = get(0, 100);
  auto inside = get(10, 10);
  first.reset();
  EXPECT_EQ(device.counts.alive, 1) << "the enclosed range still uses it";
  inside.reset();
  EXPECT_EQ(device.counts.alive, 0);
  const auto again = get(0, 100);
  EXPECT_EQ(device.counts.made, 2) << "memory may have moved since: a new registration";
}

TEST_F(RegistrationCacheTest, ARefusalLeavesTheCacheAsItWas) {
  const auto kept = get(0, 100);
  device.refuse = true;
  EXPECT_THROW(get(200, 100), Error);
  EXPECT_EQ(get(0, 100), kept);
  device.refuse = false;
  EXPECT_NE(get(200, 100), nullptr);
  EXPECT_EQ(device.counts.made, 2);
}

}  // namespace
}  // namespace nzcl::verbs

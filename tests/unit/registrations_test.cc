// A communicator's registrations, on a device that counts what is registered.
#include "runtime/comm/session/registrations.h"

#include <gtest/gtest.h>

#include <vector>

#include "nzcl/error.h"

namespace nzcl::comm {
namespace {

using verbs::Device;
using verbs::Endpoint;
using verbs::EndpointOptions;
using verbs::Limits;
using verbs::MemoryRegion;
using verbs::RemoteMemory;

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

class RegistrationsTest : public ::testing::Test {
 protected:
  std::span<std::byte> range(std::size_t offset, std::size_t bytes) {
    return std::span(memory).subspan(offset, bytes);
  }
  auto add(std::size_t offset, std::size_t bytes) {
    return registrations.add(range(offset, bytes), MemoryKind::host);
  }
  std::vector<std::byte> memory = std::vector<std::byte>(1000);
  std::shared_ptr<CountingDevice> device = std::make_shared<CountingDevice>();
  const Counts& counts = device->counts;
  Registrations registrations{device};
};

TEST_F(RegistrationsTest, TheSameRangeIsRegisteredOnce) {
  const auto first = add(100, 500), second = add(100, 500);
  EXPECT_EQ(first->region, second->region);
  EXPECT_EQ(counts.made, 1);
}

TEST_F(RegistrationsTest, AnEnclosedRangeUsesTheRegionAround) {
  const auto outer = add(100, 500);
  EXPECT_EQ(add(100, 1)->region, outer->region);
  EXPECT_EQ(add(300, 50)->region, outer->region);
  EXPECT_EQ(add(599, 1)->region, outer->region);
  EXPECT_EQ(counts.made, 1);
}

TEST_F(RegistrationsTest, ARangeThatSticksOutGetsItsOwn) {
  const auto registration = add(100, 500);
  const auto before = add(99, 2), after = add(599, 2), around = add(0, 1000);
  EXPECT_EQ(counts.made, 4);
  EXPECT_EQ(before->region->bytes().data(), &memory[99]);
  EXPECT_EQ(after->region->bytes().size(), 2u);
  EXPECT_EQ(around->region->bytes().size(), 1000u);
}

TEST_F(RegistrationsTest, ARegionEndsWithItsLastHolder) {
  auto first = add(0, 100);
  auto inside = add(10, 10);
  first.reset();
  EXPECT_EQ(counts.alive, 1) << "the enclosed range still uses it";
  inside.reset();
  EXPECT_EQ(counts.alive, 0);
  const auto again = add(0, 100);
  EXPECT_EQ(counts.made, 2) << "memory may have moved since: a new registration";
}

TEST_F(RegistrationsTest, ARegionThatOnlyAnOperationHoldsIsNotHandedOut) {
  auto handle = add(0, 100);
  const SharedRegion held = registrations.find(range(0, 100));
  EXPECT_EQ(held, handle->region);
  handle.reset();
  EXPECT_EQ(counts.alive, 1);
  EXPECT_EQ(registrations.find(range(0, 100)), nullptr) << "its memory may be gone";
  const auto again = add(0, 100);
  EXPECT_NE(again->region, held) << "other pages may lie there now";
  EXPECT_EQ(registrations.find(range(0, 100)), again->region);
}

TEST_F(RegistrationsTest, WhatNoHandleCoversAnyMoreIsRegisteredAnew) {
  auto outer = add(0, 100);
  const auto inner = add(10, 10);
  outer.reset();
  EXPECT_EQ(registrations.find(range(0, 100)), nullptr) << "only the inner range is still promised to stay";
  EXPECT_NE(add(0, 100)->region, inner->region);
}

TEST_F(RegistrationsTest, RemembersWhichHandlesAreGone) {
  EXPECT_FALSE(registrations.was_released(range(0, 100)));
  auto handle = add(0, 100);
  EXPECT_FALSE(registrations.was_released(range(0, 100)));
  handle.reset();
  EXPECT_TRUE(registrations.was_released(range(10, 20)));
  EXPECT_FALSE(registrations.was_released(range(90, 20)));
  for (int i = 0; i < 1000; ++i) add(200, 100);
  EXPECT_FALSE(registrations.was_released(range(0, 100))) << "but not for ever";
}

TEST_F(RegistrationsTest, ARegionOutlivesWhoMadeIt) {
  auto other = std::make_unique<Registrations>(device);
  const auto handle = other->add(range(0, 100), MemoryKind::host);
  other.reset();
  EXPECT_EQ(handle->region->bytes().size(), 100u);
}

TEST_F(RegistrationsTest, ARefusalLeavesEverythingAsItWas) {
  const auto kept = add(0, 100);
  device->refuse = true;
  EXPECT_THROW(add(200, 100), Error);
  EXPECT_EQ(add(0, 100)->region, kept->region);
  device->refuse = false;
  EXPECT_NE(add(200, 100)->region, nullptr);
  EXPECT_EQ(counts.made, 2);
}

}  // namespace
}  // namespace nzcl::comm

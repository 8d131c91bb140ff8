// Memory stays registered as long as its handle lives or an operation that uses it runs, and no longer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "runtime/bootstrap/local.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {
namespace {

using comm::CommunicatorCore;
using comm::Registration;
using testing::HasSubstr;

struct Counts {
  std::atomic<int> made{0}, alive{0};
};

class CountedRegion final : public verbs::MemoryRegion {
 public:
  CountedRegion(std::unique_ptr<MemoryRegion> region, Counts& counts)
      : region_(std::move(region)), counts_(counts) {
    ++counts_.made;
    ++counts_.alive;
  }
  ~CountedRegion() override { --counts_.alive; }
  std::span<std::byte> bytes() const noexcept override { return region_->bytes(); }
  verbs::RemoteMemory remote() const noexcept override { return region_->remote(); }

 private:
  std::unique_ptr<MemoryRegion> region_;
  Counts& counts_;
};

/// A loopback device that counts registrations. It counts only the sizes that the tests use, so that the
/// lanes' own memory does not matter.
class CountingDevice final : public verbs::Device {
 public:
  static constexpr std::size_t kMost = 64 << 10;
  CountingDevice(std::shared_ptr<Device> device, Counts& counts)
      : device_(std::move(device)), counts_(counts) {}
  std::string name() const override { return device_->name(); }
  const verbs::Limits& limits() const noexcept override { return device_->limits(); }
  std::unique_ptr<verbs::MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override {
    auto region = device_->register_memory(bytes, kind);
    if (bytes.size() > kMost) return region;
    return std::make_unique<CountedRegion>(std::move(region), counts_);
  }
  std::unique_ptr<verbs::Endpoint> open_endpoint(const verbs::EndpointOptions& options) override {
    return device_->open_endpoint(options);
  }

 private:
  std::shared_ptr<Device> device_;
  Counts& counts_;
};

/// Two ranks as two threads, each with its own buffer.
class RegistrationTest : public testing::Test {
 protected:
  struct Rank {
    CommunicatorCore& core;
    Counts& counts;
    int index;
    std::vector<float> data = std::vector<float>(10000, 1.0f);
    std::shared_ptr<Registration> add() { return core.register_memory(data.data(), 40000, MemoryKind::host); }
    std::shared_ptr<engine::Operation> start() {
      const AllreduceRequest request{.input = data.data(), .output = data.data(), .count = data.size()};
      return core.start(&request);
    }
  };
  void run(const std::function<void(Rank&)>& body) {
    const auto meeting = std::make_shared<bootstrap::LocalMeeting>(2);
    verbs::LoopbackNetwork network;
    std::vector<std::jthread> threads;
    for (int index = 0; index < 2; ++index) {
      threads.emplace_back([&, index] {
        Counts counts;
        Options options;
        options.pin = Pinning::off;
        options.log_level = LogLevel::off;
        const auto core = CommunicatorCore::join(
            options, bootstrap::make_local_meeting(meeting, index), {bootstrap::Role::worker, index},
            std::make_shared<comm::Session>(std::make_shared<CountingDevice>(network.device(), counts)));
        Rank rank{*core, counts, index};
        body(rank);
        core->close();
      });
    }
  }
};

TEST(SessionTest, WhatIsRegisteredOnceMoreEndsWithItsHandleAndWithItsSession) {
  verbs::LoopbackNetwork network;
  Counts here, there;
  const auto first =
      std::make_shared<comm::Session>(std::make_shared<CountingDevice>(network.device(), here));
  std::vector<float> data(1000);
  auto handle = first->register_memory(data.data(), data.size() * sizeof(float), MemoryKind::host);
  const auto another = [&] {
    return first->onto(std::make_shared<CountingDevice>(network.device(), there), verbs::DeviceOptions{});
  };
  auto second = another();
  EXPECT_EQ(there.alive, 1);
  second.reset();  // as when not all ranks could join
  EXPECT_EQ(there.alive, 0);
  EXPECT_EQ(here.alive, 1);
  second = another();
  EXPECT_EQ(there.alive, 1);
  handle.reset();
  EXPECT_EQ(there.alive, 0);
  EXPECT_EQ(here.alive, 0);
}

TEST_F(RegistrationTest, AFinishedOperationHoldsNoMemory) {
  run([](Rank& rank) {
    auto handle = rank.add();
    const auto operation = rank.start();
    rank.core.wait(*operation, std::nullopt);
    EXPECT_EQ(rank.counts.alive, 1);
    handle.reset();
    EXPECT_EQ(rank.counts.alive, 0);
    handle = rank.add();
    EXPECT_EQ(rank.counts.made, 2) << "other pages may lie at the same address now";
    rank.core.wait(*rank.start(), std::nullopt);
    EXPECT_EQ(rank.data[0], 4.0f);
  });
}

TEST_F(RegistrationTest, AnOperationKeepsItsMemoryUntilItIsOverAndNoLonger) {
  std::atomic<bool> may_start = false;
  run([&](Rank& rank) {
    auto handle = rank.add();
    if (rank.index == 1) {
      while (!may_start) std::this_thread::yield();
      rank.core.wait(*rank.start(), std::nullopt);
      return;
    }
    rank.start();  // the operation is started, and nobody waits for it
    handle.reset();
    EXPECT_EQ(rank.counts.alive, 1) << "the other rank is to write into it";
    may_start = true;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (rank.counts.alive > 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(rank.counts.alive, 0) << "without any further call";
    EXPECT_EQ(rank.data[0], 2.0f);
  });
}

TEST_F(RegistrationTest, MemoryWithoutAHandleIsNotUsedEvenIfAnOperationStillHoldsIt) {
  std::atomic<bool> may_start = false;
  run([&](Rank& rank) {
    auto handle = rank.add();
    if (rank.index == 1) {
      while (!may_start) std::this_thread::yield();
      rank.core.wait(*rank.start(), std::nullopt);
      return;
    }
    const auto operation = rank.start();
    handle.reset();
    try {
      rank.start();
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(),
                  HasSubstr("not inside a registered buffer any more: its RegisteredBuffer is gone"));
    }
    handle = rank.add();
    EXPECT_EQ(rank.counts.made, 2);
    may_start = true;
    rank.core.wait(*operation, std::nullopt);
    EXPECT_EQ(rank.counts.alive, 1) << "the new one";
  });
}

TEST_F(RegistrationTest, CommunicatorsThatAreSplitShareTheDeviceAndItsMemory) {
  run([](Rank& rank) {
    const auto child = rank.core.split(0, -rank.index);
    auto of_parent = rank.add();
    auto of_child = child->register_memory(rank.data.data(), 40000, MemoryKind::host);
    EXPECT_EQ(rank.counts.made, 1) << "the same range, so the same registration";
    of_parent.reset();
    const AllreduceRequest request{
        .input = rank.data.data(), .output = rank.data.data(), .count = rank.data.size()};
    rank.core.wait(*rank.start(), std::nullopt);
    child->wait(*child->start(&request), std::nullopt);
    EXPECT_EQ(rank.data[0], 4.0f);
    of_child.reset();
    EXPECT_EQ(rank.counts.alive, 0);
    of_parent = rank.add();
    child->wait(*child->start(&request), std::nullopt);
    EXPECT_EQ(rank.data[0], 8.0f);
    EXPECT_EQ(rank.counts.made, 2);
    child->close();
  });
}

}  // namespace
}  // namespace nzcl::test

// How many descriptors the lanes of a member take, and how many of them peers that take turns may keep.
#include "runtime/comm/join/descriptor_need.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "perf/lane/lone_lane.h"

namespace nzcl::comm {
namespace {

/// A device of which only the limits are looked at.
class LimitedDevice final : public verbs::Device {
 public:
  explicit LimitedDevice(const verbs::Limits& all) : all_(all) {}
  LimitedDevice(const verbs::Limits& all, const verbs::Limits& within, const verbs::Limits& between)
      : all_(all), within_(within), between_(between), mixed_(true) {}
  std::string name() const override { return "limited"; }
  const verbs::Limits& limits() const noexcept override { return all_; }
  const verbs::Limits& limits_at(verbs::Level level) const noexcept override {
    return level == verbs::Level::within ? within_ : between_;
  }
  bool is_mixed() const noexcept override { return mixed_; }
  std::unique_ptr<verbs::MemoryRegion> register_memory(std::span<std::byte>, MemoryKind) override {
    return nullptr;
  }
  std::unique_ptr<verbs::Endpoint> open_endpoint(const verbs::EndpointOptions&) override { return nullptr; }

 private:
  const verbs::Limits all_, within_, between_;
  const bool mixed_ = false;
};

const verbs::Limits kCma{
    .endpoint_descriptors = 4, .peer_descriptors = 2, .least_peers = 1, .take_turns = true, .costs = {}};
const verbs::Limits kShm{.endpoint_descriptors = 8, .peer_descriptors = 2, .costs = {}};
const verbs::Limits kTcp{.endpoint_descriptors = 8, .peer_descriptors = 1, .least_peers = 32, .costs = {}};

DescriptorNeed need(int ranks, int per_host, int lanes, const verbs::Device& device) {
  engine::Membership membership = perf::lane::many_ranks(ranks, per_host);
  membership.lanes = lanes;
  return descriptors_of_lanes(membership, device);
}

TEST(DescriptorNeed, OfAThousandRanksFitsIntoAThousand) {
  EXPECT_EQ(need(1000, 1000, 1, LimitedDevice(kCma)).least, 4u + 2);
  EXPECT_EQ(need(1000, 1000, 1, LimitedDevice(kCma)).all, 4u + 2 * 999);
  EXPECT_EQ(need(1000, 1, 1, LimitedDevice(kTcp)).least, 8u + 32);
  EXPECT_EQ(need(1000, 1, 1, LimitedDevice(kTcp)).all, 8u + 999);
}

TEST(DescriptorNeed, OfATransportThatConnectsAllAtOnceIsForAll) {
  const DescriptorNeed shm = need(100, 100, 2, LimitedDevice(kShm));
  EXPECT_EQ(shm.least, 2u * (8 + 2 * 99));
  EXPECT_EQ(shm.all, shm.least);
  EXPECT_EQ(shm.turns, 0u);
}

TEST(DescriptorNeed, OfTwoTransportsIsForThePeersOfEach) {
  const verbs::Limits both{.endpoint_descriptors = 4 + 8 + 1, .costs = {}};
  const DescriptorNeed mixed = need(1000, 8, 2, LimitedDevice(both, kCma, kTcp));
  EXPECT_EQ(mixed.least, 2u * (13 + 2 + 32));
  EXPECT_EQ(mixed.all, 2u * (13 + 2 * 7 + 992));
  EXPECT_EQ(mixed.turns, 2u * 7);
  EXPECT_EQ(mixed.least_turns, 2u);
  EXPECT_EQ(need(16, 8, 1, LimitedDevice(both, kCma, kTcp)).least, 13u + 2 + 8);
}

TEST(DescriptorsForTurns, AreForAllPeersIfTheseFit) {
  const DescriptorNeed cma = need(100, 100, 2, LimitedDevice(kCma));
  EXPECT_EQ(descriptors_for_turns(cma, 2, cma.all), 0u);  // as many as it wants
  EXPECT_EQ(descriptors_for_turns(need(100, 100, 2, LimitedDevice(kShm)), 2, 0), 0u);
}

TEST(DescriptorsForTurns, LeaveHalfOfWhatIsFreeToOthers) {
  const DescriptorNeed cma = need(1000, 1000, 2, LimitedDevice(kCma));
  EXPECT_EQ(cma.least, 12u);
  EXPECT_EQ(descriptors_for_turns(cma, 2, 12), 2u);
  EXPECT_EQ(descriptors_for_turns(cma, 2, 12 + 40), 2u + 10);
  EXPECT_EQ(descriptors_for_turns(cma, 2, cma.all - 1), 2u + (cma.all - 13) / 4);
}

}  // namespace
}  // namespace nzcl::comm

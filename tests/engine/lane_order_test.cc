// In which order a lane uses its endpoint.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/cluster.h"
#include "tests/engine/two_rank_sum.h"

namespace nzcl::test {
namespace {

/// Endpoints of the loopback network that note what was called: 'w' for writes that were posted, 'p' for a
/// poll.
class NotingDevice final : public verbs::Device {
 public:
  explicit NotingDevice(std::shared_ptr<verbs::Device> device) : device_(std::move(device)) {}
  std::string name() const override { return device_->name(); }
  const verbs::Limits& limits() const noexcept override { return device_->limits(); }
  std::unique_ptr<verbs::MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override {
    return device_->register_memory(bytes, kind);
  }
  std::unique_ptr<verbs::Endpoint> open_endpoint(const verbs::EndpointOptions& options) override {
    return std::make_unique<NotingEndpoint>(device_->open_endpoint(options), calls_);
  }
  std::string take_calls() { return std::exchange(calls_, {}); }

 private:
  class NotingEndpoint final : public verbs::Endpoint {
   public:
    NotingEndpoint(std::unique_ptr<verbs::Endpoint> endpoint, std::string& calls)
        : endpoint_(std::move(endpoint)), calls_(calls) {}
    std::string address_for(verbs::PeerId peer) override { return endpoint_->address_for(peer); }
    void connect(std::span<const std::string> addresses, verbs::Deadline deadline) override {
      endpoint_->connect(addresses, deadline);
    }
    std::size_t post(std::span<const verbs::Write> writes) noexcept override {
      if (!writes.empty()) calls_ += 'w';
      return endpoint_->post(writes);
    }
    std::size_t poll(std::span<verbs::Completion> out) noexcept override {
      calls_ += 'p';
      return endpoint_->poll(out);
    }
    std::string failure() const override { return endpoint_->failure(); }
    std::size_t in_flight() const noexcept override { return endpoint_->in_flight(); }
    int wait_fd() const noexcept override { return endpoint_->wait_fd(); }
    bool prepare_wait() noexcept override { return endpoint_->prepare_wait(); }

   private:
    const std::unique_ptr<verbs::Endpoint> endpoint_;
    std::string& calls_;
  };
  const std::shared_ptr<verbs::Device> device_;
  std::string calls_;
};

/// A peer that has called before waits for what this rank has to send. What the peer has sent takes time to
/// look at, because it lies in the caches of another core.
TEST(LaneOrder, WhatIsSubmittedLeavesBeforeWhatHasComeIsLookedAt) {
  constexpr std::uint64_t kCount = 2;
  std::shared_ptr<NotingDevice> noting;
  ClusterOptions options;
  options.device = [&](int member, std::shared_ptr<verbs::Device> device) -> std::shared_ptr<verbs::Device> {
    if (member != 0) return device;
    return noting = std::make_shared<NotingDevice>(std::move(device));
  };
  Cluster cluster(options);
  TwoRankSum sum(cluster, kCount, kCount);
  cluster.submit(1, *sum.operations[1]);
  cluster.lane(1, 0).drive();  // its message is here now
  noting->take_calls();
  cluster.submit(0, *sum.operations[0]);
  cluster.lane(0, 0).drive();
  EXPECT_EQ(noting->take_calls().substr(0, 2), "wp");
  for (int round = 0; round < 10; ++round) cluster.lane(0, 0).drive(), cluster.lane(1, 0).drive();
  EXPECT_TRUE(sum.operations[0]->finished() && sum.operations[1]->finished());
  EXPECT_EQ(sum.data[0], std::vector<std::int32_t>(kCount, 2));
  EXPECT_EQ(sum.data[1], std::vector<std::int32_t>(kCount, 2));
}

}  // namespace
}  // namespace nzcl::test

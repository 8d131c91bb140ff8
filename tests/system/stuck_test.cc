// After a failure, operations fail and close() returns even if the transport does not give a thread back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>
#include <vector>

#include "runtime/bootstrap/local.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {
namespace {

using comm::CommunicatorCore;
using comm::Session;
using testing::HasSubstr;

/// What the test and the thread that gets stuck share. It is never destroyed, because that thread never ends.
struct Trap {
  verbs::LoopbackNetwork network;
  std::atomic<bool> is_set{false};
  std::latch caught{1}, never{1};
};

/// An endpoint whose post() does not return once the trap is set.
class StuckEndpoint final : public verbs::Endpoint {
 public:
  StuckEndpoint(std::unique_ptr<Endpoint> endpoint, Trap& trap)
      : endpoint_(std::move(endpoint)), trap_(trap) {}
  std::string address_for(verbs::PeerId peer) override { return endpoint_->address_for(peer); }
  void connect(std::span<const std::string> addresses, verbs::Deadline deadline) override {
    endpoint_->connect(addresses, deadline);
  }
  std::size_t post(std::span<const verbs::Write> writes) noexcept override {
    if (trap_.is_set) {
      trap_.caught.count_down();
      trap_.never.wait();
    }
    return endpoint_->post(writes);
  }
  std::size_t poll(std::span<verbs::Completion> out) noexcept override { return endpoint_->poll(out); }
  std::string failure() const override { return endpoint_->failure(); }
  std::size_t in_flight() const noexcept override { return endpoint_->in_flight(); }

 private:
  std::unique_ptr<Endpoint> endpoint_;
  Trap& trap_;
};

class StuckDevice final : public verbs::Device {
 public:
  explicit StuckDevice(Trap& trap) : device_(trap.network.device()), trap_(trap) {}
  std::string name() const override { return "stuck"; }
  const verbs::Limits& limits() const noexcept override { return device_->limits(); }
  std::unique_ptr<verbs::MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) override {
    return device_->register_memory(bytes, kind);
  }
  std::unique_ptr<verbs::Endpoint> open_endpoint(const verbs::EndpointOptions& options) override {
    return std::make_unique<StuckEndpoint>(device_->open_endpoint(options), trap_);
  }

 private:
  std::shared_ptr<Device> device_;
  Trap& trap_;
};

/// One of two ranks, with a tensor of ones.
class Rank {
 public:
  Rank(int rank, const std::shared_ptr<verbs::Device>& device,
       const std::shared_ptr<bootstrap::LocalMeeting>& meeting)
      : session_(std::make_shared<Session>(device)),
        handle_(session_->register_memory(data_.data(), data_.size() * sizeof(float), MemoryKind::host)) {
    Options options;
    options.pin = Pinning::off;
    options.log_level = LogLevel::off;
    core_ = CommunicatorCore::join(options, bootstrap::make_local_meeting(meeting, rank),
                                   {bootstrap::Role::worker, rank}, session_);
  }
  std::shared_ptr<engine::Operation> sum() {
    const AllreduceRequest request{.input = data_.data(), .output = data_.data(), .count = data_.size()};
    return core_->start(&request);
  }
  CommunicatorCore& core() { return *core_; }

 private:
  std::vector<float> data_ = std::vector<float>(100000, 1.0f);
  std::shared_ptr<Session> session_;
  std::shared_ptr<comm::Registration> handle_;
  std::shared_ptr<CommunicatorCore> core_;
};

TEST(Stuck, OperationsFailAndCloseReturnsWhenALaneDoesNotComeBack) {
  static Trap& trap = *new Trap;
  const auto meeting = std::make_shared<bootstrap::LocalMeeting>(2);
  std::jthread other([&] {
    Rank rank(1, trap.network.device(), meeting);
    trap.is_set.wait(false);
    const auto operation = rank.sum();
    trap.caught.wait();
    rank.core().abort({ErrorCode::aborted, "rank 1 gives up"});
  });
  Rank rank(0, std::make_shared<StuckDevice>(trap), meeting);
  const auto operation = rank.sum();
  trap.is_set = true;
  trap.is_set.notify_all();
  // The lane's own thread answers rank 1, because this thread does not drive.
  trap.caught.wait();
  EXPECT_FALSE(rank.core().wait(*operation, verbs::Clock::now() + std::chrono::milliseconds(20)))
      << "a wait with a limit ends, whoever has the lane";
  rank.core().wait(*operation, std::nullopt);
  ASSERT_TRUE(operation->failure());
  EXPECT_THAT(operation->failure()->text, HasSubstr("rank 1 gives up"));
  rank.core().close();
}

}  // namespace
}  // namespace nzcl::test

// A session outlives its communicators: the survivors of a failure go on with the same device and the same
// registered memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <numeric>
#include <thread>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/local.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {
namespace {

using comm::CommunicatorCore;
using comm::Session;
using testing::Each;
using testing::HasSubstr;

constexpr std::size_t kCount = 5000;

/// One rank of a job that loses its last rank. The memory that it registers once serves the communicators
/// before and after the loss.
class Survivor {
 public:
  Survivor(verbs::LoopbackNetwork& network, int first_rank)
      : session_(std::make_shared<Session>(network.device())),
        rank_(first_rank),
        handle_(session_->register_memory(data_.data(), data_.size() * sizeof(float), MemoryKind::host)) {}

  std::shared_ptr<CommunicatorCore> join(const std::shared_ptr<bootstrap::LocalMeeting>& meeting) {
    Options options;
    options.pin = Pinning::off;
    options.log_level = LogLevel::off;
    return CommunicatorCore::join(options, bootstrap::make_local_meeting(meeting, rank_),
                                  {bootstrap::Role::worker, rank_}, session_);
  }
  /// Sums ones over all ranks. Every element of the result is then the number of ranks.
  std::vector<float> sum(CommunicatorCore& core) {
    std::fill(data_.begin(), data_.end(), 1.0f);
    const AllreduceRequest request{.input = data_.data(), .output = data_.data(), .count = data_.size()};
    const auto operation = core.start(&request);
    core.wait(*operation, std::nullopt);
    if (const auto failure = operation->failure()) throw Error(failure->code, failure->text);
    return data_;
  }
  int rank() const { return rank_; }

 private:
  std::vector<float> data_ = std::vector<float>(kCount);
  std::shared_ptr<Session> session_;
  int rank_;
  std::shared_ptr<comm::Registration> handle_;
};

TEST(Session, SurvivorsRebuildOnTheSameMemory) {
  verbs::LoopbackNetwork network;
  const auto before = std::make_shared<bootstrap::LocalMeeting>(3);
  const auto after = std::make_shared<bootstrap::LocalMeeting>(2);
  std::latch summed(3);  // rank 2 must not abort the communicator before the others have their sums
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Survivor self(network, rank);
      {
        const auto core = self.join(before);
        EXPECT_THAT(self.sum(*core), Each(3.0f));
        summed.arrive_and_wait();
        if (rank == 2) {
          core->abort({ErrorCode::aborted, "rank 2 gives up"});
          return;
        }
        try {
          while (true) self.sum(*core);
        } catch (const Error& e) {
          EXPECT_THAT(e.what(), HasSubstr("rank 2 gives up"));
        }
      }
      const auto core = self.join(after);
      EXPECT_THAT(self.sum(*core), Each(2.0f));
      core->close();
    });
  }
}

}  // namespace
}  // namespace nzcl::test

// Gathering: every rank gets the contributions of all ranks, and sums them itself.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/channel/slot_writer.h"
#include "runtime/exchange/exchange.h"
#include "runtime/exchange/gather/arrivals.h"
#include "runtime/exchange/gather/schedule.h"
#include "runtime/exchange/gather/whole_sum.h"

namespace nzcl::engine {

/// For operations of one slice, whose messages each fit a slot. A schedule says which contributions go to
/// whom: in one hop every rank's own to every other one, or by doubling in log2 N rounds. Steps, invariants
/// and bytes: runtime/exchange/gather/README.md.
class GatherExchange final : public Exchange {
 public:
  /// For operations of this priority. `context` must outlive it.
  GatherExchange(LaneContext& context, wire::Priority priority, const Schedule& schedule);

  void submit(Operation& operation) override;
  bool step() override;
  void expect_messages() const override;
  void direct_arrived(std::uint16_t member, std::uint16_t sequence) override;
  bool idle() const override { return waiting_count_ == 0 && started_ == finished_ && !arrivals_.early(); }
  Stall waiting_for() const override;

 private:
  /// An operation under way, and the buffer that the message with this rank's own contribution lies in.
  struct Running {
    Operation* operation = nullptr;
    StagingPool::Index staging = 0;
    std::uint32_t bytes = 0;
  };
  /// A leg of the schedule, on its way from here.
  struct Outgoing {
    Leg leg;
    std::uint16_t to = 0;
    std::uint64_t sent = 0;  // operations whose message has been sent
  };

  bool may_start() const;
  void start_next();
  std::uint64_t compose(Operation& operation, bool whole, std::uint64_t sequence, StagingPool::Index staging);
  void check();
  bool send();
  bool may_send(const Outgoing& out) const;
  bool has_arrived(int contributions, std::uint64_t sequence) const;
  void send_own(Outgoing& out);
  void send_with_others(Outgoing& out);
  int lowest_refused(const Leg& leg, std::uint64_t sequence);
  bool put_others(SlotWriter& message, const Leg& leg, std::uint64_t sequence);
  bool sum();
  bool complete(std::uint64_t sequence) const;
  void sum_oldest();
  bool ready(const Outgoing& out) const {
    return context_.channel_sets[static_cast<std::size_t>(priority_)][out.to].send_up.ready();
  }
  std::uint32_t free_buffers() const {
    return context_.staging[static_cast<std::size_t>(priority_)].available();
  }
  Operation& next() const { return *waiting_[first_waiting_]; }
  Running& running(std::uint64_t sequence) { return running_[sequence % kGatherWindow]; }
  const Running& running(std::uint64_t sequence) const { return running_[sequence % kGatherWindow]; }

  LaneContext& context_;
  const wire::Priority priority_;
  const int ranks_;
  std::vector<Outgoing> legs_;
  Arrivals arrivals_;
  WholeSum sum_;
  std::array<Operation*, kMaxOperations> waiting_{};  // submitted, but not started
  std::uint32_t first_waiting_ = 0, waiting_count_ = 0;
  std::array<Running, kGatherWindow> running_;  // by sequence, from finished_ to started_
  std::uint64_t started_ = 0, finished_ = 0;    // how many operations; also the sequence of the next one
};

}  // namespace nzcl::engine

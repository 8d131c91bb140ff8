// One hop: every rank sends its contribution to every other one, and each of them sums all contributions
// itself.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/exchange/exchange.h"
#include "runtime/exchange/one_hop/arrivals.h"
#include "runtime/exchange/one_hop/whole_sum.h"

namespace nzcl::engine {

/// For express operations, each of which is one slice and one message. A sum is ready in half the time that
/// the way to an owner and back takes, and no result is sent. In return N ranks send N (N-1) messages, so
/// this is for very few ranks (one_hop_pays() in runtime/plan/cost_model.h).
///
/// Steps, on every rank:
/// 1. Compose the contribution in one staging buffer. Nothing is gathered from the user's buffer, because in
///    an operation in place the sum may overwrite it before the message has left.
/// 2. Push the message to all other ranks. The buffer is kept, and this rank's own contribution read from it.
/// 3. When the messages of all ranks are there, sum run by run, in rank order, directly into the output. All
///    ranks sum the same bytes in the same order, so they get the same bits.
///
/// Invariants:
/// - At most kOneHopWindow operations of this rank are under way. What another rank may send ahead of them is
///   bounded by the slots of its channel.
/// - A message is sent only when every other rank has a free slot for it.
class OneHopExchange final : public Exchange {
 public:
  explicit OneHopExchange(LaneContext& context);

  void submit(Operation& operation) override;
  bool step() override;
  void direct_arrived(std::uint16_t member, std::uint16_t sequence) override;
  bool idle() const override { return waiting_count_ == 0 && sent_ == finished_ && arrivals_.empty(); }
  Stall waiting_for() const override;

 private:
  /// An operation whose message has been sent, and the buffer that this rank's contribution lies in.
  struct Running {
    Operation* operation = nullptr;
    StagingPool::Index staging = 0;
    WholeContribution own;
  };

  bool may_send();
  void send_next();
  std::uint64_t compose(Operation& operation, std::uint64_t sequence, StagingPool::Index staging);
  bool sum();
  void sum_oldest();
  Operation& next() const { return *waiting_[first_waiting_]; }
  const Running& oldest() const { return running_[finished_ % kOneHopWindow]; }

  LaneContext& context_;
  std::vector<std::uint16_t> others_;  // all ranks but this one
  Arrivals arrivals_;
  WholeSum sum_;
  std::array<Operation*, kMaxOperations> waiting_{};  // submitted, but not sent yet
  std::uint32_t first_waiting_ = 0, waiting_count_ = 0;
  std::array<Running, kOneHopWindow> running_;    // by sequence, from finished_ to sent_
  std::uint64_t sent_ = 0, finished_ = 0;         // how many operations; also the sequence of the next one
  std::vector<WholeContribution> contributions_;  // to the oldest operation, by rank
};

}  // namespace nzcl::engine

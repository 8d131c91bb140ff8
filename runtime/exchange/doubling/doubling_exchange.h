// Doubling: in log2 N rounds every rank gets the contributions of all ranks, and sums them itself.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exchange/contributions/intake.h"
#include "runtime/exchange/contributions/output_sum.h"
#include "runtime/exchange/contributions/section_writer.h"
#include "runtime/exchange/exchange.h"

namespace nzcl::engine {

/// For operations whose largest batch fits a slot (doubling_bytes() in runtime/plan/engine_config.h), each of
/// which is one slice. Steps, invariants and bytes: runtime/exchange/doubling/README.md.
class DoublingExchange final : public Exchange {
 public:
  explicit DoublingExchange(LaneContext& context);

  void submit(Operation& operation) override;
  bool step() override;
  void direct_arrived(std::uint16_t member, std::uint16_t sequence) override;
  bool idle() const override {
    return waiting_count_ == 0 && started_ == finished_ && !intake_.oldest().active;
  }
  Stall waiting_for() const override;

 private:
  struct Round {
    std::uint16_t to = 0, from = 0;
    int entries = 0;         // of the batch that goes to `to`, and of the one that comes from `from`
    std::uint64_t sent = 0;  // operations whose batch of this round has been sent
  };
  /// A batch that has arrived. It stays in its slot until its operation is over.
  struct Held {
    const std::byte* entries = nullptr;  // nullptr: it is not here
    std::uint32_t slot = 0;
  };

  bool receive();
  bool take(int round, const ReceiveChannel::Received& message);
  bool malformed(int round, const char* wrong);
  bool start();
  bool send();
  bool may_send(int round) const;
  void send_batch(int round);
  bool sum();
  void release_slots(std::uint64_t sequence);
  bool all_sent(std::uint64_t sequence) const;
  void return_credits();

  // What is kept of an operation, by its sequence modulo kWindow.
  std::size_t place(std::uint64_t sequence) const { return static_cast<std::size_t>(sequence % kWindow); }
  Held& held(std::uint64_t sequence, std::size_t round) {
    return held_[place(sequence) * rounds_.size() + round];
  }
  const Held& held(std::uint64_t sequence, std::size_t round) const {
    return held_[place(sequence) * rounds_.size() + round];
  }
  /// Where the contribution of the rank `distance` before this one ends in its batch.
  std::uint32_t& end_of(std::uint64_t sequence, int distance) {
    return ends_[place(sequence) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(distance)];
  }
  std::byte* own_entry(std::uint64_t sequence) { return own_.get() + place(sequence) * own_bytes_; }
  Operation& next() const { return *waiting_[first_waiting_]; }

  LaneContext& context_;
  const int ranks_;
  const std::uint64_t own_bytes_;  // of the largest entry
  Intake intake_;
  OutputSum sum_;
  std::vector<Round> rounds_;
  std::vector<Held> held_;                            // by place, then round
  std::vector<std::uint32_t> ends_;                   // by place, then distance
  std::unique_ptr<std::byte[]> own_;                  // by place: this rank's own entry
  std::array<Operation*, kWindow> operations_{};      // by place: those that have been started
  std::array<Operation*, kMaxOperations> waiting_{};  // submitted, but not started
  std::uint32_t first_waiting_ = 0, waiting_count_ = 0;
  std::uint64_t started_ = 0, finished_ = 0;  // how many operations; also the sequence of the next one
};

}  // namespace nzcl::engine

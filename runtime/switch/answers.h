// The answers that an aggregator has still to send.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/switch/slot_sets.h"
#include "runtime/switch/tuning.h"

namespace nzcl::engine::slot_pool {

/// The same packet goes to every rank.
inline constexpr int kToAll = -1;

/// A packet that is to be sent.
struct Out {
  int rank = 0;  // or kToAll
  std::span<const std::byte> packet;
};

/// What is sent of a set, and to whom. The packet is made when it is sent: what it says may be over by then.
struct Answer {
  enum class What : std::uint8_t {
    result,
    waiting,
    absent,  // the answer to a question
    lost     // the same, but nobody has asked
  };
  std::uint32_t set = 0;
  std::uint32_t round = 0;
  int rank = 0;
  What what = What::result;
};

/// A queue of a fixed size. What is beyond that is dropped, and whoever misses it asks again.
class Answers {
 public:
  /// For each slot one result and some repetitions, which ranks ask for.
  explicit Answers(const Pool& pool)
      : ring_(kAnswersOfSlot * std::size_t{pool.slots} + static_cast<std::size_t>(pool.workers)) {}
  bool empty() const { return count_ == 0; }
  const Answer& front() const { return ring_[first_]; }
  /// Whether there is room for what nobody has asked for, beside what others may ask for.
  bool has_spare() const { return count_ < ring_.size() / 2; }
  void push(const Answer& answer) {
    if (count_ < ring_.size()) ring_[(first_ + count_++) % ring_.size()] = answer;
  }
  void pop() {
    first_ = (first_ + 1) % ring_.size();
    --count_;
  }

 private:
  std::vector<Answer> ring_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace nzcl::engine::slot_pool

// What a worker has under way with one owner.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/channel/channel.h"
#include "runtime/exchange/contributions/section_writer.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {

/// One slice between its start and its completion: the contribution on its way up, the result on its way
/// down.
struct Transfer {
  bool active = false;
  Contribution up;
  std::uint64_t weight = 0;     // what it takes of the worker's cache
  bool have_union = false;      // the result's bitmap is there
  std::optional<RunWalk> down;  // once it is known where in the output the result begins
  std::uint64_t union_bytes = 0, received_bytes = 0;
  bool direct = false;  // the owner writes the result in place, and says how many writes that were
  std::uint32_t direct_expected = 0, direct_seen = 0;

  Operation& operation() { return *up.operation; }
  bool complete() const {
    return have_union && (direct ? direct_seen == direct_expected : received_bytes == union_bytes);
  }
};

/// Bookkeeping only. Slices of one owner are numbered by their *sequence*, over all operations: they are
/// started in this order, at most kWindow beyond the oldest that is not complete.
class Uplink {
 public:
  Uplink(std::uint16_t member, std::uint32_t owner) : member_(member), owner_(owner) {}

  std::uint16_t member() const { return member_; }

  /// Adds the operation's slices that belong to this owner. Returns how many there are.
  std::uint64_t submit(Operation& operation);

  // --- The next slice, which has not been started.
  bool has_next() const { return pending_count_ > 0; }
  Operation& next_operation() const { return *pending_[first_pending_].operation; }
  std::uint64_t next_slice() const {
    const Pending& pending = pending_[first_pending_];
    return pending.operation->layout.owned_slice(owner_, pending.next);
  }
  /// Whether it may be started: no more slices are under way than the window allows, and than `ahead_bytes`
  /// (0: no bound) of the cache hold.
  bool may_start(std::uint64_t ahead_bytes) const;
  /// Starts it. Precondition: it has been scanned, and may_start().
  Transfer& start();

  // --- Slices that were started.
  /// The transfer with this sequence, or of a sequence modulo 2^16; nullptr: it is not under way.
  Transfer* find(std::uint64_t sequence);
  Transfer* find_short(std::uint16_t sequence);
  bool any_started() const { return started_ > oldest_; }
  const Transfer& oldest() const { return transfers_[oldest_ % kWindow]; }
  /// All slices that were started have been sent.
  bool all_sent() const { return sending_ == started_; }
  /// The oldest slice that has not been wholly sent. Precondition: !all_sent().
  Transfer& sending() { return transfers_[sending_ % kWindow]; }
  /// To be called after something was sent.
  void skip_sent();
  /// The transfer is complete.
  void finish(Transfer& transfer);

  // --- A message with results that could not be put into place yet.
  ReceiveChannel::Received held;
  std::uint64_t held_at = 0;  // where its first section lies that was not

 private:
  struct Pending {  // an operation with slices that were not started yet
    Operation* operation = nullptr;
    std::uint64_t next = 0, owned = 0;
  };

  std::uint16_t member_;
  std::uint32_t owner_;
  std::array<Pending, kMaxOperations> pending_;
  std::uint32_t first_pending_ = 0, pending_count_ = 0;
  std::array<Transfer, kWindow> transfers_;  // by sequence
  std::uint64_t oldest_ = 0;                 // the least sequence that is not complete
  std::uint64_t sending_ = 0;                // the least sequence that is not wholly sent
  std::uint64_t started_ = 0;                // the next sequence to be started
  std::uint64_t weight_ = 0;                 // of the transfers that are not complete
};

}  // namespace nzcl::engine

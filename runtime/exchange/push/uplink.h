// What a worker has under way with one owner.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/channel/channel.h"
#include "runtime/exchange/contributions/section_writer.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {

/// One slice between its start and its completion: its contribution goes up, and its result comes down.
struct Transfer {
  bool active = false;
  Contribution up;
  std::uint64_t weight = 0;     // bytes of the worker's cache that it is counted with
  bool have_union = false;      // the result's bitmap has arrived
  std::optional<RunWalk> down;  // set when it is known where in the output the result begins
  std::uint64_t union_bytes = 0, received_bytes = 0;
  /// Of a tiled operation, in place of the union: how many tiles of the result are in place, and where in the
  /// payload of the section that holds the next one it begins.
  std::uint64_t placed_tiles = 0, section_at = 0;
  /// The owner writes the result in place, and its notice says how many writes there were.
  bool direct = false;
  std::uint32_t direct_expected = 0, direct_seen = 0;

  Operation& operation() { return *up.operation; }
  bool complete() const {
    if (up.tiles > 0) return placed_tiles == up.tiles;
    return have_union && (direct ? direct_seen == direct_expected : received_bytes == union_bytes);
  }
};

/// Keeps track of the slices of one owner; the worker sends them. Slices are numbered by their *sequence*,
/// over all operations. They are started in this order, at most `window` ahead of the oldest slice that is
/// not complete.
class Uplink {
 public:
  Uplink(std::uint16_t member, std::uint32_t owner, std::uint64_t window)
      : member_(member), owner_(owner), window_(window), transfers_(std::bit_ceil(window)) {}

  std::uint16_t member() const { return member_; }
  std::uint32_t owner() const { return owner_; }

  /// Adds the operation's slices that belong to this owner, of which there are `owned`. Returns how many it
  /// has added.
  std::uint64_t submit(Operation& operation, std::uint64_t owned);

  // --- The next slice that has not been started.
  bool has_next() const { return pending_count_ > 0; }
  Operation& next_operation() const { return *pending_[first_pending_].operation; }
  std::uint64_t next_slice() const { return pending_[first_pending_].slice; }
  /// Returns true if the next slice may be started. The window must have room, no more than kBitmapsAhead
  /// slices may wait to be sent, and beyond kLeastWindow slices those under way must take less than
  /// `ahead_bytes` of the cache (0: no bound).
  bool may_start(std::uint64_t ahead_bytes) const;
  /// Starts the next slice. Precondition: it has been scanned, and may_start().
  Transfer& start();

  // --- Slices that were started.
  /// Returns the transfer with this sequence, or nullptr if it is not under way. find_short() knows only the
  /// sequence modulo 2^16.
  Transfer* find(std::uint64_t sequence);
  Transfer* find_short(std::uint16_t sequence);
  bool any_started() const { return started_ > oldest_; }
  const Transfer& oldest() const { return at(oldest_); }
  /// Returns true if there is nothing to start, and nothing to send.
  bool idle() const { return !has_next() && all_sent(); }
  /// Returns true if all slices that were started have been sent.
  bool all_sent() const { return sending_ == started_; }
  /// Returns the oldest slice that has not been sent completely. Precondition: !all_sent().
  Transfer& sending() { return at(sending_); }
  /// Must be called after something was sent: moves sending() on to the next slice if this one has been sent.
  void skip_sent();
  /// Ends a transfer that is complete, and moves the window on if it was the oldest.
  void finish(Transfer& transfer);

  // --- A message with results that could not be put into place yet.
  ReceiveChannel::Received held;
  std::uint64_t held_at = 0;  // where its first section lies that has not been placed

 private:
  /// An operation with slices that have not been started. `next` of its `owned` slices have been, and `slice`
  /// is the one to be started next.
  struct Pending {
    Operation* operation = nullptr;
    std::uint64_t next = 0, owned = 0, slice = 0;
  };

  Transfer& at(std::uint64_t sequence) { return transfers_[sequence & (transfers_.size() - 1)]; }
  const Transfer& at(std::uint64_t sequence) const { return transfers_[sequence & (transfers_.size() - 1)]; }

  std::uint16_t member_;
  std::uint32_t owner_;
  std::uint64_t window_;
  std::array<Pending, kMaxOperations> pending_;
  std::uint32_t first_pending_ = 0, pending_count_ = 0;
  std::vector<Transfer> transfers_;  // by sequence modulo their number, a power of two
  std::uint64_t oldest_ = 0;         // the lowest sequence that is not complete
  std::uint64_t sending_ = 0;        // the lowest sequence that has not been sent completely
  std::uint64_t started_ = 0;        // the sequence that is started next
  std::uint64_t weight_ = 0;         // of all transfers that are not complete
};

}  // namespace nzcl::engine

// Receives the contributions of all ranks, and checks each of them before it is used.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/channel/fixed_queue.h"
#include "runtime/channel/lane_context.h"
#include "runtime/channel/ready_set.h"
#include "runtime/exchange/contributions/slice_window.h"
#include "runtime/wire/section.h"

namespace nzcl::engine {

/// Holds the contributions to the next kWindow slices of one lane at one priority, until they have been
/// summed.
///
/// A contribution is a bitmap and a stream of bytes. The bitmap is copied when it arrives. The stream stays
/// in the slots of its messages, or in the local worker's input, until it is consumed, and a slot is released
/// when its last byte has been consumed.
///
/// A peer may send anything, so every message is checked before it is used, and a wrong one fails the
/// communicator with a text that names its rank. Owned by an exchange; only the thread that drives the lane
/// calls it.
class Intake {
 public:
  /// If this member is a rank, its own contributions come by offer_local() and not in messages. `context`
  /// must outlive the intake.
  Intake(LaneContext& context, wire::Priority priority);

  /// Takes what has arrived from all ranks. Returns true if there was anything.
  bool receive();
  /// Adds the local worker's contribution to the slice with this sequence. Its bytes are not copied: the sum
  /// reads them in the operation's input.
  void offer_local(std::uint64_t sequence, Operation* operation, std::uint64_t slice);

  /// Returns the oldest slice if the bitmaps of all ranks are there, otherwise nullptr.
  IncomingSlice* complete() { return window_.complete(); }
  /// Returns the oldest slice, whether it is complete or not.
  const IncomingSlice& oldest() const { return window_.oldest(); }
  /// Ends the oldest slice, whose place in the window becomes free.
  void finish() { window_.finish(); }

  /// Returns the bitmap of a rank's contribution to the slice.
  std::span<const std::uint64_t> bits(const IncomingSlice& s, int rank) const;
  /// Returns the next bytes of a rank's contribution, as far as they lie together. The result is empty if
  /// they have not arrived yet, or if the rank sent less than its bitmap promises, which is a failure.
  std::span<const std::byte> next(const IncomingSlice& s, int rank);
  /// Marks the next `bytes` of a rank's contribution as summed. The last byte of a slot releases it.
  void consume(IncomingSlice& s, int rank, std::uint64_t bytes);
  // --- Tiles, in place of the bitmaps and bytes of other slices.
  /// Returns true if the rank's next tile of the slice is here. That of the local rank is always here.
  bool has_tile(const IncomingSlice& s, int rank);
  /// Returns a remote rank's next tile, which has this shape, or what is left of a run of empty ones or of a
  /// list: its units are then counted from list_begin(). Returns nothing if it is malformed, which is a
  /// failure. Precondition: has_tile().
  std::optional<wire::Tile> tile(const IncomingSlice& s, int rank, const wire::TileShape& shape);
  std::uint64_t list_begin(const IncomingSlice& s, int rank) const {
    return source_of(rank).used_tiles * s.layout->tile_units();
  }
  /// Marks the tile that tile() has returned as summed, or the first `tiles` of the run, which have `listed`
  /// units of the list. The last tile of a slot releases it.
  void consume_tiles(int rank, const wire::Tile& tile, std::uint64_t tiles, std::size_t listed);
  /// Fails because the tile that a rank sent is `wrong`.
  void refuse_tile(const IncomingSlice& s, int rank, const char* wrong);
  /// Drops the tiles that have arrived. Returns true when all ranks' tiles of the slice were dropped.
  bool drop_tiles(const IncomingSlice& s);

  /// Returns where the slice's tensor or chunk begins in the memory of a rank that wants the result written
  /// in place.
  verbs::RemoteMemory output_of(const IncomingSlice& s, int rank) const {
    return window_.entry_of(rank, s.sequence).output;
  }
  /// Returns credits to the ranks for slots that were released.
  void return_credits();

  /// Names the ranks that the oldest slice waits for: those whose bitmap is missing, and those of `expected`
  /// that have sent a bitmap but not their next bytes. The text looks like "operation 7, allreduce(...):
  /// rank(s) 2 did not join", and is empty if no rank is missing.
  std::string waiting_for(std::span<const int> expected) const;

 private:
  /// A part of a rank's stream, or some of its tiles, in the slot of its message.
  struct Section {
    std::uint32_t slot = 0;
    const std::byte* payload = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t sequence = 0;
    std::uint32_t tiles = 0;    // that have not been consumed
    bool last_in_slot = false;  // consuming this section frees the slot
  };
  /// What is kept of one rank.
  struct Source {
    FixedQueue<Section> sections;
    std::uint64_t used = 0;        // bytes of the first section that have been consumed
    std::uint64_t used_tiles = 0;  // of the run of empty ones, or of the list, that comes next there
    std::size_t used_listed = 0;   // units of that list
  };

  bool receive_from(int rank);
  bool take(int rank, const ReceiveChannel::Received& message);
  bool take_section(int rank, std::uint32_t slot, const wire::Section& section);
  bool take_bitmap(int rank, const IncomingSlice& s, const std::byte* bitmap);
  bool expects(int rank, const wire::Header& header);
  void pop_section(int rank);
  void release(int rank, std::uint32_t slot);
  static const char* wrong_with_tile(const IncomingSlice& s, const Source& source, const wire::Tile& tile);
  std::optional<wire::Refusal> refusal_in(int rank, const wire::Section& section);
  std::uint64_t* bits_at(const IncomingSlice& s, int rank) const;
  Source& source_of(int rank) { return sources_[static_cast<std::size_t>(rank)]; }
  const Source& source_of(int rank) const { return sources_[static_cast<std::size_t>(rank)]; }
  bool refuse(ErrorCode code, std::string text);

  LaneContext& context_;
  const wire::Priority priority_;
  const int ranks_;
  const std::uint64_t max_words_;  // in the bitmap of one slice
  SliceWindow window_;
  std::vector<Source> sources_;  // by rank
  ReadySet credits_due_;         // ranks
  /// By sequence modulo kWindow, then rank. Each sequence has room for `ranks_` bitmaps of max_words_. Pages
  /// that are never touched cost nothing.
  std::unique_ptr<std::uint64_t[]> bitmaps_;
};

}  // namespace nzcl::engine

// Where the pieces of a packed result belong, which are its slices.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/operation/lane_bells.h"

namespace nzcl::engine {

/// A piece of a packed result lies behind the blocks of all pieces before it, so it can be placed when all of
/// these are counted. Lanes count and place different pieces at the same time. A lane that asks for a
/// position which is not known yet is rung when it is: by whoever counts the last piece that is missing, and
/// by nobody else.
class PackedPositions {
 public:
  /// Of a result that is not packed.
  PackedPositions() = default;
  PackedPositions(std::uint64_t pieces, int lanes);
  /// Sets whose bells are rung; nullptr if nobody sleeps. Called before any lane knows the result.
  void ring(LaneBells* bells) { bells_ = bells; }

  /// Says how many blocks a piece has. Each piece is counted once.
  void note(std::uint64_t piece, std::uint64_t blocks) noexcept;
  /// Returns how many blocks lie before the piece, or nothing if that is not known yet. `lane` is the number
  /// of the caller's lane.
  std::optional<std::uint64_t> before(std::uint64_t piece, int lane) noexcept;

 private:
  static constexpr std::int64_t kUnknown = -1;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  /// What one lane knows, and what it waits for. On a cache line of its own, because lanes write theirs
  /// often.
  struct alignas(64) Cursor {
    // Only the lane itself uses these: how many blocks lie before `piece`. It goes on counting from there.
    std::uint64_t piece = 0, blocks = 0;
    /// The first piece that is not counted, if the lane waits; and the piece that it wants to place, of which
    /// there is at least one more behind that.
    std::atomic<std::uint64_t> missing{kNone}, wanted{kNone};
  };

  std::int64_t count(std::uint64_t piece, std::memory_order order) const noexcept {
    return counts_[piece].load(order);
  }
  bool await(int lane, std::uint64_t wanted) noexcept;
  void pass_on(std::size_t number, std::uint64_t piece) noexcept;

  std::unique_ptr<std::atomic<std::int64_t>[]> counts_;  // by piece, or kUnknown
  std::vector<Cursor> cursors_;                          // by lane
  LaneBells* bells_ = nullptr;
};

}  // namespace nzcl::engine

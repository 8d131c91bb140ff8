// Messages of tiles, as they wait to be merged.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "nzcl/types.h"
#include "runtime/channel/fixed_queue.h"
#include "runtime/exchange/merging/tile_walk.h"
#include "runtime/wire/refusal.h"
#include "runtime/wire/section.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// The messages that one rank sends another, or keeps of what it has sent, and how far they have been read.
/// What they say is checked against what must come next. Memory and slots belong to the owner, who gives them
/// back when a message has been read. For one thread; only the constructor allocates.
class TileQueue {
 public:
  /// What is next: nothing yet, a tile, a refusal in the place of a whole slice, or something that cannot be.
  enum class Next : std::uint8_t { nothing, tile, refusal, wrong };

  /// `lists`: tiles may be told in lists.
  TileQueue(std::uint64_t slot_bytes, std::size_t most_messages, bool lists)
      : slot_bytes_(slot_bytes), lists_(lists), messages_(most_messages) {}

  /// Adds a message. `token` is for the owner.
  void push(const std::byte* data, std::uint32_t token) { messages_.push_back({data, token}); }
  bool empty() const { return messages_.empty(); }
  std::size_t size() const { return messages_.size(); }

  /// Looks at what comes at this place, with values of this type. After Next::tile and Next::refusal, tile()
  /// and refusal() say what it is; wrong() says why it cannot be, as a part of a sentence. Of a run of empty
  /// tiles, or of a list, tile() says what is left; the units of a list are counted from its first tile on,
  /// which lies tiles_before() tiles back.
  Next look(const TilePlace& place, DataType type);
  const wire::Tile& tile() const { return tile_; }
  std::uint64_t tiles_before() const { return run_read_; }
  const wire::Refusal& refusal() const { return refusal_; }
  const char* wrong() const { return wrong_; }

  /// Goes on behind what look() has found, or behind the first `tiles` of a run of empty ones, or of a list,
  /// which have `listed` of its units. Returns the token of a message that has been read to its end.
  std::optional<std::uint32_t> advance(std::uint64_t tiles = 1, std::size_t listed = 0);
  /// Bytes of the sections that have been read to their ends since this was asked last.
  std::uint64_t take_bytes() { return std::exchange(bytes_, 0); }

 private:
  struct Message {
    const std::byte* data = nullptr;
    std::uint32_t token = 0;
  };
  Next refuse(const char* why) {
    wrong_ = why;
    return Next::wrong;
  }
  bool open_section();
  const char* wrong_with_section(const TilePlace& place) const;
  Next look_at_refusal();

  void pass_listed(std::size_t units);

  const std::uint64_t slot_bytes_;
  const bool lists_;
  FixedQueue<Message> messages_;
  // What is known of the first message, which is being read:
  std::optional<wire::Section> section_;  // the section that is being read
  bool more_ = false;                     // whether another section follows
  std::uint64_t next_section_ = 0;        // where the next section begins
  std::uint64_t tiles_read_ = 0;          // how many tiles of the section have been read
  std::uint64_t at_ = 0;                  // where the section's next tile begins in its payload
  std::uint64_t run_read_ = 0;            // tiles of a run, of which tile_ is what is left
  wire::Tile tile_;
  wire::Refusal refusal_;
  const char* wrong_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace nzcl::engine

// The slots of an aggregator: the sums, and what becomes of each contribution.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/switch/packet.h"
#include "runtime/switch/pool.h"
#include "runtime/switch/round_order.h"

namespace nzcl::engine::slot_pool {

/// What became of a packet.
enum class Fate : std::uint8_t {
  refused,   // no member made it, or it makes no sense
  late,      // a copy of what everybody has the result of
  misfit,    // no sum can be right any more, and failure() says why
  added,     // others are missing
  filled,    // added, and nobody is missing any more
  waiting,   // it was added before, and the sum is not complete
  complete,  // it was added before, and the sum is complete
  absent,    // a question, whose rank's contribution has not come
};

/// Two sets for each slot, and the values of each. Allocates only when it is made, and to describe a failure.
class SlotSets {
 public:
  struct Set {
    std::uint32_t round = 0;
    Header result;  // as far as it is known
    int seen_count = 0;
    std::uint64_t summed = 0;        // the blocks that have a sum here; of whole pieces: 1
    std::uint32_t block_values = 0;  // the values of each block; 0: none have come yet
    std::uint32_t values = 0;        // of the packet, when all contributions have come
    bool complete = true;            // its result may be sent
    int first_rank = 0;              // whose contribution came first
    std::uint32_t repetitions = 0;   // of contributions, questions among them, while it was incomplete
  };

  explicit SlotSets(const Pool& pool);

  /// Opens a contribution or a question from the address of this rank.
  std::optional<Opened> open_from(int rank, std::span<const std::byte> bytes) const;
  /// Adds a contribution, unless it has been added before. Precondition: open_from() has returned it.
  Fate take(int rank, const Opened& packet);

  /// Where a contribution to this slot and round is added.
  static std::uint32_t number_of(const Header& h) { return 2u * h.slot + h.round % 2; }
  Set& at(std::uint32_t number) { return sets_[number]; }
  bool seen(std::uint32_t number, int rank) const;
  /// Calls lost(rank) for those who are missing in this set, but have contributed to later rounds.
  template <typename Lost>
  void find_lost(std::uint32_t number, Lost lost) const {
    for (int rank = 0; rank < pool_.workers; ++rank) {
      if (!seen(number, rank) && order_.has_passed(number, rank)) lost(rank);
    }
  }
  /// Calls lost(set) for those that wait for this rank, although it has contributed to later rounds. Ends
  /// early when lost() returns false. A round is found once for each rank.
  template <typename Lost>
  void find_newly_lost(int rank, Lost lost) {
    order_.look_at_passed(rank, [&](std::uint32_t set) { return seen(set, rank) || lost(set); });
  }
  /// Header and values; the header is to be sealed. Precondition: the set is filled.
  std::span<std::byte> packet_of(std::uint32_t number);
  std::int32_t* values_of(std::uint32_t number) {
    return reinterpret_cast<std::int32_t*>(buffer(number).data() + sizeof(Header));
  }
  /// Tells who is missing. Precondition: somebody is.
  Header waiting_header(std::uint32_t number) const;
  /// Asks a rank to send its contribution to this round again.
  Header absent_header(std::uint32_t number, std::uint32_t round, int rank) const;

  /// Why no sum can be right any more; empty as long as it can.
  const std::string& failure() const { return failure_; }
  void fail(std::string why) { failure_ = std::move(why); }

 private:
  std::span<std::byte> buffer(std::uint32_t number) { return {buffers_.data() + number * stride_, stride_}; }
  void mark_seen(std::uint32_t number, int rank);
  int first_missing(std::uint32_t number) const;
  Fate take_question(std::uint32_t number, const Header& header, int rank);
  Fate reach_round(std::uint32_t number, const Header& header, int rank);
  bool may_begin(std::uint32_t number, std::uint32_t round) const;
  bool fits(std::uint32_t number, const Opened& packet, int rank);
  void add(std::uint32_t number, const Opened& packet);
  void add_values(std::uint32_t number, const Opened& packet);
  void pack(std::uint32_t number);

  const Pool pool_;
  const std::size_t stride_, seen_words_;
  std::vector<Set> sets_;            // 2 for each slot
  std::vector<std::byte> buffers_;   // of each set: a packet
  std::vector<std::uint64_t> seen_;  // of each set: a bit for each rank
  RoundOrder order_;
  std::string failure_;
};

}  // namespace nzcl::engine::slot_pool

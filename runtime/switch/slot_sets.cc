#include "runtime/switch/slot_sets.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/fixed_point.h"
#include "runtime/switch/failure_text.h"

namespace nzcl::engine::slot_pool {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t stride_of(const Pool& pool) {
  const std::size_t bytes = sizeof(Header) + pool.piece_elements * sizeof(std::int32_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Calls visit(first, count) for each run of neighbours among these blocks that are all in `others`, or none.
template <typename Visit>
void each_run(std::uint64_t blocks, std::uint64_t others, Visit visit) {
  while (blocks != 0) {
    const auto first = static_cast<unsigned>(std::countr_zero(blocks));
    const std::uint64_t alike = blocks & (others >> first & 1 ? others : ~others);
    const auto count = static_cast<unsigned>(std::countr_one(alike >> first));
    visit(first, count);
    blocks &= ~(low_bits(count) << first);
  }
}

}  // namespace

SlotSets::SlotSets(const Pool& pool)
    : pool_(pool),
      stride_(stride_of(pool)),
      seen_words_((static_cast<std::size_t>(pool.workers) + 63) / 64),
      sets_(2 * std::size_t{pool.slots}),
      buffers_(sets_.size() * stride_),
      seen_(sets_.size() * seen_words_),
      order_(sets_.size(), pool.workers) {
  // Before round 0, rounds -2 and -1 are complete, without a next piece.
  for (std::uint32_t s = 0; s < sets_.size(); ++s) sets_[s].round = s % 2 - 2;
}

std::span<std::byte> SlotSets::packet_of(std::uint32_t number) {
  return buffer(number).first(sizeof(Header) + sets_[number].values * sizeof(std::int32_t));
}

bool SlotSets::seen(std::uint32_t number, int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return seen_[number * seen_words_ + r / 64] >> (r % 64) & 1;
}

void SlotSets::mark_seen(std::uint32_t number, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  seen_[number * seen_words_ + r / 64] |= std::uint64_t{1} << (r % 64);
  ++sets_[number].seen_count;
}

int SlotSets::first_missing(std::uint32_t number) const {
  std::size_t word = 0;
  while (~seen_[number * seen_words_ + word] == 0) ++word;
  return static_cast<int>(64 * word) + std::countr_one(seen_[number * seen_words_ + word]);
}

std::optional<Opened> SlotSets::open_from(int rank, std::span<const std::byte> bytes) const {
  auto packet = open(bytes, pool_.job);
  if (!packet) return std::nullopt;
  const Header& h = packet->header;
  const bool for_me = h.kind == Kind::contribution || (h.kind == Kind::question && packet->values.empty());
  if (!for_me || h.rank != rank || h.slot >= pool_.slots) return std::nullopt;
  return packet;
}

Fate SlotSets::take(int rank, const Opened& packet) {
  const Header& h = packet.header;
  const std::uint32_t number = number_of(h);
  if (h.kind == Kind::question) return take_question(number, h, rank);
  if (const Fate fate = reach_round(number, h, rank); fate != Fate::added) return fate;
  if (seen(number, rank)) return sets_[number].complete ? Fate::complete : Fate::waiting;
  if (!fits(number, packet, rank)) return Fate::misfit;
  mark_seen(number, rank);
  order_.came(number, rank);
  add(number, packet);
  if (sets_[number].seen_count < pool_.workers) return Fate::added;
  pack(number);
  return Fate::filled;
}

/// A question changes nothing. Nobody is told about a round that nobody can be in.
Fate SlotSets::take_question(std::uint32_t number, const Header& h, int rank) {
  const Set& set = sets_[number];
  if (h.round == set.round) {
    if (!seen(number, rank)) return Fate::absent;
    return set.complete ? Fate::complete : Fate::waiting;
  }
  if (!is_later(h.round, set.round)) return Fate::late;
  return may_begin(number, h.round) ? Fate::absent : Fate::refused;
}

bool SlotSets::may_begin(std::uint32_t number, std::uint32_t round) const {
  const Set& before = sets_[number ^ 1];
  return round == sets_[number].round + 2 && before.round + 1 == round && before.complete;
}

/// Gives the set to a new round, if the round before it is complete. Returns `added` if the packet is for the
/// set's round now.
Fate SlotSets::reach_round(std::uint32_t number, const Header& h, int rank) {
  if (h.round == sets_[number].round) return Fate::added;
  if (!is_later(h.round, sets_[number].round)) return Fate::late;
  if (!may_begin(number, h.round)) return Fate::refused;
  const Header& before = sets_[number ^ 1].result;
  Header result;
  result.kind = Kind::result;
  result.rank = kAggregatorRank;
  result.slot = h.slot;
  result.round = h.round;
  result.piece = before.next;
  result.exponent = before.next_exponent;
  result.shape = h.shape;
  sets_[number] = {.round = h.round,
                   .result = result,
                   .seen_count = 0,
                   .summed = 0,
                   .block_values = 0,
                   .values = 0,
                   .complete = false,
                   .first_rank = rank,
                   .repetitions = 0};
  std::fill_n(seen_.begin() + static_cast<std::ptrdiff_t>(number * seen_words_), seen_words_, 0);
  order_.begin(number);
  return Fate::added;
}

bool SlotSets::fits(std::uint32_t number, const Opened& packet, int rank) {
  const Set &set = sets_[number], &before = sets_[number ^ 1];
  const Header& h = packet.header;
  const bool same_tensor = set.result.piece == kNoPiece || before.result.shape == h.shape;
  if (h.shape != set.result.shape || !same_tensor || h.piece != set.result.piece) {
    fail(other_operations_text(set.first_rank, rank));
    return false;
  }
  const auto in_block = block_values(packet, pool_);
  const bool ahead = h.next == kNoPiece || h.piece == kNoPiece || h.next > h.piece;
  const bool agreed = in_block == 0u || (h.piece != kNoPiece && h.exponent == set.result.exponent);
  const bool alike = in_block == 0u || set.block_values == 0 || in_block == set.block_values;
  if (!ahead || !agreed || !in_block || !alike) {
    fail(cannot_be_text(rank, packet.values.size(), h.exponent, h.piece));
    return false;
  }
  return true;
}

void SlotSets::add(std::uint32_t number, const Opened& packet) {
  Set& set = sets_[number];
  const Header& h = packet.header;
  if (!packet.values.empty()) add_values(number, packet);
  set.result.flags |= h.flags;
  set.result.blocks |= h.blocks;
  if (h.next < set.result.next) {
    set.result.next = h.next;
    set.result.next_exponent = h.next_exponent;
  } else if (h.next == set.result.next) {
    set.result.next_exponent = std::max(set.result.next_exponent, h.next_exponent);
  }
}

/// A set's sums lie where they are in the piece until all contributions have come.
void SlotSets::add_values(std::uint32_t number, const Opened& packet) {
  Set& set = sets_[number];
  const std::uint64_t blocks = blocks_of(packet.header, pool_);
  set.block_values = *block_values(packet, pool_);
  const std::int32_t* from = packet.values.data();
  each_run(blocks, set.summed, [&](unsigned first, unsigned count) {
    const std::size_t values = std::size_t{count} * set.block_values;
    std::int32_t* const to = values_of(number) + std::size_t{first} * set.block_values;
    const bool again = set.summed >> first & 1;
    again ? add_wrapping(from, values, to) : void(std::memcpy(to, from, values * sizeof *to));
    from += values;
  });
  set.summed |= blocks;
}

/// Moves the sums together, because a packet has no room for other blocks.
void SlotSets::pack(std::uint32_t number) {
  Set& set = sets_[number];
  std::int32_t* to = values_of(number);
  each_run(set.summed, set.summed, [&](unsigned first, unsigned count) {
    const std::size_t values = std::size_t{count} * set.block_values;
    const std::int32_t* const from = values_of(number) + std::size_t{first} * set.block_values;
    if (from != to) std::memmove(to, from, values * sizeof *to);
    to += values;
  });
  set.values = static_cast<std::uint32_t>(to - values_of(number));
}

Header SlotSets::waiting_header(std::uint32_t number) const {
  const Set& set = sets_[number];
  Header h;
  h.kind = Kind::waiting;
  h.rank = static_cast<std::uint16_t>(first_missing(number));
  h.slot = set.result.slot;
  h.round = set.round;
  h.piece = static_cast<std::uint32_t>(pool_.workers - set.seen_count);
  h.next = 0;
  h.shape = set.result.shape;
  return h;
}

Header SlotSets::absent_header(std::uint32_t number, std::uint32_t round, int rank) const {
  const Set& set = sets_[number];
  Header h;
  h.kind = Kind::waiting;
  h.flags = kAbsent;
  h.rank = static_cast<std::uint16_t>(rank);
  h.slot = static_cast<std::uint16_t>(number / 2);
  h.round = round;
  h.piece = static_cast<std::uint32_t>(pool_.workers - (set.round == round ? set.seen_count : 0));
  h.next = 0;
  return h;
}

}  // namespace nzcl::engine::slot_pool

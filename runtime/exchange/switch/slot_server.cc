#include "runtime/exchange/switch/slot_server.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/exchange/switch/failure_text.h"
#include "runtime/kernels/fixed_point.h"

namespace nzcl::engine::slot_pool {
namespace {

constexpr std::size_t kAlignment = 64;

/// Answers that may wait to be sent, for each slot: one result, and repetitions that some ranks ask for. What
/// is beyond that is dropped, and the rank asks again.
constexpr std::size_t kAnswersPerSlot = 4;

std::size_t stride_of(const Pool& pool) {
  const std::size_t bytes = sizeof(Header) + pool.piece_elements * sizeof(std::int32_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

SlotServer::SlotServer(const Pool& pool)
    : pool_(pool),
      stride_(stride_of(pool)),
      seen_words_((static_cast<std::size_t>(pool.workers) + 63) / 64),
      sets_(2 * std::size_t{pool.slots}),
      buffers_(sets_.size() * stride_),
      seen_(sets_.size() * seen_words_),
      answers_(kAnswersPerSlot * std::size_t{pool.slots} + static_cast<std::size_t>(pool.workers)),
      waiting_packet_(sizeof(Header)) {
  // Before round 0, rounds -2 and -1 are complete, without a next piece.
  for (std::uint32_t s = 0; s < sets_.size(); ++s) sets_[s].round = s % 2 - 2;
}

std::span<std::byte> SlotServer::packet_of(std::uint32_t set) {
  return buffer(set).first(sizeof(Header) + sets_[set].values * sizeof(std::int32_t));
}

bool SlotServer::seen(std::uint32_t set, int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return seen_[set * seen_words_ + r / 64] >> (r % 64) & 1;
}

void SlotServer::mark_seen(std::uint32_t set, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  seen_[set * seen_words_ + r / 64] |= std::uint64_t{1} << (r % 64);
  ++sets_[set].seen_count;
}

int SlotServer::first_missing(std::uint32_t set) const {
  std::size_t word = 0;
  while (~seen_[set * seen_words_ + word] == 0) ++word;
  return static_cast<int>(64 * word) + std::countr_one(seen_[set * seen_words_ + word]);
}

void SlotServer::receive(int rank, std::span<const std::byte> bytes) {
  const auto packet = open(bytes, pool_.job);
  if (!packet || packet->header.kind != Kind::contribution || packet->header.rank != rank ||
      packet->header.slot >= pool_.slots || !failure_.empty()) {
    ++refused_;
    return;
  }
  const Header& h = packet->header;
  const std::uint32_t set = 2u * h.slot + h.round % 2;
  if (h.round != sets_[set].round && !begin_round(set, h, rank)) return;
  if (seen(set, rank))
    return answer({.set = set, .round = h.round, .rank = rank, .waiting = !sets_[set].complete});
  if (!fits(sets_[set], sets_[set ^ 1], *packet, rank)) return;
  mark_seen(set, rank);
  add(set, *packet);
  if (sets_[set].seen_count == pool_.workers) complete(set);
}

/// Gives the set to a new round, if the round before it is complete. Returns false if the packet belongs to
/// no round that can be under way.
bool SlotServer::begin_round(std::uint32_t set, const Header& h, int rank) {
  const Set& before = sets_[set ^ 1];
  if (!is_later(h.round, sets_[set].round)) return false;  // a copy that comes late
  if (h.round != sets_[set].round + 2 || before.round + 1 != h.round || !before.complete) {
    ++refused_;
    return false;
  }
  Header result;
  result.kind = Kind::result;
  result.rank = kAggregatorRank;
  result.slot = h.slot;
  result.round = h.round;
  result.piece = before.result.next;
  result.exponent = before.result.next_exponent;
  result.shape = h.shape;
  sets_[set] = {.round = h.round,
                .result = result,
                .seen_count = 0,
                .values = 0,
                .complete = false,
                .first_rank = rank};
  std::fill_n(seen_.begin() + static_cast<std::ptrdiff_t>(set * seen_words_), seen_words_, 0);
  return true;
}

bool SlotServer::fits(const Set& set, const Set& before, const Opened& packet, int rank) {
  const Header& h = packet.header;
  const bool same_tensor = set.result.piece == kNoPiece || before.result.shape == h.shape;
  if (h.shape != set.result.shape || !same_tensor || h.piece != set.result.piece) {
    failure_ = other_operations_text(set.first_rank, rank);
    return false;
  }
  const auto values = packet.values.size();
  const bool ahead = h.next == kNoPiece || h.piece == kNoPiece || h.next > h.piece;
  const bool agreed = values == 0 || (h.piece != kNoPiece && h.exponent == set.result.exponent);
  if (!ahead || !agreed || values > pool_.piece_elements || (values && set.values && values != set.values)) {
    failure_ = cannot_be_text(rank, values, h.exponent, h.piece);
    return false;
  }
  return true;
}

void SlotServer::add(std::uint32_t number, const Opened& packet) {
  Set& set = sets_[number];
  const Header& h = packet.header;
  if (!packet.values.empty()) {
    if (set.values == 0) {
      std::memcpy(values_of(number), packet.values.data(), packet.values.size_bytes());
    } else {
      add_wrapping(packet.values.data(), packet.values.size(), values_of(number));
    }
    set.values = static_cast<std::uint32_t>(packet.values.size());
  }
  set.result.flags |= h.flags;
  set.result.blocks |= h.blocks;
  if (h.next < set.result.next) {
    set.result.next = h.next;
    set.result.next_exponent = h.next_exponent;
  } else if (h.next == set.result.next) {
    set.result.next_exponent = std::max(set.result.next_exponent, h.next_exponent);
  }
}

void SlotServer::complete(std::uint32_t set) {
  sets_[set].complete = true;
  ++completed_;
  seal(sets_[set].result, pool_.job, packet_of(set));
  answer({.set = set, .round = sets_[set].round, .rank = kToAll, .waiting = false});
}

void SlotServer::answer(const Answer& what) {
  if (count_ == answers_.size()) return;
  answers_[(first_ + count_++) % answers_.size()] = what;
}

std::optional<SlotServer::Out> SlotServer::front() {
  for (; count_ > 0; pop()) {
    const Answer& a = answers_[first_];
    const Set& set = sets_[a.set];
    if (set.round != a.round) continue;  // everybody has this result meanwhile
    if (!a.waiting || set.complete) return Out{a.rank, packet_of(a.set)};
    Header h;
    h.kind = Kind::waiting;
    h.rank = static_cast<std::uint16_t>(first_missing(a.set));
    h.slot = set.result.slot;
    h.round = set.round;
    h.piece = static_cast<std::uint32_t>(pool_.workers - set.seen_count);
    h.next = 0;
    h.shape = set.result.shape;
    seal(h, pool_.job, waiting_packet_);
    return Out{a.rank, waiting_packet_};
  }
  return std::nullopt;
}

void SlotServer::pop() {
  first_ = (first_ + 1) % answers_.size();
  --count_;
}

}  // namespace nzcl::engine::slot_pool

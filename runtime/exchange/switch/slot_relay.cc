#include "runtime/exchange/switch/slot_relay.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>

namespace nzcl::engine::slot_pool {

SlotRelay::SlotRelay(const Pool& below, const Pool& above, int rank)
    : below_(below),
      above_(above),
      rank_(rank),
      sets_(below),
      answers_(below),
      header_packet_(sizeof(Header)) {
  assert(below.slots == above.slots && below.piece_elements == above.piece_elements);
}

void SlotRelay::receive(int child, std::span<const std::byte> bytes) {
  const auto packet = sets_.open_from(child, bytes);
  if (!packet || !failure().empty()) {
    ++refused_;
    return;
  }
  const std::uint32_t set = SlotSets::number_of(packet->header), round = packet->header.round;
  switch (sets_.take(child, *packet)) {
    case Fate::refused:
      ++refused_;
      return;
    case Fate::late:
    case Fate::misfit:
    case Fate::added:
      return;
    case Fate::filled:
      return answers_.push({set, round, kToAbove, Answer::What::contribution});
    case Fate::waiting:
      if (!is_filled(set)) return answers_.push({set, round, child, Answer::What::waiting});
      return answers_.push({set, round, kToAbove, Answer::What::question});
    case Fate::complete:
      return answers_.push({set, round, child, Answer::What::result});
    case Fate::absent:
      return answers_.push({set, round, child, Answer::What::absent});
  }
}

void SlotRelay::receive_from_above(std::span<const std::byte> bytes) {
  const auto packet = open(bytes, above_.job);
  const bool answer = packet && (packet->header.kind == Kind::result || packet->header.kind == Kind::waiting);
  if (!answer || packet->header.slot >= above_.slots || !failure().empty()) {
    ++refused_;
    return;
  }
  const Header& h = packet->header;
  const std::uint32_t set = SlotSets::number_of(h);
  if (h.round != sets_.at(set).round || sets_.at(set).complete || !is_filled(set)) return;  // it comes late
  if (h.kind == Kind::result) return take_result(set, *packet);
  const bool again = h.flags & kAbsent;
  answers_.push(
      {set, h.round, again ? kToAbove : kToAll, again ? Answer::What::contribution : Answer::What::waiting});
  if (!again) sets_.at(set).result.rank = h.rank;  // the first that is missing above
}

void SlotRelay::take_result(std::uint32_t number, const Opened& packet) {
  SlotSets::Set& set = sets_.at(number);
  if (!makes_sense(set, packet)) {
    failure_ = fmt::format("the result from above for slot {}, round {}, piece {} cannot be",
                           packet.header.slot, packet.header.round, packet.header.piece);
    return;
  }
  set.values = static_cast<std::uint32_t>(packet.values.size());
  if (set.values > 0) std::memcpy(sets_.values_of(number), packet.values.data(), packet.values.size_bytes());
  set.result = packet.header;
  set.complete = true;
  seal(set.result, below_.job, sets_.packet_of(number));
  answers_.push({number, set.round, kToAll, Answer::What::result});
}

/// Others may hold a piece of which no child has values, and pieces before those of the children.
bool SlotRelay::makes_sense(const SlotSets::Set& set, const Opened& packet) const {
  const Header& h = packet.header;
  const std::size_t values = packet.values.size();
  const bool as_many = set.values > 0 ? values == set.values : values <= below_.piece_elements;
  const bool ahead = h.next == kNoPiece || h.piece == kNoPiece || h.next > h.piece;
  return as_many && ahead && h.piece == set.result.piece && h.shape == set.result.shape &&
         h.exponent == set.result.exponent && h.next <= set.result.next;
}

std::optional<Out> SlotRelay::front() {
  for (; !answers_.empty(); answers_.pop()) {
    if (const auto packet = packet_for(answers_.front())) return Out{answers_.front().rank, *packet};
  }
  return std::nullopt;
}

/// Returns nothing for what nobody needs any more.
std::optional<std::span<const std::byte>> SlotRelay::packet_for(const Answer& a) {
  const SlotSets::Set& set = sets_.at(a.set);
  if (a.what == Answer::What::absent) {
    const bool over = is_later(set.round, a.round) || (set.round == a.round && sets_.seen(a.set, a.rank));
    if (over) return std::nullopt;
    return header_alone(sets_.absent_header(a.set, a.round, a.rank), below_.job);
  }
  if (set.round != a.round) return std::nullopt;
  if (a.rank == kToAbove) {
    if (set.complete) return std::nullopt;
    return contribution(a.set, a.what == Answer::What::question);
  }
  if (set.complete) return sets_.packet_of(a.set);
  Header h = is_filled(a.set) ? set.result : sets_.waiting_header(a.set);
  if (is_filled(a.set)) {
    h.kind = Kind::waiting;
    h.flags = h.exponent = h.next_exponent = 0;
    h.piece = 1;  // at least
    h.next = 0;
    h.blocks = 0;
  }
  return header_alone(h, below_.job);
}

std::span<const std::byte> SlotRelay::header_alone(const Header& header, const Job& job) {
  seal(header, job, header_packet_);
  return header_packet_;
}

/// What this relay sends up for a filled set, or the question what has become of it.
std::span<const std::byte> SlotRelay::contribution(std::uint32_t number, bool question) {
  const SlotSets::Set& set = sets_.at(number);
  Header h = set.result;
  h.kind = question ? Kind::question : Kind::contribution;
  h.rank = static_cast<std::uint16_t>(rank_);
  if (question) {
    h.flags = 0;
    return header_alone(h, above_.job);
  }
  seal(h, above_.job, sets_.packet_of(number));
  return sets_.packet_of(number);
}

}  // namespace nzcl::engine::slot_pool

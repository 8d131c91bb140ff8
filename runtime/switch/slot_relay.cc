#include "runtime/switch/slot_relay.h"

#include <fmt/format.h>

#include <cassert>

namespace nzcl::engine::slot_pool {

SlotRelay::SlotRelay(const Pool& below, const Pool& above, int rank)
    : below_(below), above_(above), rank_(rank), intake_(below) {
  assert(below.slots == above.slots && below.piece_elements == above.piece_elements);
}

void SlotRelay::receive(int child, std::span<const std::byte> packet) {
  const auto [fate, set] = intake_.receive(child, packet);
  if (fate == Fate::filled) intake_.answer(set, kToAbove, Answer::What::contribution);
  if (fate == Fate::waiting && intake_.is_filled(set)) intake_.answer(set, kToAbove, Answer::What::question);
}

void SlotRelay::receive_from_above(std::span<const std::byte> bytes) {
  const auto packet = open(bytes, above_.job);
  const bool answer = packet && (packet->header.kind == Kind::result || packet->header.kind == Kind::waiting);
  if (!answer || packet->header.slot >= above_.slots || !failure().empty()) return intake_.refuse();
  const Header& h = packet->header;
  const std::uint32_t number = SlotSets::number_of(h);
  SlotSets::Set& set = intake_.sets().at(number);
  if (h.round != set.round || set.complete || !intake_.is_filled(number)) return;  // it comes late
  if (h.kind == Kind::result) return take_result(number, *packet);
  if (h.flags & kAbsent) return intake_.answer(number, kToAbove, Answer::What::contribution);
  set.result.rank = h.rank;  // the first that is missing above
  intake_.answer(number, kToAll, Answer::What::waiting);
}

void SlotRelay::take_result(std::uint32_t number, const Opened& packet) {
  SlotSets& sets = intake_.sets();
  SlotSets::Set& set = sets.at(number);
  if (!makes_sense(set, packet)) {
    sets.fail(fmt::format("the result from above for slot {}, round {}, piece {} cannot be",
                          packet.header.slot, packet.header.round, packet.header.piece));
    return;
  }
  sets.replace(number, packet);
  set.result = packet.header;
  set.complete = true;
  seal(set.result, below_.job, sets.packet_of(number));
  intake_.answer(number, kToAll, Answer::What::result);
}

/// The result may have values that no child has sent, and name a next piece before those of the children,
/// because other ranks below the aggregator above may hold them.
bool SlotRelay::makes_sense(const SlotSets::Set& set, const Opened& packet) const {
  const Header& h = packet.header;
  const auto in_block = block_values(packet, above_);
  const bool all_there = (set.summed & ~blocks_of(h, above_)) == 0;
  const bool alike = set.block_values == 0 || in_block == set.block_values;
  const bool ahead = h.next == kNoPiece || h.piece == kNoPiece || h.next > h.piece;
  return in_block && all_there && alike && ahead && h.piece == set.result.piece &&
         h.shape == set.result.shape && h.exponent == set.result.exponent && h.next <= set.result.next;
}

std::optional<Out> SlotRelay::front() {
  return intake_.front([this](const Answer& answer) { return packet_for(answer); });
}

std::optional<std::span<const std::byte>> SlotRelay::packet_for(const Answer& a) {
  if (a.rank == kToAbove) return packet_for_above(a);
  const SlotSets::Set& set = intake_.sets().at(a.set);
  const bool waits_above = set.round == a.round && !set.complete && intake_.is_filled(a.set);
  if (a.what == Answer::What::waiting && waits_above)
    return intake_.header_alone(waiting_above(a.set), below_.job);
  return intake_.packet_for(a);
}

/// What this relay sends up for a filled set: its contribution, or the question what has become of it.
std::optional<std::span<const std::byte>> SlotRelay::packet_for_above(const Answer& a) {
  SlotSets& sets = intake_.sets();
  if (sets.at(a.set).round != a.round || sets.at(a.set).complete) return std::nullopt;
  Header h = sets.at(a.set).result;
  h.rank = static_cast<std::uint16_t>(rank_);
  if (a.what == Answer::What::question) {
    h.kind = Kind::question;
    h.flags = 0;
    return intake_.header_alone(h, above_.job);
  }
  h.kind = Kind::contribution;
  seal(h, above_.job, sets.packet_of(a.set));
  return sets.packet_of(a.set);
}

/// Tells children to wait for a rank that is missing above.
Header SlotRelay::waiting_above(std::uint32_t set) {
  Header h = intake_.sets().at(set).result;
  h.kind = Kind::waiting;
  h.flags = h.exponent = h.next_exponent = 0;
  h.piece = 1;  // at least
  h.next = 0;
  h.blocks = 0;
  return h;
}

}  // namespace nzcl::engine::slot_pool

#include "runtime/switch/slot_intake.h"

#include <bit>

namespace nzcl::engine::slot_pool {

SlotIntake::SlotIntake(const Pool& pool)
    : pool_(pool),
      sets_(pool),
      answers_(pool),
      latest_(static_cast<std::size_t>(pool.workers)),
      header_packet_(sizeof(Header)) {}

SlotIntake::Taken SlotIntake::receive(int rank, std::span<const std::byte> bytes) {
  const auto packet = sets_.open_from(rank, bytes);
  if (!packet || !failure().empty()) {
    ++refused_;
    return {};
  }
  const std::uint32_t set = SlotSets::number_of(packet->header), round = packet->header.round;
  const Fate fate = sets_.take(rank, *packet);
  switch (fate) {
    case Fate::refused:
      ++refused_;
      break;
    case Fate::waiting:
      answers_.push({set, round, rank, Answer::What::waiting});
      tell_those_who_lost_it(set);
      break;
    case Fate::complete:
      answers_.push({set, round, rank, Answer::What::result});
      break;
    case Fate::absent:
      answers_.push({set, round, rank, Answer::What::absent});
      break;
    case Fate::added:
    case Fate::filled:
      latest_[static_cast<std::size_t>(rank)] = cause_of(packet->header.slot, round);
      tell_what_it_lost(rank);
      break;
    case Fate::late:
    case Fate::misfit:
      break;
  }
  return {fate, set};
}

/// Every packet that comes may show that the rank has lost earlier ones.
void SlotIntake::tell_what_it_lost(int rank) {
  if (pool_.zeros) return;
  sets_.find_newly_lost(rank, [&](std::uint32_t set) {
    if (!answers_.has_spare()) return false;
    answer(set, rank, Answer::What::lost);
    return true;
  });
}

/// They have been told, but that may have been lost as well. So they are told again, less and less often.
void SlotIntake::tell_those_who_lost_it(std::uint32_t set) {
  if (pool_.zeros || !std::has_single_bit(++sets_.at(set).repetitions)) return;
  sets_.find_lost(set, [&](int rank) {
    if (answers_.has_spare()) answer(set, rank, Answer::What::lost);
  });
}

void SlotIntake::answer(std::uint32_t set, int rank, Answer::What what) {
  answers_.push({set, sets_.at(set).round, rank, what});
}

std::optional<std::span<const std::byte>> SlotIntake::packet_for(const Answer& a) {
  const SlotSets::Set& set = sets_.at(a.set);
  if (a.what == Answer::What::absent || a.what == Answer::What::lost) {
    const bool over = is_later(set.round, a.round) || (set.round == a.round && sets_.seen(a.set, a.rank));
    if (over) return std::nullopt;
    Header header = sets_.absent_header(a.set, a.round, a.rank);
    header.blocks = a.what == Answer::What::absent ? cause_of(header.slot, a.round)
                                                   : latest_[static_cast<std::size_t>(a.rank)];
    return header_alone(header);
  }
  if (set.round != a.round) return std::nullopt;  // everybody has this result meanwhile
  if (set.complete) return sets_.packet_of(a.set);
  return header_alone(sets_.waiting_header(a.set));
}

std::span<const std::byte> SlotIntake::header_alone(const Header& header) {
  seal(header, pool_.job, header_packet_);
  return header_packet_;
}

}  // namespace nzcl::engine::slot_pool

#include "runtime/exchange/switch/slot_intake.h"

namespace nzcl::engine::slot_pool {

SlotIntake::SlotIntake(const Pool& pool)
    : pool_(pool), sets_(pool), answers_(pool), header_packet_(sizeof(Header)) {}

SlotIntake::Taken SlotIntake::receive(int rank, std::span<const std::byte> bytes) {
  const auto packet = sets_.open_from(rank, bytes);
  if (!packet || !failure().empty()) {
    refuse();
    return {};
  }
  const std::uint32_t set = SlotSets::number_of(packet->header), round = packet->header.round;
  const Fate fate = sets_.take(rank, *packet);
  switch (fate) {
    case Fate::refused:
      refuse();
      break;
    case Fate::waiting:
      if (!is_filled(set)) answers_.push({set, round, rank, Answer::What::waiting});
      break;
    case Fate::complete:
      answers_.push({set, round, rank, Answer::What::result});
      break;
    case Fate::absent:
      answers_.push({set, round, rank, Answer::What::absent});
      break;
    case Fate::late:
    case Fate::misfit:
    case Fate::added:
    case Fate::filled:
      break;
  }
  return {fate, set};
}

void SlotIntake::answer(std::uint32_t set, int rank, Answer::What what) {
  answers_.push({set, sets_.at(set).round, rank, what});
}

std::optional<std::span<const std::byte>> SlotIntake::packet_for(const Answer& a) {
  const SlotSets::Set& set = sets_.at(a.set);
  if (a.what == Answer::What::absent) {
    const bool over = is_later(set.round, a.round) || (set.round == a.round && sets_.seen(a.set, a.rank));
    if (over) return std::nullopt;
    return header_alone(sets_.absent_header(a.set, a.round, a.rank), pool_.job);
  }
  if (set.round != a.round) return std::nullopt;  // everybody has this result meanwhile
  if (set.complete) return sets_.packet_of(a.set);
  return header_alone(sets_.waiting_header(a.set), pool_.job);
}

std::span<const std::byte> SlotIntake::header_alone(const Header& header, const Job& job) {
  seal(header, job, header_packet_);
  return header_packet_;
}

}  // namespace nzcl::engine::slot_pool

#include "runtime/exchange/switch/slot_server.h"

namespace nzcl::engine::slot_pool {

SlotServer::SlotServer(const Pool& pool)
    : pool_(pool), sets_(pool), answers_(pool), header_packet_(sizeof(Header)) {}

void SlotServer::receive(int rank, std::span<const std::byte> bytes) {
  const auto packet = sets_.open_from(rank, bytes);
  if (!packet || !failure().empty()) {
    ++refused_;
    return;
  }
  const std::uint32_t set = SlotSets::number_of(packet->header), round = packet->header.round;
  switch (sets_.take(rank, *packet)) {
    case Fate::refused:
      ++refused_;
      return;
    case Fate::late:
    case Fate::misfit:
    case Fate::added:
      return;
    case Fate::filled:
      return complete(set);
    case Fate::waiting:
      return answers_.push({set, round, rank, Answer::What::waiting});
    case Fate::complete:
      return answers_.push({set, round, rank, Answer::What::result});
    case Fate::absent:
      return answers_.push({set, round, rank, Answer::What::absent});
  }
}

void SlotServer::complete(std::uint32_t set) {
  sets_.at(set).complete = true;
  ++completed_;
  seal(sets_.at(set).result, pool_.job, sets_.packet_of(set));
  answers_.push({set, sets_.at(set).round, kToAll, Answer::What::result});
}

std::optional<Out> SlotServer::front() {
  for (; !answers_.empty(); answers_.pop()) {
    if (const auto packet = packet_for(answers_.front())) return Out{answers_.front().rank, *packet};
  }
  return std::nullopt;
}

/// Returns nothing for an answer that nobody needs any more.
std::optional<std::span<const std::byte>> SlotServer::packet_for(const Answer& a) {
  const SlotSets::Set& set = sets_.at(a.set);
  if (a.what == Answer::What::absent) {
    const bool over = is_later(set.round, a.round) || (set.round == a.round && sets_.seen(a.set, a.rank));
    if (over) return std::nullopt;
    seal(sets_.absent_header(a.set, a.round, a.rank), pool_.job, header_packet_);
    return header_packet_;
  }
  if (set.round != a.round) return std::nullopt;  // everybody has this result meanwhile
  if (set.complete) return sets_.packet_of(a.set);
  seal(sets_.waiting_header(a.set), pool_.job, header_packet_);
  return header_packet_;
}

}  // namespace nzcl::engine::slot_pool

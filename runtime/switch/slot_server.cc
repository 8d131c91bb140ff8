#include "runtime/switch/slot_server.h"

namespace nzcl::engine::slot_pool {

SlotServer::SlotServer(const Pool& pool) : job_(pool.job), intake_(pool) {}

void SlotServer::receive(int rank, std::span<const std::byte> packet) {
  const auto taken = intake_.receive(rank, packet);
  if (taken.fate == Fate::filled) complete(taken.set);
}

void SlotServer::complete(std::uint32_t number) {
  SlotSets::Set& set = intake_.sets().at(number);
  set.complete = true;
  ++completed_;
  seal(set.result, job_, intake_.sets().packet_of(number));
  intake_.answer(number, kToAll, Answer::What::result);
}

std::optional<Out> SlotServer::front() {
  return intake_.front([this](const Answer& answer) { return intake_.packet_for(answer); });
}

}  // namespace nzcl::engine::slot_pool

// What an aggregator of the switch exchange does with the packets of its ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/switch/answers.h"
#include "runtime/switch/slot_sets.h"

namespace nzcl::engine::slot_pool {

/// Takes packets into slots, and answers by itself whatever concerns one rank alone: a copy, or a question.
/// What happens when the last contribution to a round has come is for the aggregator to say. Allocates only
/// when it is made, and to describe a failure.
class SlotIntake {
 public:
  explicit SlotIntake(const Pool& pool);

  struct Taken {
    Fate fate = Fate::refused;
    std::uint32_t set = 0;
  };
  /// Takes a packet that came from the address of this rank. One fate is left to the aggregator, which
  /// completes the set: `filled`.
  Taken receive(int rank, std::span<const std::byte> bytes);

  /// Adds an answer about the set's present round to those that are to be sent.
  void answer(std::uint32_t set, int rank, Answer::What what);
  /// The packet to send next, or nothing. packet_for(answer) makes it, or returns nothing for an answer that
  /// nobody needs any more.
  template <typename PacketFor>
  std::optional<Out> front(PacketFor packet_for) {
    for (; !answers_.empty(); answers_.pop()) {
      const std::optional<std::span<const std::byte>> packet = packet_for(answers_.front());
      if (packet) return Out{answers_.front().rank, *packet};
    }
    return std::nullopt;
  }
  void pop() { answers_.pop(); }
  /// The packet for an answer to ranks. Precondition: the set is complete, or somebody is missing in it.
  std::optional<std::span<const std::byte>> packet_for(const Answer& answer);

  SlotSets& sets() { return sets_; }
  const std::string& failure() const { return sets_.failure(); }
  std::uint64_t refused() const { return refused_; }

 private:
  /// A packet of a header alone. It stays valid until the next one is made.
  std::span<const std::byte> header_alone(const Header& header);
  void tell_what_it_lost(int rank);
  void tell_those_who_lost_it(std::uint32_t set);

  const Pool pool_;
  SlotSets sets_;
  Answers answers_;
  std::vector<std::uint64_t> latest_;  // cause_of() the last contribution of each rank
  std::vector<std::byte> header_packet_;
  std::uint64_t refused_ = 0;
};

}  // namespace nzcl::engine::slot_pool

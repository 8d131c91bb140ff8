// The aggregator's half of the switch exchange: the slots, and what becomes of each contribution.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/exchange/switch/packet.h"

namespace nzcl::engine::slot_pool {

/// What all members of a lane agree about when they meet.
struct Pool {
  int workers = 1;
  std::uint32_t slots = 1;           // at most 65,536
  std::uint32_t piece_elements = 1;  // the most values of a packet
  Job job;
  /// Ranks send zeros for the pieces that they do not hold, instead of nothing: the aggregator turns a packet
  /// that it gets into its answer, and cannot make it longer.
  bool zeros = false;
};

/// A state machine without I/O: it is given packets and asked for packets. It allocates only when it is made
/// and to describe a failure. One thread at a time may use it.
class SlotServer {
 public:
  explicit SlotServer(const Pool& pool);

  /// Takes a packet that came from the address of this rank.
  void receive(int rank, std::span<const std::byte> packet);

  struct Out {
    int rank = 0;  // kToAll: the same packet goes to every rank
    std::span<const std::byte> packet;
  };
  static constexpr int kToAll = -1;
  /// The packet to send next, or nothing. Its bytes stay valid until receive() or pop(), those for all ranks
  /// until receive().
  std::optional<Out> front();
  void pop();

  /// Why no sum can be right any more; empty as long as it can.
  const std::string& failure() const { return failure_; }
  std::uint64_t completed() const { return completed_; }  // rounds
  std::uint64_t refused() const { return refused_; }  // packets that no member made, or that make no sense

 private:
  struct Set {
    std::uint32_t round = 0;
    Header result;  // as far as it is known
    int seen_count = 0;
    std::uint32_t values = 0;  // how many each contribution must have; 0: none has come yet
    bool complete = true;
    int first_rank = 0;  // whose contribution came first
  };
  struct Answer {
    std::uint32_t set = 0;
    std::uint32_t round = 0;
    int rank = 0;
    bool waiting = false;
  };

  std::span<std::byte> buffer(std::uint32_t set) { return {buffers_.data() + set * stride_, stride_}; }
  std::span<std::byte> packet_of(std::uint32_t set);
  std::int32_t* values_of(std::uint32_t set) {
    return reinterpret_cast<std::int32_t*>(buffer(set).data() + sizeof(Header));
  }
  bool seen(std::uint32_t set, int rank) const;
  void mark_seen(std::uint32_t set, int rank);
  int first_missing(std::uint32_t set) const;
  bool begin_round(std::uint32_t set, const Header& header, int rank);
  bool fits(const Set& set, const Set& before, const Opened& packet, int rank);
  void add(std::uint32_t set, const Opened& packet);
  void complete(std::uint32_t set);
  void answer(const Answer& what);

  const Pool pool_;
  const std::size_t stride_, seen_words_;
  std::vector<Set> sets_;            // 2 for each slot
  std::vector<std::byte> buffers_;   // of each set: the result's packet
  std::vector<std::uint64_t> seen_;  // of each set: a bit for each rank
  std::vector<Answer> answers_;      // a ring
  std::size_t first_ = 0, count_ = 0;
  std::vector<std::byte> waiting_packet_;
  std::uint64_t completed_ = 0, refused_ = 0;
  std::string failure_;
};

}  // namespace nzcl::engine::slot_pool

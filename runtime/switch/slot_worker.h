// A rank's half of the switch exchange: what it sends in each round of each slot, and when it sends it again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/switch/packet.h"
#include "runtime/switch/send_window.h"
#include "runtime/switch/slot_sets.h"
#include "runtime/switch/tensor.h"
#include "runtime/switch/timers.h"

namespace nzcl::engine::slot_pool {

/// How many of the pool's `slots` slots a tensor of `pieces` pieces uses; all ranks come to the same number.
/// An opening round is worth its packets only if some pieces follow it.
inline std::uint32_t slots_used(std::uint32_t pieces, std::uint32_t slots) {
  return std::min(slots, std::max(kSlotsOfAnyTensor, pieces / kPiecesForASlot));
}

/// A state machine without I/O: it is given packets and the time, and asked for packets. It allocates only
/// when it is made and to describe a failure. One thread at a time may use it.
class SlotWorker {
 public:
  /// `most_tensors` may be under way at the same time.
  SlotWorker(const Pool& pool, int rank, std::size_t most_tensors);

  /// Begins a tensor, behind those that are under way. All ranks must begin the same tensors in the same
  /// order. The worker uses it until every slot has told it that nothing more comes.
  void submit(Tensor& tensor);
  /// Takes a packet that came from the aggregator's address.
  void receive(std::span<const std::byte> packet, Time now);
  /// Makes due what has waited too long, and looks ahead where that was not possible before.
  void advance(Time now);
  /// Writes the next packet that is due to `to`, and returns its size; 0 if none is due. Precondition: `to`
  /// is aligned to 4 and has room for a header and Pool::piece_elements values.
  std::size_t next_packet(std::span<std::byte> to, Time now);

  bool idle() const { return tensors_begun_ == tensors_ended_; }

  /// What an aggregator has said last about a slot that waits for others.
  struct Missing {
    int first = 0, count = 0;
    bool opening = false;  // they have not begun the operation
    std::uint64_t tensor = 0;
  };
  const std::optional<Missing>& missing() const { return missing_; }
  /// Why no sum can be right any more; empty as long as it can.
  const std::string& failure() const { return failure_; }
  /// Packets that were sent for the first time, and results that were taken: what moves but repetitions.
  std::uint64_t progress() const { return progress_; }
  std::uint64_t repeated() const { return repeated_; }
  /// How many of those were questions.
  std::uint64_t asked() const { return asked_; }
  std::uint64_t refused() const { return refused_; }
  Time round_trip() const { return round_trips_.smoothed(); }
  const SendWindow& window() const { return window_; }

 private:
  enum class State : std::uint8_t {
    idle,     // waits for a tensor
    looking,  // waits until it is known which piece this rank holds next
    due,      // its packet is to be sent
    waiting,  // its packet is under way, and the result is expected
  };
  struct Slot {
    State state = State::idle;
    bool mine = false;          // this rank has values in this round
    bool told_to_wait = false;  // for other ranks: a timeout then says nothing about the network
    bool asks = false;          // the next packet is a question
    bool asked = false;         // the last one was
    std::uint8_t exponent = 0;  // the shared exponent of this round's values
    std::uint32_t round = 0;
    std::uint32_t piece = kNoPiece;
    Ahead ahead;  // the next piece that this rank holds
    std::uint64_t tensor = 0;
    Time sent{};
    // The numbers of these packets, in the order of sending:
    std::uint64_t contributed = 0;        // this round's contribution, when it was sent last
    std::uint64_t first_sent = 0;         // this round's contribution, when it was sent first; 0: not yet
    std::uint64_t first_sent_before = 0;  // the contribution to the round before, when it was sent first
    // In this round:
    int times = 0;       // how often a packet has been sent
    int unanswered = 0;  // repetitions that were sent since the last answer
    int timeouts = 0;    // timeouts of packets that were not answered
    int waits = 0;       // timeouts of packets that were answered *waiting*
    int doublings = 0;   // how often the present timeout has been doubled
  };

  Tensor& tensor_of(const Slot& slot) { return *tensors_[slot.tensor % tensors_.size()].tensor; }
  void begin(std::uint32_t slot);
  void look(std::uint32_t slot);
  void make_due(std::uint32_t slot);
  void make_due_first(std::uint32_t slot);
  void cancel_due(std::uint32_t slot);
  void expire(std::uint32_t slot);
  /// Whether a question costs less than the contribution, and can be answered.
  bool may_ask(const Slot& slot) const { return slot.mine && !pool_.zeros; }
  /// Whether the aggregator may not tell this rank that it has lost something.
  bool must_find_out(const Slot& slot) const {
    return pool_.zeros || pool_.workers == 1 || slot.ahead.piece == kNoPiece;
  }
  Header header_of(std::uint32_t slot);
  std::size_t write_values(std::uint32_t slot, Header& header, std::span<std::byte> to);
  /// The length of a packet with `value_bytes` bytes of values, as a share of that of a full packet.
  double share_of(std::size_t value_bytes) const {
    return static_cast<double>(sizeof(Header) + value_bytes) /
           static_cast<double>(sizeof(Header) + pool_.piece_elements * sizeof(std::int32_t));
  }
  void take_waiting(std::uint32_t slot, const Header& header, Time now);
  void take_absent(std::uint32_t slot, const Header& header);
  bool sent_later(const Header& absent, std::uint32_t slot) const;
  bool makes_sense(const Slot& slot, std::uint32_t number, const Opened& packet);
  void take_result(std::uint32_t slot, const Opened& packet, Time now);
  void note_answered_once(std::uint32_t slot, Time now);
  void let_go_of_lost(std::uint32_t answered);
  void leave_tensor(std::uint32_t slot);

  struct Entry {
    Tensor* tensor = nullptr;
    std::uint32_t slots_left = 0;
  };
  const Pool pool_;
  const int rank_;
  std::vector<Slot> slots_;
  std::vector<Entry> tensors_;  // by number, modulo their size
  std::uint64_t tensors_begun_ = 0, tensors_ended_ = 0;
  std::vector<std::uint32_t> due_;  // a ring of slots
  std::size_t due_first_ = 0, due_count_ = 0;
  std::uint32_t looking_ = 0;  // how many slots are in State::looking
  SendWindow window_;
  double result_share_ = 1;  // the smoothed length of results, as a share of a full packet
  TimerWheel timers_;
  RoundTrips round_trips_;
  std::optional<Missing> missing_;
  std::uint64_t progress_ = 0, repeated_ = 0, asked_ = 0, refused_ = 0;
  std::string failure_;
};

}  // namespace nzcl::engine::slot_pool

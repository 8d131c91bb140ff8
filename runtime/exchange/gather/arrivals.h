// Receives the contributions of the other ranks to operations of one slice, and checks them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/channel/fixed_queue.h"
#include "runtime/channel/lane_context.h"
#include "runtime/exchange/gather/schedule.h"
#include "runtime/operation/operation.h"
#include "runtime/wire/batch.h"
#include "runtime/wire/section.h"

namespace nzcl::engine {

/// A rank's whole contribution to an operation of one slice: its bitmap, and the blocks that are set in it,
/// one behind the other. Owns nothing.
struct WholeContribution {
  std::span<const std::uint64_t> bits;
  const std::byte* stream = nullptr;  // or why the rank has refused its request, as text
  std::uint32_t stream_bytes = 0;
  std::uint16_t refusal_code = 0;  // 0: it has not
  bool whole = false;              // all blocks are set
};

/// Each leg of the schedule brings one message for each operation, in the order of the operations.
///
/// A peer may send anything. The form of a message, and what it says about the operation, are checked when it
/// arrives; its contributions are checked when this rank has begun the operation too, because it may not know
/// it before, and before they are passed on. A bitmap is copied first and then checked. The streams stay in
/// the message's slot until release(). For the thread that drives the lane.
class Arrivals {
 public:
  /// `context` must outlive it.
  Arrivals(LaneContext& context, wire::Priority priority, std::span<const Leg> schedule);

  /// Takes what has arrived. Returns true if there was anything.
  bool receive();
  /// Checks the next message of the leg, which belongs to `operation`. Returns false if it has not come, or
  /// had to be refused, which is a failure.
  bool check(std::size_t leg, const Operation& operation);
  /// Gets the memory ready in which the next message of the leg will lie, if it has about so many bytes.
  void prefetch_next(std::size_t leg, std::uint64_t bytes) const {
    context_.channels(priority_, sources_[leg].rank).receive_up.prefetch_next(bytes);
  }
  /// How many messages of the leg were checked: the number of operations whose contributions it has brought.
  std::uint64_t checked(std::size_t leg) const { return sources_[leg].checked; }
  /// Returns true if a message has arrived whose operation has not begun here.
  bool early() const;
  /// Ends the operation with this sequence: gives its slots back.
  void release(std::uint64_t sequence);
  void return_credits();

  /// The contributions to an operation that is under way, by rank. The exchange sets that of its own rank.
  std::span<WholeContribution> contributions(std::uint64_t sequence) {
    return {contributions_.data() + index_of(sequence, 0), static_cast<std::size_t>(ranks_)};
  }
  /// Where the messages of the leg come from.
  std::uint16_t sender(std::size_t leg) const { return sources_[leg].rank; }
  /// Returns the epoch of an operation to which a message has come early. Precondition: early().
  std::uint64_t early_epoch() const;
  /// Returns true if a message of the leg has come early.
  bool early(std::size_t leg) const { return !sources_[leg].messages.empty(); }

 private:
  /// What is kept of a message until it is checked. The pointers lead into its slot.
  struct Arrived {
    std::uint32_t slot = 0;
    std::uint32_t bitmap_bytes = 0, payload_bytes = 0;
    std::uint16_t refusal_code = 0;
    std::uint64_t epoch = 0, slice = 0;
    const std::byte *bitmap = nullptr, *payload = nullptr;
    std::span<const std::byte> passed_on;  // the payload of its batch, if it has one
  };
  struct Source {
    std::uint16_t rank = 0;
    int contributions = 0;                             // in each message
    FixedQueue<Arrived> messages;                      // that have not been checked
    std::uint64_t received = 0, checked = 0;           // messages since the start
    std::array<std::uint32_t, kGatherWindow> slots{};  // of checked messages, by sequence
  };

  bool take(Source& source, const ReceiveChannel::Received& message);
  const char* wrong_with_section(const Source& source, const wire::Section& section, bool known) const;
  const char* take_batch(const Source& source, const wire::SectionReader& reader,
                         const wire::Section& section, const std::byte* slot, Arrived& arrived) const;
  bool is_known(std::uint64_t epoch, const wire::OperationRecord& record) const;
  bool check_batch(const Source& source, const Arrived& arrived, const Operation& operation);
  bool check_contribution(const Source& source, int rank, const wire::Entry& entry,
                          const Operation& operation);
  const char* take_contribution(const Operation& operation, std::size_t index, const wire::Entry& entry);
  std::size_t index_of(std::uint64_t sequence, int rank) const {
    return static_cast<std::size_t>(sequence % kGatherWindow) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(rank);
  }
  ReceiveChannel& channel(const Source& source) {
    return context_.channels(priority_, source.rank).receive_up;
  }
  bool refuse(std::string text);

  LaneContext& context_;
  const wire::Priority priority_;
  const int ranks_;
  const std::uint64_t max_words_;  // of a bitmap
  std::vector<Source> sources_;    // by leg
  // Of the operations under way, by sequence modulo kGatherWindow, then rank.
  std::vector<WholeContribution> contributions_;
  std::unique_ptr<std::uint64_t[]> bitmaps_;
};

}  // namespace nzcl::engine

// Receives the contributions of the other ranks to operations of one message each, and checks them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/channel/fixed_queue.h"
#include "runtime/channel/lane_context.h"
#include "runtime/operation/operation.h"
#include "runtime/wire/section.h"

namespace nzcl::engine {

/// A rank's whole contribution to an operation of one slice: its bitmap, and the blocks that are set in it,
/// one behind the other. Owns nothing.
struct WholeContribution {
  std::span<const std::uint64_t> bits;
  const std::byte* stream = nullptr;
  bool whole = false;  // all blocks are set
};

/// Every other rank sends one message for each express operation, in the order of the operations. So the
/// messages of a rank form a queue, and the oldest operation is complete when no queue is empty.
///
/// A peer may send anything. The form of a message, and what it says about the operation, are checked when it
/// arrives; whether its bitmap fits is checked when the operation is complete, because this rank may not know
/// the operation before. The bitmap is copied first and then checked. The stream stays in the message's slot
/// until release(). For the thread that drives the lane.
class Arrivals {
 public:
  explicit Arrivals(LaneContext& context);

  /// Takes what has arrived. Returns true if there was anything.
  bool receive();
  /// Returns true if nothing has arrived that was not released.
  bool empty() const;
  /// Returns true if every other rank's contribution to the oldest operation is there.
  bool complete() const;
  /// Checks the contributions to `operation`, the oldest one, and puts them into `contributions`, by rank;
  /// that of this rank is left as it is. Returns false if it had to refuse one, which is a failure.
  /// Precondition: complete().
  bool check(const Operation& operation, std::span<WholeContribution> contributions);
  /// Returns the refusal of the lowest other rank that has refused the oldest operation, if any has.
  /// Precondition: check() has returned true.
  std::optional<wire::Refusal> refusal() const;
  /// Ends the oldest operation: gives its slots back.
  void release();
  void return_credits();

  /// Lists the ranks whose contribution to the oldest operation is missing, as in "1, 2".
  std::string absent(bool self_is_absent) const;
  /// The epoch of an operation to which a contribution has arrived. Precondition: !empty().
  std::uint64_t some_epoch() const;

 private:
  /// What is kept of a message. The pointers lead into its slot.
  struct Arrived {
    std::uint32_t slot = 0;
    std::uint32_t bitmap_bytes = 0, payload_bytes = 0;
    std::uint16_t refusal_code = 0;  // 0: it is no refusal
    std::uint64_t epoch = 0, slice = 0;
    const std::byte *bitmap = nullptr, *payload = nullptr;
  };
  struct Source {
    FixedQueue<Arrived> messages;
    std::uint64_t received = 0;  // messages since the start; also the sequence of the next one
  };

  bool take(int rank, const ReceiveChannel::Received& message);
  const char* wrong_with_section(const wire::SectionReader& reader, const wire::Section& section,
                                 std::uint64_t sequence, bool known) const;
  bool is_known(std::uint64_t epoch, const wire::OperationRecord& record) const;
  const char* take_bitmap(const Operation& operation, int rank, const Arrived& arrived,
                          WholeContribution& contribution);
  static std::optional<wire::Refusal> refusal_of(int rank, const Arrived& arrived);
  const Arrived& oldest(int rank) const { return sources_[static_cast<std::size_t>(rank)].messages.front(); }
  ReceiveChannel& channel(int rank) {
    return context_.channels(wire::Priority::express, static_cast<std::uint16_t>(rank)).receive_up;
  }
  bool refuse(std::string text);

  LaneContext& context_;
  const int ranks_;
  const std::uint64_t max_words_;             // of a bitmap
  std::vector<Source> sources_;               // by rank; that of this rank stays empty
  std::unique_ptr<std::uint64_t[]> bitmaps_;  // of the oldest operation, by rank
};

}  // namespace nzcl::engine

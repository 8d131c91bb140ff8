// Takes the contributions of all ranks in, and believes none of them before it has looked.
#pragma once

#include <array>
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

/// A slice whose contributions are coming in.
struct IncomingSlice {
  bool active = false;
  std::uint64_t sequence = 0, epoch = 0, slice = 0;
  wire::OperationRecord record;
  std::optional<SliceLayout> layout;
  int missing = 0;             // ranks whose bitmap is not there yet
  Operation* local = nullptr;  // this member's own operation, if it is a worker
  RunWalk local_walk;          // through the local contribution, as far as it has been summed
  /// Set if a rank has refused its request: the contributions are dropped, and every rank is told. Of several
  /// refusals it is that of the lowest rank, so that all slices of the operation tell the same.
  std::optional<wire::Refusal> refusal;

  SliceView view(std::span<const std::uint64_t> bits) const { return {*layout, slice, bits}; }
};

/// The contributions to the next kWindow slices of one lane at one priority. Owned by an exchange; only the
/// thread that drives the lane calls it.
///
/// A contribution is a bitmap, which is copied when it arrives, and a stream of bytes, which stays in the
/// slots of its messages (or in the local worker's input) until it is consumed. A slot is released once its
/// last byte has been consumed.
class Intake {
 public:
  /// With `local`, this member's own rank contributes by offer_local() and not by messages.
  Intake(LaneContext& context, wire::Priority priority);

  /// Takes what has arrived from all ranks. True if anything had.
  bool receive();
  /// The local worker's contribution to the slice with this sequence: it is read where it lies.
  void offer_local(std::uint64_t sequence, Operation* operation, std::uint64_t slice);

  /// The oldest slice, if all ranks' bitmaps are there; otherwise nullptr.
  IncomingSlice* complete();
  /// The oldest slice, complete or not.
  const IncomingSlice& oldest() const { return slices_[head_ % kWindow]; }
  /// The oldest slice is over.
  void finish() { slices_[head_++ % kWindow].active = false; }

  std::span<const std::uint64_t> bits(const IncomingSlice& s, int rank) const;
  /// The bytes of a rank's contribution that come next and lie together; none: they are not here yet, or the
  /// rank sent less than its bitmap promises, which is a failure.
  std::span<const std::byte> next(const IncomingSlice& s, int rank);
  void consume(IncomingSlice& s, int rank, std::uint64_t bytes);
  /// Where a rank wants the slice's tensor to be written.
  verbs::RemoteMemory output_of(const IncomingSlice& s, int rank) const {
    return sources_[static_cast<std::size_t>(rank)].outputs[s.sequence % kWindow];
  }
  void return_credits();

  /// Ranks whose bitmap the oldest slice waits for, and among `expected`, which have sent one, those whose
  /// bytes it waits for: "operation 7, allreduce(...): rank(s) 2 did not join". Empty: nobody.
  std::string waiting_for(std::span<const int> expected) const;
  std::string describe(const IncomingSlice& s) const;
  /// "operation 7, allreduce(...)" as far as the operation is still known.
  std::string describe(std::uint64_t epoch) const;

 private:
  struct Section {  // a part of a stream, in the slot of its message
    std::uint32_t slot = 0;
    const std::byte* payload = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t sequence = 0;
    bool last_in_slot = false;  // the slot is free when it has been consumed
  };
  struct Promise {  // what a rank's bitmap says that will come, and what of it has come
    std::uint64_t bytes = 0, received = 0;
  };
  struct Source {  // one rank
    FixedQueue<Section> sections;
    std::uint64_t used = 0;                    // bytes of the first section that were consumed
    std::vector<verbs::RemoteMemory> outputs;  // by sequence
    std::vector<bool> seen;                    // by sequence: its bitmap is there
    std::vector<Promise> promised;             // by sequence; valid if seen, and not the local rank's
  };

  bool receive_from(int rank);
  bool take(int rank, const ReceiveChannel::Received& message);
  bool take_section(int rank, std::uint32_t slot, const wire::Section& section);
  bool take_bitmap(int rank, const IncomingSlice& s, const std::byte* bitmap);
  bool expects(int rank, const wire::Header& header);
  IncomingSlice* enter(int rank, const wire::Header& header, const wire::OperationRecord& record,
                       const std::optional<wire::Refusal>& refusal);
  std::optional<wire::Refusal> refusal_in(int rank, const wire::Section& section);
  const char* wrong_with_sequence(std::uint64_t sequence) const;
  const char* wrong_with_slice(const IncomingSlice& s, int rank, const wire::Header& header) const;
  bool owns(const SliceLayout& layout, std::uint64_t slice) const;
  bool agree(int rank, std::uint64_t epoch, const wire::OperationRecord& record,
             const std::optional<wire::Refusal>& refusal);
  void open(IncomingSlice& s, const wire::Header& header, const wire::OperationRecord& record);
  std::uint64_t* bits_at(std::uint64_t sequence, int rank) const;
  Source& source_of(int rank) { return sources_[static_cast<std::size_t>(rank)]; }
  const Source& source_of(int rank) const { return sources_[static_cast<std::size_t>(rank)]; }
  bool refuse(ErrorCode code, std::string text);

  LaneContext& context_;
  const wire::Priority priority_;
  const int ranks_;
  const std::uint64_t max_words_;  // of one slice's bitmap
  std::array<IncomingSlice, kWindow> slices_;
  std::uint64_t head_ = 0;
  std::vector<Source> sources_;               // by rank
  std::unique_ptr<std::uint64_t[]> bitmaps_;  // by sequence, then rank; untouched pages cost nothing
};

}  // namespace nzcl::engine

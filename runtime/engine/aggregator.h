// The aggregator's half of one class on one lane: sums the slices it owns, in rank order, and sends the sums
// to every rank. A state machine without I/O. Steps and bytes: runtime/engine/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/bits.h"
#include "runtime/engine/fixed_queue.h"
#include "runtime/engine/lane_context.h"
#include "runtime/engine/operation.h"
#include "runtime/engine/result_queue.h"
#include "runtime/kernels/reduce.h"

namespace nzcl::engine {

class Worker;

/// Owned by the lane; only the thread that drives the lane calls it.
///
/// Contributions stay in their channels' slots until all ranks' parts of a block are there; then the block is
/// summed in one pass, in rank order, into a message (packed result) or its final place (direct result). So
/// every sum is reproducible, each contribution is read once, and the only memory is the channels' slots, the
/// staging buffers and the bitmaps of kWindow slices.
///
/// Invariants:
/// - Slices are summed in sequence order. All ranks send in that order too, so the slot that the sum waits
///   for is never behind one that waits for the sum.
/// - A slot is released once its last byte has been summed.
/// - A result waits for one receiver's credit without keeping it, or the next ones, from the others.
class Aggregator {
 public:
  Aggregator(LaneContext& context, wire::Class size_class);
  /// The worker of the same member, if it is one. Once, before use.
  void connect(Worker* local) { local_ = local; }

  /// The local worker's contribution to the slice with this sequence: read where it lies.
  void offer_local(std::uint64_t sequence, Operation* operation, std::uint64_t slice);
  bool step();

  /// Nothing is under way.
  bool idle() const { return !current().active && results_.empty(); }
  /// Ranks that the current slice waits for, and with what: "operation 7 (...): rank 2 has not called it".
  /// Empty: nobody.
  std::string waiting_for() const;

 private:
  struct Slice {  // by sequence
    bool active = false;
    std::uint64_t sequence = 0, epoch = 0, slice = 0;
    wire::OperationRecord record;
    std::optional<SliceLayout> layout;
    int missing = 0;  // bitmaps
    Operation* local = nullptr;
    bool summing = false;  // union known
    bool direct = false;
    std::uint32_t direct_writes = 0;
    std::uint64_t union_bytes = 0, summed_bytes = 0;
    StreamCursor at;
    std::uint64_t run_end = 0;        // first block behind `at` that other ranks hold
    std::uint64_t local_ordinal = 0;  // sparse local input: ordinal of its next set block
  };
  struct Contribution {  // a section with data, and the slot that its message holds
    std::uint32_t slot = 0;
    const std::byte* payload = nullptr;
    std::uint64_t bytes = 0;  // of the payload
    std::uint64_t sequence = 0;
    bool last_in_slot = false;  // the slot is free when it has been summed
  };
  struct Source {  // one rank's contributions, in order
    FixedQueue<Contribution> queue;
    std::uint64_t used = 0;                    // bytes of the first one's payload that were summed
    std::vector<verbs::RemoteMemory> outputs;  // by window place
    std::vector<bool> seen;                    // by window place: its bitmap is there
  };
  enum class Form : std::uint8_t {
    packed,  // a section of a message: header, perhaps the union bitmap, summed blocks
    direct,  // one run of the tensor, written to its place in every output
    notice,  // a section without blocks: the union bitmap of a direct slice, and how many writes belong to it
  };
  struct Message {  // results of slices that are over, on their way into the queue; never between two steps
    StagingPool::Index staging = 0;
    std::uint64_t bytes = 0;  // of its sections
    std::uint32_t sections = 0;
    std::byte* last = nullptr;  // the last section's header
    std::uint64_t epoch = 0;    // of the first one
  };
  struct Piece {  // a part of the result, being filled
    bool open = false;
    Form form = Form::packed;
    std::byte* section = nullptr;  // packed, notice: where its header goes
    std::byte* at = nullptr;       // start of the payload
    std::uint64_t bytes = 0, room = 0;
    std::uint64_t stream_offset = 0;
    std::uint64_t tensor_offset = 0;            // direct: where it goes
    std::optional<StagingPool::Index> staging;  // none: `at` is in the local output
    bool first = false;                         // carries the union bitmap
  };

  const Slice& current() const { return slices_[head_ % kWindow]; }
  bool receive(int rank);
  bool take(int rank, const ReceiveChannel::Message& message);
  bool agree(int rank, std::uint64_t epoch, const wire::OperationRecord& record);
  Slice* enter(int rank, const wire::Header& header, const wire::OperationRecord& record);
  std::uint64_t* bits_of(std::uint64_t sequence, int rank);
  std::span<const std::uint64_t> bits_of(const Slice& s, int rank) const;

  void begin_sum(Slice& s);
  enum class Progress : std::uint8_t { waiting, summed, flushed, slice_over };
  Progress sum_piece(Slice& s, bool& any);
  Progress sum_some(Slice& s);
  Progress close_slice(Slice& s);
  std::uint64_t gather_sources(Slice& s, std::uint64_t limit);
  void advance_sources(Slice& s, std::uint64_t bytes);
  bool open_piece(Slice& s, Form form);
  bool flush(Slice& s);
  void flush_section(Slice& s);
  void send_message();
  void flush_direct(Slice& s);
  bool deliver();
  bool deliver_to(std::size_t receiver);
  bool deliver_local();
  void taken(std::size_t receiver, StagingPool::Index staging);
  void release(int rank);

  LaneContext& context_;
  const wire::Class class_;
  Worker* local_ = nullptr;
  const int ranks_;
  std::vector<std::uint16_t> receivers_;  // of results, beside the local worker; mirrored: none
  const std::uint64_t max_words_;         // of one slice's bitmap
  std::array<Slice, kWindow> slices_;
  std::uint64_t head_ = 0;
  std::vector<Source> sources_;               // by rank
  std::unique_ptr<std::uint64_t[]> bitmaps_;  // window x ranks x max_words_; untouched pages cost nothing
  std::unique_ptr<std::uint64_t[]> union_,
      edges_;  // of the current slice; edges: the last block of a run with the same ranks
  Piece piece_;
  std::optional<Message> message_;          // `piece_` is its next section, if that is in the same buffer
  std::vector<int> present_;                // ranks that hold the block at the cursor
  std::vector<const std::byte*> pointers_;  // their bytes, in rank order
  std::uint64_t local_at_ = 0;  // the first section that the local worker has not had of its next result
  ResultQueue results_;         // for receivers_ in their order, then for the local worker
};

}  // namespace nzcl::engine

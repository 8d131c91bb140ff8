// The slices of one lane whose contributions are arriving, and what each rank has said about them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/channel/lane_context.h"
#include "runtime/operation/operation.h"
#include "runtime/wire/message.h"

namespace nzcl::engine {

/// A slice whose contributions are arriving.
struct IncomingSlice {
  bool active = false;
  std::uint64_t sequence = 0, epoch = 0, slice = 0;
  wire::OperationRecord record;
  std::optional<SliceLayout> layout;
  SliceView shape;                  // of the slice, without a bitmap; it refers to `layout`
  const char* misplaced = nullptr;  // why no rank may send it here, or nullptr
  int missing = 0;                  // ranks whose bitmap has not arrived yet
  Operation* local = nullptr;       // this member's own operation, if it is a worker
  RunWalk local_walk;               // how far the local contribution has been summed
  /// Set if a rank has refused its request. The contributions are then dropped, and every rank is told. Of
  /// several refusals it is that of the lowest rank, so that all slices of the operation tell the same.
  const wire::Refusal* refusal = nullptr;

  SliceView view(std::span<const std::uint64_t> bits) const { return shape.with(bits); }
  std::uint64_t words() const { return words_for(shape.blocks()); }  // of a bitmap
  /// The ranks that may contribute to it.
  wire::Audience contributors() const {
    return wire::contributors(record.collective, record.root(), layout->chunk_of(slice));
  }
};

/// What a rank has said about one slice.
struct SliceEntry {
  bool seen = false;           // the bitmap has arrived; the rest is valid only then
  verbs::RemoteMemory output;  // where the result is to be written
  std::uint64_t promised = 0;  // bytes, or tiles, that will come; not of the local rank
  std::uint64_t received = 0;  // how many of them have come
};

/// The next kWindow slices of one lane at one priority. Every rank enters its contribution to each of them,
/// in any order. A rank may say anything, so whatever it says about an operation and a slice is checked here,
/// and what is wrong fails the communicator with a text that names the rank. Owned by an intake.
class SliceWindow {
 public:
  SliceWindow(LaneContext& context, wire::Priority priority);

  /// Enters a rank's contribution into its slice, which the first rank opens. `refusal` is why the rank takes
  /// part without data, or nullptr. Returns nullptr after a failure.
  IncomingSlice* enter(int rank, const wire::Header& header, const wire::OperationRecord& record,
                       const wire::Refusal* refusal);
  /// What a rank has said about the slice with this sequence, which is in the window.
  SliceEntry& entry_of(int rank, std::uint64_t sequence) {
    return entries_[static_cast<std::size_t>(rank)][sequence % kWindow];
  }
  const SliceEntry& entry_of(int rank, std::uint64_t sequence) const {
    return entries_[static_cast<std::size_t>(rank)][sequence % kWindow];
  }
  /// The slice that has the place of this sequence, which may be another one.
  const IncomingSlice& in_place_of(std::uint64_t sequence) const { return slices_[sequence % kWindow]; }
  /// Returns the oldest slice if all ranks have entered it, otherwise nullptr.
  IncomingSlice* complete();
  const IncomingSlice& oldest() const { return slices_[head_ % kWindow]; }
  /// Ends the oldest slice, whose place becomes free.
  void finish() { slices_[head_++ % kWindow].active = false; }

 private:
  bool join(IncomingSlice& s, int rank, const wire::Header& header, const wire::OperationRecord& record,
            const wire::Refusal* refusal);
  bool admit(IncomingSlice& s, int rank, const wire::Header& header, const wire::OperationRecord& record,
             const wire::Refusal* refusal);
  static bool repeats(const IncomingSlice& s, const wire::Header& header,
                      const wire::OperationRecord& record);
  const char* wrong_with_record(const wire::Header& header, const wire::OperationRecord& record) const;
  const char* wrong_with_slice(const IncomingSlice& s, int rank, const wire::Header& header,
                               const wire::OperationRecord& record) const;
  const char* wrong_with_place(const SliceLayout& layout, std::uint64_t slice) const;
  bool owns(const SliceLayout& layout, std::uint64_t slice) const;
  void open(IncomingSlice& s, const wire::Header& header, const wire::OperationRecord& record);
  bool refuse(ErrorCode code, std::string text);

  LaneContext& context_;
  const wire::Priority priority_;
  const int ranks_;
  std::array<IncomingSlice, kWindow> slices_;
  std::array<wire::Refusal, kWindow> refusals_;  // of these slices
  std::uint64_t head_ = 0;
  std::vector<std::array<SliceEntry, kWindow>> entries_;  // by rank, then sequence modulo kWindow
};

/// Returns a text such as "operation 7, allreduce(...)".
std::string describe(const IncomingSlice& s);

}  // namespace nzcl::engine

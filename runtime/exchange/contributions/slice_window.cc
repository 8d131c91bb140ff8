#include "runtime/exchange/contributions/slice_window.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/exchange/contributions/agreement.h"
#include "runtime/wire/checks.h"

namespace nzcl::engine {

using wire::Header;
using wire::OperationRecord;

SliceWindow::SliceWindow(LaneContext& context, wire::Priority priority)
    : context_(context),
      priority_(priority),
      ranks_(context.config.members.workers),
      entries_(static_cast<std::size_t>(ranks_)) {}

bool SliceWindow::refuse(ErrorCode code, std::string text) {
  context_.fail(code, std::move(text));
  return false;
}

/// Returns true if the record says of the slice what the one that opened it said, which has been checked.
bool SliceWindow::repeats(const IncomingSlice& s, const Header& header, const OperationRecord& record) {
  return s.active && s.sequence == header.sequence && s.epoch == header.epoch && s.refusal == nullptr &&
         s.record.same_but_output(record) && wire::wrong_with_output(record) == nullptr;
}

IncomingSlice* SliceWindow::enter(int rank, const Header& header, const OperationRecord& record,
                                  const wire::Refusal* refusal) {
  IncomingSlice& s = slices_[header.sequence % kWindow];
  const bool repeated = refusal == nullptr && repeats(s, header, record);
  const bool joined = repeated || join(s, rank, header, record, refusal);
  return joined && admit(s, rank, header, record, refusal) ? &s : nullptr;
}

/// Checks what has not been said of the slice before, and opens it if nothing has. Returns false after a
/// failure.
bool SliceWindow::join(IncomingSlice& s, int rank, const Header& header, const OperationRecord& record,
                       const wire::Refusal* refusal) {
  if (const char* wrong = wrong_with_record(header, record)) {
    return refuse(ErrorCode::transport, fmt::format("rank {} sent a malformed bitmap (sequence {}): {}",
                                                    context_.number(rank), header.sequence, wrong));
  }
  if (!agree(context_, rank, header.epoch, record, refusal)) return false;
  if (!s.active) open(s, header, record);
  const bool refused = s.refusal != nullptr || refusal != nullptr;
  if (s.epoch == header.epoch &&
      (refused ? same_layout(context_.config, s.record, record) : s.record.same_operation(record)))
    return true;
  return refuse(ErrorCode::mismatch, fmt::format("ranks disagree: {}, meets operation {}, {}, of rank {}",
                                                 describe(s), header.epoch, text_of(record, refusal), rank));
}

/// Notes that the rank takes part in the slice. Returns false if it had to refuse the contribution.
bool SliceWindow::admit(IncomingSlice& s, int rank, const Header& header, const OperationRecord& record,
                        const wire::Refusal* refusal) {
  if (const char* misfit = wrong_with_slice(s, rank, header, record)) {
    return refuse(ErrorCode::transport,
                  fmt::format("rank {} sent a bitmap that does not fit operation {} slice {}: {}",
                              context_.number(rank), s.epoch, s.slice, misfit));
  }
  entry_of(rank, s.sequence) = {.seen = true, .output = {record.output_address, record.output_key}};
  if (refusal != nullptr && (s.refusal == nullptr || refusal->rank() < s.refusal->rank())) {
    wire::Refusal& kept = refusals_[s.sequence % kWindow];
    kept = *refusal;
    s.refusal = &kept;
  }
  --s.missing;
  return true;
}

/// Returns why the record cannot be that of a slice of this lane, whoever says so, or nullptr.
const char* SliceWindow::wrong_with_record(const Header& header, const OperationRecord& record) const {
  if (const char* wrong = wire::wrong_with(record)) return wrong;
  if (record.root() >= ranks_) return "its root is no rank";
  if (record.algorithm == wire::Algorithm::merging) return "its tensor is merged, and has no owners";
  if (wire::has_coded_results(record.value_rule) && context_.config.members.dedicated > 0)
    return "its results are coded by owners that are ranks, and there are dedicated aggregators";
  if (header.sequence < head_) return "that slice is over";
  return header.sequence >= head_ + kWindow ? "that slice may not have begun yet" : nullptr;
}

const char* SliceWindow::wrong_with_slice(const IncomingSlice& s, int rank, const Header& header,
                                          const OperationRecord& record) const {
  if (s.slice != header.slice) return "it is of another slice than that of the ranks before";
  if (s.misplaced != nullptr) return s.misplaced;
  if (s.record.chunk_count != record.chunk_count) return "its chunk has another length";
  if (entry_of(rank, s.sequence).seen) return "it came before";
  const std::uint64_t bitmap_bytes = s.layout->tiled() ? 0 : s.words() * 8;
  if (header.bitmap_bytes != bitmap_bytes) return "its length is another";
  return nullptr;
}

/// Returns why the slice does not belong into these channels, or nullptr.
const char* SliceWindow::wrong_with_place(const SliceLayout& layout, std::uint64_t slice) const {
  if (slice >= layout.slices()) return "there is no such slice";
  if (layout.priority() != priority_) return "it came in channels of another priority";
  return owns(layout, slice) ? nullptr : "another owner sums that slice";
}

/// Returns true if this lane sums the slice.
bool SliceWindow::owns(const SliceLayout& layout, std::uint64_t slice) const {
  const EngineConfig& config = context_.config;
  const auto lanes = static_cast<std::uint32_t>(config.lanes), lane = static_cast<std::uint32_t>(config.lane);
  const Members& members = config.members;
  const int aggregator = members.dedicated ? members.self - members.workers : members.self;
  return layout.owner(slice) == static_cast<std::uint32_t>(aggregator) * lanes + lane;
}

void SliceWindow::open(IncomingSlice& s, const Header& header, const OperationRecord& record) {
  s = {};
  s.active = true;
  s.sequence = header.sequence;
  s.epoch = header.epoch;
  s.slice = header.slice;
  s.record = record;
  s.layout = layout_of(context_.config, header.epoch, record);
  s.misplaced = wrong_with_place(*s.layout, s.slice);
  if (s.misplaced == nullptr) s.shape = SliceView(*s.layout, s.slice, {});
  s.missing = ranks_;
  for (auto& of_rank : entries_) of_rank[s.sequence % kWindow].seen = false;
}

IncomingSlice* SliceWindow::complete() {
  IncomingSlice& s = slices_[head_ % kWindow];
  return s.active && s.missing == 0 ? &s : nullptr;
}

std::string describe(const IncomingSlice& s) {
  return fmt::format("operation {}, {}", s.epoch, text_of(s.record, s.refusal));
}

}  // namespace nzcl::engine

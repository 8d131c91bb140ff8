#include "runtime/exchange/one_hop/arrivals.h"

#include <fmt/format.h>

#include <cstring>

#include "runtime/base/list_text.h"
#include "runtime/exchange/contributions/agreement.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Priority;

Arrivals::Arrivals(LaneContext& context)
    : context_(context),
      ranks_(context.config.members.workers),
      max_words_(context.slot_bytes(Priority::express) / 2 / 8 + 1),
      sources_(static_cast<std::size_t>(ranks_)),
      bitmaps_(new std::uint64_t[static_cast<std::uint64_t>(ranks_) * max_words_]) {
  for (Source& source : sources_)
    source.messages = FixedQueue<Arrived>(context.config.channel(Priority::express).slots);
}

bool Arrivals::refuse(std::string text) {
  context_.fail(ErrorCode::transport, std::move(text));
  return false;
}

// --- Messages arrive

bool Arrivals::receive() {
  bool any = false;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (context_.is_self(rank)) continue;
    while (!context_.failure) {
      const ReceiveChannel::Received message = channel(rank).pop();
      if (message.data == nullptr || !take(rank, message)) break;
      any = true;
    }
  }
  return any;
}

bool Arrivals::take(int rank, const ReceiveChannel::Received& message) {
  Source& source = sources_[static_cast<std::size_t>(rank)];
  wire::SectionReader reader(message.data, context_.slot_bytes(Priority::express), Direction::up);
  const auto section = reader.next();
  const bool known = section && is_known(section->header.epoch, section->record);
  const char* wrong = section ? wrong_with_section(reader, *section, source.received, known) : reader.wrong();
  if (wrong != nullptr) {
    return refuse(fmt::format("rank {} sent a malformed contribution (sequence {}): {}", rank,
                              reader.sequence(), wrong));
  }
  const wire::Header& header = section->header;
  const Arrived arrived{
      .slot = message.slot,
      .bitmap_bytes = header.bitmap_bytes,
      .payload_bytes = header.payload_bytes,
      .refusal_code = (header.flags & wire::kRefused) != 0 ? header.refusal_code : std::uint16_t{0},
      .epoch = header.epoch,
      .slice = header.slice,
      .bitmap = section->bitmap,
      .payload = section->payload};
  if (arrived.refusal_code != 0 || !known) {
    const auto refusal = refusal_of(rank, arrived);
    if (!agree(context_, rank, header.epoch, section->record, refusal ? &*refusal : nullptr)) return false;
  }
  LaneStatistics::add(context_.statistics.bytes_received, section->bytes);
  ++source.received;
  source.messages.push_back(arrived);
  return true;
}

/// Returns what is wrong with a contribution, apart from what only its operation can tell.
const char* Arrivals::wrong_with_section(const wire::SectionReader& reader, const wire::Section& section,
                                         std::uint64_t sequence, bool known) const {
  const wire::Header& header = section.header;
  const wire::OperationRecord& record = section.record;
  if (reader.more()) return "it has more than one section";
  if ((header.flags & wire::kHasBitmap) == 0) return "it has no bitmap";
  if ((header.flags & wire::kTiles) != 0) return "its tensor is not exchanged in that form";
  if (header.stream_offset != 0) return "it does not begin with its first byte";
  if (header.sequence != sequence) return "it is out of order";
  if (known) return wire::wrong_with_output(record);
  if (const char* wrong = wire::wrong_with(record)) return wrong;
  const SliceLayout layout = layout_of(context_.config, header.epoch, record);
  return layout.priority() == Priority::express ? nullptr : "it came in channels of another priority";
}

/// Returns true if the record says what the first rank has said about the operation, which was checked.
bool Arrivals::is_known(std::uint64_t epoch, const wire::OperationRecord& record) const {
  const KnownOperation& known = context_.operations[epoch % context_.operations.size()];
  return known.valid && known.epoch == epoch && known.refusal == nullptr &&
         known.record.same_but_output(record);
}

std::optional<wire::Refusal> Arrivals::refusal_of(int rank, const Arrived& arrived) {
  if (arrived.refusal_code == 0) return std::nullopt;
  return wire::Refusal(static_cast<std::uint16_t>(rank), arrived.refusal_code,
                       {reinterpret_cast<const char*>(arrived.payload), arrived.payload_bytes});
}

// --- Operations become complete

bool Arrivals::empty() const {
  for (const Source& source : sources_) {
    if (!source.messages.empty()) return false;
  }
  return true;
}

bool Arrivals::complete() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!context_.is_self(rank) && sources_[static_cast<std::size_t>(rank)].messages.empty()) return false;
  }
  return true;
}

bool Arrivals::check(const Operation& op, std::span<WholeContribution> contributions) {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (context_.is_self(rank)) continue;
    const Arrived& arrived = oldest(rank);
    if (arrived.epoch != op.epoch) {
      context_.fail(ErrorCode::mismatch, fmt::format("ranks disagree: operation {}, {}, meets {}, of rank {}",
                                                     op.epoch, text_of(op.record, op.refusal.get()),
                                                     describe(context_, arrived.epoch), rank));
      return false;
    }
    WholeContribution& contribution = contributions[static_cast<std::size_t>(rank)];
    if (const char* wrong = take_bitmap(op, rank, arrived, contribution)) {
      return refuse(fmt::format("rank {} sent a bitmap that does not fit operation {} slice {}: {}", rank,
                                op.epoch, arrived.slice, wrong));
    }
    contribution.stream = arrived.payload;
  }
  return true;
}

/// Copies a contribution's bitmap, and checks the copy. Returns what is wrong, or nullptr.
const char* Arrivals::take_bitmap(const Operation& op, int rank, const Arrived& arrived,
                                  WholeContribution& contribution) {
  const std::uint64_t words = op.layout.words_of(0);
  if (arrived.slice != 0) return "there is no such slice";
  if (arrived.bitmap_bytes != words * sizeof(std::uint64_t)) return "its length is another";
  std::uint64_t* const copy = bitmaps_.get() + static_cast<std::uint64_t>(rank) * max_words_;
  if (words > 0) std::memcpy(copy, arrived.bitmap, arrived.bitmap_bytes);
  contribution.bits = {copy, words};
  const SliceView view(op.layout, 0, contribution.bits);
  if (!view.well_formed()) return "it has bits behind the last block";
  contribution.whole = view.whole();
  if (arrived.refusal_code != 0) return view.count() > 0 ? "it is refused, and has blocks" : nullptr;
  const std::uint64_t stream_bytes = contribution.whole ? op.layout.tensor_bytes() : view.stream_bytes();
  return stream_bytes != arrived.payload_bytes ? "its data is not as long as it says" : nullptr;
}

std::optional<wire::Refusal> Arrivals::refusal() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (context_.is_self(rank)) continue;
    if (auto refusal = refusal_of(rank, oldest(rank))) return refusal;
  }
  return std::nullopt;
}

void Arrivals::release() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (context_.is_self(rank)) continue;
    auto& messages = sources_[static_cast<std::size_t>(rank)].messages;
    channel(rank).release(messages.front().slot);
    messages.pop_front();
  }
}

void Arrivals::return_credits() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!context_.is_self(rank))
      context_.return_credit(Priority::express, Direction::up, static_cast<std::uint16_t>(rank));
  }
}

// --- Texts for error messages

std::string Arrivals::absent(bool self_is_absent) const {
  std::string list;
  for (int rank = 0; rank < ranks_; ++rank) {
    const bool here =
        context_.is_self(rank) ? !self_is_absent : !sources_[static_cast<std::size_t>(rank)].messages.empty();
    if (!here) append_item(list, rank);
  }
  return list;
}

std::uint64_t Arrivals::some_epoch() const {
  for (const Source& source : sources_) {
    if (!source.messages.empty()) return source.messages.front().epoch;
  }
  return 0;
}

}  // namespace nzcl::engine

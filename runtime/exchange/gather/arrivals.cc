#include "runtime/exchange/gather/arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/exchange/contributions/agreement.h"

namespace nzcl::engine {

using wire::Direction;

namespace {

/// The most words of a contribution's bitmap. It has a place here for each rank and operation, and what is
/// doubled has the shorter bitmaps the more ranks there are.
std::uint64_t most_words(const LaneContext& context, wire::Priority priority) {
  const std::uint64_t bytes = priority == wire::Priority::doubling ? doubling_bytes(context.config)
                                                                   : context.slot_bytes(priority) / 2;
  return bytes / sizeof(std::uint64_t) + 1;
}

}  // namespace

Arrivals::Arrivals(LaneContext& context, wire::Priority priority, std::span<const Leg> schedule)
    : context_(context),
      priority_(priority),
      ranks_(context.config.members.workers),
      max_words_(most_words(context, priority)),
      sources_(schedule.size()),
      contributions_(kGatherWindow * static_cast<std::size_t>(ranks_)),
      bitmaps_(new std::uint64_t[contributions_.size() * max_words_]) {
  for (std::size_t leg = 0; leg < schedule.size(); ++leg) {
    const int rank = (context.config.members.self - schedule[leg].distance + ranks_) % ranks_;
    sources_[leg].rank = static_cast<std::uint16_t>(rank);
    sources_[leg].contributions = schedule[leg].contributions;
    sources_[leg].messages = FixedQueue<Arrived>(context.config.channel(priority).slots);
  }
}

bool Arrivals::refuse(std::string text) {
  context_.fail(ErrorCode::transport, std::move(text));
  return false;
}

// --- Messages arrive

bool Arrivals::receive() {
  bool any = false;
  for (Source& source : sources_) {
    while (!context_.failure) {
      const ReceiveChannel::Received message = channel(source).pop();
      if (message.data == nullptr || !take(source, message)) break;
      any = true;
    }
  }
  return any;
}

bool Arrivals::take(Source& source, const ReceiveChannel::Received& message) {
  wire::SectionReader reader(message.data, context_.slot_bytes(priority_), Direction::up);
  const auto section = reader.next();
  const bool known = section && is_known(section->header.epoch, section->record);
  const char* wrong = section ? wrong_with_section(source, *section, known) : reader.wrong();
  Arrived arrived;
  if (wrong == nullptr) wrong = take_batch(source, reader, *section, message.data, arrived);
  if (wrong != nullptr) {
    return refuse(fmt::format("rank {} sent a malformed contribution (sequence {}): {}",
                              context_.number(source.rank), reader.sequence(), wrong));
  }
  const wire::Header& header = section->header;
  const bool refused = (header.flags & wire::kRefused) != 0;
  arrived.slot = message.slot;
  arrived.bitmap_bytes = header.bitmap_bytes;
  arrived.payload_bytes = header.payload_bytes;
  arrived.refusal_code = refused ? header.refusal_code : std::uint16_t{0};
  arrived.epoch = header.epoch;
  arrived.slice = header.slice;
  arrived.bitmap = section->bitmap;
  arrived.payload = section->payload;
  if (refused || !known) {
    std::optional<wire::Refusal> refusal;
    if (refused) {
      refusal.emplace(
          source.rank, arrived.refusal_code,
          std::string_view{reinterpret_cast<const char*>(arrived.payload), arrived.payload_bytes});
    }
    if (!agree(context_, source.rank, header.epoch, section->record, refusal ? &*refusal : nullptr))
      return false;
  }
  LaneStatistics::add(context_.statistics.bytes_received, section->bytes + arrived.passed_on.size());
  ++source.received;
  source.messages.push_back(arrived);
  return true;
}

/// Returns what is wrong with a contribution, apart from what only its operation can tell.
const char* Arrivals::wrong_with_section(const Source& source, const wire::Section& section,
                                         bool known) const {
  const wire::Header& header = section.header;
  const wire::OperationRecord& record = section.record;
  if ((header.flags & wire::kHasBitmap) == 0) return "it has no bitmap";
  if ((header.flags & wire::kTiles) != 0) return "its tensor is not exchanged in that form";
  if (header.stream_offset != 0) return "it does not begin with its first byte";
  if (header.sequence != source.received) return "it is out of order";
  if (known) return wire::wrong_with_output(record);
  if (const char* wrong = wire::wrong_with(record)) return wrong;
  const SliceLayout layout = layout_of(context_.config, header.epoch, record);
  return layout.priority() == priority_ ? nullptr : "it came in channels of another priority";
}

/// Takes the batch behind the sender's contribution, where the leg has one. Returns what is wrong with it, or
/// nullptr.
const char* Arrivals::take_batch(const Source& source, const wire::SectionReader& reader,
                                 const wire::Section& section, const std::byte* slot,
                                 Arrived& arrived) const {
  if (source.contributions == 1) return reader.more() ? "it has more than one section" : nullptr;
  if (!reader.more()) return "it passes on nothing";
  const char* wrong = nullptr;
  const auto batch = wire::read_batch({slot, context_.slot_bytes(priority_)}, reader.at(), wrong);
  if (!batch) return wrong;
  if (batch->header.epoch != section.header.epoch || batch->header.sequence != section.header.sequence)
    return "what it passes on is of another operation";
  if (batch->header.entries != source.contributions - 1) return "it is not of as many ranks as it should be";
  arrived.passed_on = batch->payload;
  return nullptr;
}

/// Returns true if the record says what the first rank has said about the operation, which was checked.
bool Arrivals::is_known(std::uint64_t epoch, const wire::OperationRecord& record) const {
  const KnownOperation& known = context_.operations[epoch % context_.operations.size()];
  return known.valid && known.epoch == epoch && known.refusal == nullptr &&
         known.record.same_but_output(record);
}

// --- Contributions are checked

bool Arrivals::check(std::size_t leg, const Operation& op) {
  Source& source = sources_[leg];
  if (source.messages.empty()) return false;
  const Arrived& arrived = source.messages.front();
  if (arrived.epoch != op.epoch) {
    context_.fail(ErrorCode::mismatch, fmt::format("ranks disagree: operation {}, {}, meets {}, of rank {}",
                                                   op.epoch, text_of(op.record, op.refusal.get()),
                                                   describe(context_, arrived.epoch), source.rank));
    return false;
  }
  if (arrived.slice != 0) {
    return refuse(fmt::format("rank {} sent a contribution to operation {} slice {}: there is no such slice",
                              context_.number(source.rank), op.epoch, arrived.slice));
  }
  const wire::Entry own{.refusal_code = arrived.refusal_code,
                        .bitmap = {arrived.bitmap, arrived.bitmap_bytes},
                        .payload = {arrived.payload, arrived.payload_bytes}};
  if (!check_contribution(source, source.rank, own, op) ||
      (source.contributions > 1 && !check_batch(source, arrived, op)))
    return false;
  source.slots[source.checked++ % kGatherWindow] = arrived.slot;
  source.messages.pop_front();
  return true;
}

bool Arrivals::check_batch(const Source& source, const Arrived& arrived, const Operation& op) {
  wire::EntryReader entries(arrived.passed_on, arrived.bitmap_bytes);
  const char* wrong = nullptr;
  for (int i = 1; i < source.contributions && wrong == nullptr; ++i) {
    const auto entry = entries.next();
    if (!entry) {
      wrong = entries.wrong();
    } else if (!check_contribution(source, (source.rank - i + ranks_) % ranks_, *entry, op)) {
      return false;
    }
  }
  if (wrong == nullptr && !entries.at_end()) wrong = "it has bytes behind its last contribution";
  return wrong == nullptr || refuse(fmt::format("rank {} sent a malformed contribution (sequence {}): {}",
                                                context_.number(source.rank), source.checked, wrong));
}

/// Takes a contribution of `rank` that is in the next message of a leg.
bool Arrivals::check_contribution(const Source& source, int rank, const wire::Entry& entry,
                                  const Operation& op) {
  const char* const wrong = take_contribution(op, index_of(source.checked, rank), entry);
  if (wrong == nullptr) return true;
  const std::string whose = rank == source.rank ? "" : fmt::format(" of rank {}", rank);
  return refuse(fmt::format("rank {} sent a contribution{} to operation {} slice 0 that can't be: {}",
                            context_.number(source.rank), whose, op.epoch, wrong));
}

/// Copies a contribution's bitmap, and checks the copy. Returns what is wrong, or nullptr.
const char* Arrivals::take_contribution(const Operation& op, std::size_t index, const wire::Entry& entry) {
  const std::uint64_t words = op.layout.words_of(0);
  if (entry.bitmap.size() != words * sizeof(std::uint64_t)) return "its bitmap has another length";
  std::uint64_t* const copy = bitmaps_.get() + index * max_words_;
  if (words > 0) std::memcpy(copy, entry.bitmap.data(), entry.bitmap.size());
  const SliceView view(op.layout, 0, {copy, words});
  if (!view.well_formed()) return "its bitmap has bits behind the last block";
  const bool whole = view.whole();
  contributions_[index] = {.bits = view.bits(),
                           .stream = entry.payload.data(),
                           .stream_bytes = static_cast<std::uint32_t>(entry.payload.size()),
                           .refusal_code = entry.refusal_code,
                           .whole = whole};
  if (entry.refusal_code != 0) return view.count() > 0 ? "it is refused, and has blocks" : nullptr;
  const std::uint64_t stream_bytes = whole ? op.layout.tensor_bytes() : view.stream_bytes();
  return stream_bytes != entry.payload.size() ? "its data is not as long as its bitmap says" : nullptr;
}

// --- Operations end

void Arrivals::release(std::uint64_t sequence) {
  for (const Source& source : sources_) channel(source).release(source.slots[sequence % kGatherWindow]);
}

void Arrivals::return_credits() {
  for (const Source& source : sources_) context_.return_credit(priority_, Direction::up, source.rank);
}

// --- What has come early

bool Arrivals::early() const {
  return std::any_of(sources_.begin(), sources_.end(), [](const Source& s) { return !s.messages.empty(); });
}

std::uint64_t Arrivals::early_epoch() const {
  for (const Source& source : sources_) {
    if (!source.messages.empty()) return source.messages.front().epoch;
  }
  return 0;
}

}  // namespace nzcl::engine

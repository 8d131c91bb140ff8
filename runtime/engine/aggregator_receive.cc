// The half of the aggregator that takes contributions in, and believes none of them before it has looked.
#include <fmt/format.h>

#include <cstring>

#include "runtime/engine/aggregator.h"

namespace nzcl::engine {

using wire::Class;
using wire::Direction;
using wire::Header;
using wire::OperationRecord;

namespace {

std::string describe(const OperationRecord& r) {
  return fmt::format("allreduce(count {}, {}, {}, blocks of {}{})", r.count,
                     name_of(static_cast<DataType>(r.type)), name_of(static_cast<ReduceOp>(r.op)),
                     r.block_elems, r.packed_result ? ", packed result" : "");
}

bool sane(const OperationRecord& r) {
  return r.type < kDataTypes && r.op < kReduceOps && r.block_elems > 0 && r.packed_result <= 1;
}

}  // namespace

bool Aggregator::receive(int rank) {
  if (rank == context_.config.members.self) return false;
  ReceiveChannel& channel = context_.link(class_, static_cast<std::uint16_t>(rank)).receive_up;
  bool any = false;
  while (!context_.failure) {
    const ReceiveChannel::Message message = channel.pop();
    if (message.data == nullptr || !take(rank, message)) break;
    any = true;
  }
  return any;
}

/// All sections of a message. Its slot is held until the last one with data has been summed.
bool Aggregator::take(int rank, const ReceiveChannel::Message& message) {
  Source& source = sources_[static_cast<std::size_t>(rank)];
  const std::uint64_t slot_bytes = context_.config.of(class_).slot_bytes;
  bool holds_slot = false, more = true;
  std::uint64_t at = 0;
  for (std::uint32_t sections = 0; more; ++sections) {
    const std::byte* section = message.data + at;
    const bool whole = sections < wire::kMaxSections && at + sizeof(Header) <= slot_bytes;
    Header header{.magic = 0};
    if (whole) std::memcpy(&header, section, sizeof header);
    const bool with_bitmap = (header.flags & wire::kHasBitmap) != 0;
    const std::uint64_t fixed = sizeof header + (with_bitmap ? sizeof(OperationRecord) : 0);
    const std::uint64_t total = fixed + header.bitmap_bytes + header.payload_bytes;
    if (header.magic != wire::kMagic || header.version != wire::kVersion || at + total > slot_bytes) {
      context_.fail(ErrorCode::transport, fmt::format("rank {} sent a malformed contribution (sequence {})",
                                                      rank, header.sequence));
      return false;
    }
    if (!context_.credit(class_, Direction::down, static_cast<std::uint16_t>(rank), header.credit)) {
      context_.fail(ErrorCode::transport,
                    fmt::format("rank {} returned more credits than it was sent messages", rank));
      return false;
    }
    LaneStatistics::add(context_.statistics.bytes_received, total);
    if (with_bitmap) {
      OperationRecord record;
      std::memcpy(&record, section + sizeof header, sizeof record);
      Slice* s = enter(rank, header, record);
      if (s == nullptr) return false;
      if (header.bitmap_bytes > 0)
        std::memcpy(bits_of(s->sequence, rank), section + fixed, header.bitmap_bytes);
    }
    if (header.payload_bytes > 0) {
      source.queue.push_back({message.slot, section + fixed + header.bitmap_bytes, header.payload_bytes,
                              header.sequence, false});
      holds_slot = true;
    }
    more = (header.flags & wire::kMore) != 0;
    at = wire::aligned_section(at + total);
  }
  if (holds_slot) {
    source.queue.back().last_in_slot = true;
  } else {
    context_.link(class_, static_cast<std::uint16_t>(rank)).receive_up.release(message.slot);
  }
  return true;
}

/// Compares what the ranks believe an operation to be, over both classes and all slices.
bool Aggregator::agree(int rank, std::uint64_t epoch, const OperationRecord& record) {
  auto& known = context_.operations[epoch % context_.operations.size()];
  if (!known.valid || known.epoch != epoch) {
    known = {true, epoch, rank, record};
  } else if (!known.record.same_operation(record)) {
    context_.fail(ErrorCode::mismatch,
                  fmt::format("ranks disagree about operation {}: {} on rank {}, {} on rank {}", epoch,
                              describe(known.record), known.rank, describe(record), rank));
    return false;
  }
  return true;
}

Aggregator::Slice* Aggregator::enter(int rank, const Header& header, const OperationRecord& record) {
  if (!agree(rank, header.epoch, record)) return nullptr;
  Slice& s = slices_[header.sequence % kWindow];
  if (header.sequence < head_ || header.sequence >= head_ + kWindow || !sane(record)) {
    context_.fail(ErrorCode::transport,
                  fmt::format("rank {} sent a malformed bitmap (sequence {})", rank, header.sequence));
    return nullptr;
  }
  if (!s.active) {
    s = {};
    s.active = true;
    s.sequence = header.sequence;
    s.epoch = header.epoch;
    s.slice = header.slice;
    s.record = record;
    s.layout = layout_of(context_.config, header.epoch, record);
    s.missing = ranks_;
    for (Source& source : sources_) source.seen[s.sequence % kWindow] = false;
  }
  if (s.epoch != header.epoch) {
    context_.fail(ErrorCode::mismatch,
                  fmt::format("ranks disagree: operation {}, {}, meets operation {}, {}, of rank {}", s.epoch,
                              describe(s.record), header.epoch, describe(record), rank));
    return nullptr;
  }
  Source& source = sources_[static_cast<std::size_t>(rank)];
  const std::size_t place = s.sequence % kWindow;
  if (s.slice != header.slice || s.slice >= s.layout->slices() || source.seen[place] ||
      s.layout->express() != (class_ == Class::express) ||
      header.bitmap_bytes != s.layout->words_of(s.slice) * 8) {
    context_.fail(
        ErrorCode::transport,
        fmt::format("rank {} sent a bitmap that does not fit operation {} slice {}", rank, s.epoch, s.slice));
    return nullptr;
  }
  source.seen[place] = true;
  source.outputs[place] = {record.output_address, record.output_key};
  --s.missing;
  return &s;
}

void Aggregator::offer_local(std::uint64_t sequence, Operation* operation, std::uint64_t slice) {
  const int rank = context_.config.members.self;
  const auto bits = operation->input_bits(slice);
  Header header{.epoch = operation->epoch, .slice = slice, .sequence = sequence};
  header.bitmap_bytes = static_cast<std::uint32_t>(bits.size_bytes());
  Slice* s = enter(rank, header, operation->record);
  if (s == nullptr) return;
  if (!bits.empty()) std::memcpy(bits_of(sequence, rank), bits.data(), bits.size_bytes());
  s->local = operation;
  if (operation->input.by_ordinal) s->local_ordinal = operation->first_ordinal(slice);
}

std::string Aggregator::waiting_for() const {
  const auto add = [](std::string& list, int rank) {
    list += (list.empty() ? "" : ", ") + std::to_string(rank);
  };
  const Slice& s = current();
  if (s.active) {
    std::string absent, silent;
    for (int rank = 0; rank < ranks_; ++rank) {
      const Source& source = sources_[static_cast<std::size_t>(rank)];
      const bool self = rank == context_.config.members.self;
      if (!source.seen[s.sequence % kWindow]) {
        add(absent, rank);
      } else if (s.summing && s.at.block < s.layout->blocks_of(s.slice) &&
                 test_bit(bits_of(s, rank), s.at.block) && !self && source.queue.empty()) {
        add(silent, rank);
      }
    }
    std::string text = fmt::format("operation {}, {}:", s.epoch, describe(s.record));
    if (!absent.empty()) text += fmt::format(" rank(s) {} did not join;", absent);
    if (!silent.empty()) text += fmt::format(" rank(s) {} stopped sending;", silent);
    text.pop_back();
    if (!absent.empty() || !silent.empty()) return text;
  }
  std::string full;
  std::uint64_t epoch = 0;
  for (std::size_t i = 0; i < receivers_.size(); ++i) {
    const ResultQueue::Result* next = results_.next(i);
    if (next == nullptr || context_.link(class_, receivers_[i]).send_down.ready()) continue;
    if (full.empty()) epoch = next->epoch;
    add(full, receivers_[i]);
  }
  if (!full.empty()) {
    const KnownOperation& known = context_.operations[epoch % context_.operations.size()];
    const bool later = known.epoch != epoch;  // the table has gone on
    return fmt::format("operation {}{}: rank(s) {} stopped taking results", epoch,
                       later ? "" : ", " + describe(known.record), full);
  }
  return s.active ? fmt::format("operation {}, {}", s.epoch, describe(s.record)) : std::string();
}

}  // namespace nzcl::engine

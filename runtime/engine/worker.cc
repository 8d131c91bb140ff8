#include "runtime/engine/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/engine/aggregator.h"
#include "runtime/engine/payload.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Class;
using wire::Direction;
using wire::Header;
using wire::Immediate;

namespace {

/// Bytes of the tensor that a message's slices may take together: they are scanned before it can leave.
/// (Links of 1 Gb/s, d = 0.01, with 512 KiB, 1 and 2 MiB: 4 ranks 70, 78 and 76 % of the bound, 8 ranks 55,
/// 57, 61.)
constexpr std::uint64_t kCoveredBytes = 2 << 20;
/// What a slice keeps of the cache, beside its data: what it sends is read again, and a result of several
/// ranks' blocks is written.
constexpr std::uint64_t kReused = 8;

}  // namespace

Worker::Worker(LaneContext& context, Class size_class)
    : context_(context), class_(size_class), mirrored_(context.config.of(size_class).mirrored) {
  const auto& members = context.config.members;
  for (int i = 0; i < members.aggregators(); ++i) {
    // Every worker starts with another owner, so that not all send to the same one at once.
    const int aggregator = (members.self + i) % members.aggregators();
    const auto member = static_cast<std::uint16_t>(members.aggregator_member(aggregator));
    if (mirrored_ && i > 0) {
      mirrors_.push_back(member);
      continue;
    }
    Uplink& uplink = uplinks_.emplace_back();
    uplink.member = member;
    uplink.owner = static_cast<std::uint32_t>(aggregator * context.config.lanes + context.config.lane);
  }
}

void Worker::submit(Operation* operation) {
  for (Uplink& uplink : uplinks_) {
    const std::uint64_t slices = owned(operation->layout, uplink.owner);
    if (slices == 0) continue;
    uplink.pending[(uplink.first_pending + uplink.pending_count++) % kMaxOperations] = {operation, 0, slices};
    busy_slices_ += slices;
  }
}

/// Slices that this owner sums. A mirrored one is the only one of its tensor, and belongs to all owners on
/// the lane of the one that it was dealt to.
std::uint64_t Worker::owned(const SliceLayout& layout, std::uint32_t owner) const {
  if (!mirrored_) return layout.owned(owner);
  const auto lanes = static_cast<std::uint32_t>(context_.config.lanes);
  return layout.owner(0) % lanes == owner % lanes ? 1 : 0;
}

bool Worker::step() {
  bool any = false;
  for (Uplink& uplink : uplinks_) any |= pull(uplink);
  // One message per owner: they all get their share of the wire. No more, as it is posted only after this
  // step, and the scans on the way may take long.
  for (Uplink& uplink : uplinks_) any |= push(uplink);
  return any;
}

// --- Up

bool Worker::push(Uplink& uplink) { return start_slices(uplink) || send_data(uplink); }

/// The members that its contributions go to.
std::span<const std::uint16_t> Worker::targets(const Uplink& uplink) const {
  return mirrored_ ? std::span<const std::uint16_t>(mirrors_) : std::span(&uplink.member, 1);
}

bool Worker::may_compose(const Uplink& uplink) {
  const auto members = targets(uplink);
  // The last staging buffer is the aggregator's: results must never wait for contributions.
  return context_.pool(class_).available() > 1 && context_.outbox.room() >= members.size() &&
         std::all_of(members.begin(), members.end(),
                     [this](std::uint16_t member) { return context_.link(class_, member).send_up.ready(); });
}

/// There is a slice to start, and no more are under way than the window and the cache allow.
bool Worker::may_start(const Uplink& uplink) const {
  if (uplink.pending_count == 0 || uplink.started - uplink.sending > kBitmapsAhead) return false;
  const std::uint64_t incomplete = uplink.started - uplink.oldest;
  if (incomplete >= (mirrored_ ? kMirroredWindow : kWindow)) return false;
  const std::uint64_t ahead = context_.config.ahead_bytes;
  return ahead == 0 || incomplete < kLeastWindow || uplink.ahead < ahead / context_.config.owners();
}

std::uint64_t Worker::next_slice(const Uplink& uplink) const {
  const Pending& pending = uplink.pending[uplink.first_pending];
  return mirrored_ ? 0 : pending.operation->layout.owned_slice(uplink.owner, pending.next);
}

/// Starts the next slice, and as many behind it as the same message takes. Of the own owner's about as many.
bool Worker::start_slices(Uplink& uplink) {
  if (!may_start(uplink)) return false;
  Operation* op = uplink.pending[uplink.first_pending].operation;
  const std::uint64_t slice = next_slice(uplink);
  if (!op->ensure_scanned(slice)) return false;

  const bool local = uplink.member == context_.self();
  const bool turn = uplink.sending == uplink.started;
  if (!local || mirrored_) {
    const auto bits = op->input_bits(slice);
    const bool one_message = wire::kMaxOverhead + bits.size_bytes() + op->stream_bytes(slice, bits) <=
                             context_.config.of(class_).slot_bytes;
    if (!turn && one_message) return false;  // its bitmap travels with its data
    if (!may_compose(uplink)) return false;
    const std::uint64_t sequence = begin_slice(uplink);
    compose(uplink, sequence, true, turn);
    if (local) offer(uplink, sequence);
    return true;
  }
  std::uint64_t covered = 0, bytes = 0;
  do {
    const std::uint64_t sequence = begin_slice(uplink);
    covered += uplink.at(sequence).operation->layout.slice_bytes();
    bytes += uplink.at(sequence).stream_bytes;
    offer(uplink, sequence);
  } while (next_goes_along(uplink, covered, bytes));
  return true;
}

/// Whether the next slice is to go along with those just begun, which take `covered` bytes of the tensor and
/// have `bytes` to send. It is scanned then.
bool Worker::next_goes_along(const Uplink& uplink, std::uint64_t covered, std::uint64_t bytes) const {
  return class_ == Class::bulk && covered < kCoveredBytes && bytes < kWorthAMessage && may_start(uplink) &&
         uplink.pending[uplink.first_pending].operation->ensure_scanned(next_slice(uplink));
}

/// The next slice, which has been scanned, is under way from now on. Returns its sequence.
std::uint64_t Worker::begin_slice(Uplink& uplink) {
  Pending& pending = uplink.pending[uplink.first_pending];
  Operation* op = pending.operation;
  const std::uint64_t slice = next_slice(uplink);
  const auto bits = op->input_bits(slice);
  const std::uint64_t sequence = uplink.started++;
  Transfer& t = uplink.at(sequence);
  t = {};
  t.operation = op;
  t.slice = slice;
  t.active = true;
  t.stream_bytes = op->stream_bytes(slice, bits);
  t.weight = std::min(op->layout.slice_bytes(), kReused * t.stream_bytes);
  uplink.ahead += t.weight;
  t.up.block = next_set(bits, 0, op->layout.blocks_of(slice));
  if (op->input.by_ordinal) t.ordinal = op->first_ordinal(slice);
  if (++pending.next == pending.owned) {
    uplink.first_pending = (uplink.first_pending + 1) % kMaxOperations;
    --uplink.pending_count;
  }
  return sequence;
}

/// The own owner reads it where it lies.
void Worker::offer(Uplink& uplink, std::uint64_t sequence) {
  Transfer& t = uplink.at(sequence);
  Operation* const op = t.operation;
  const std::uint64_t slice = t.slice;
  t.sent_bytes = t.stream_bytes;
  skip_sent(uplink);
  local_->offer_local(sequence, op, slice);
}

bool Worker::send_data(Uplink& uplink) {
  if (uplink.sending == uplink.started || !may_compose(uplink)) return false;
  compose(uplink, uplink.sending, false, true);
  return true;
}

void Worker::skip_sent(Uplink& uplink) {
  while (uplink.sending < uplink.started &&
         uplink.at(uplink.sending).sent_bytes == uplink.at(uplink.sending).stream_bytes) {
    ++uplink.sending;
  }
}

void Worker::compose(Uplink& uplink, std::uint64_t sequence, bool with_bitmap, bool with_data) {
  StagingPool& pool = context_.pool(class_);
  const auto staging = pool.acquire();
  PayloadBuilder message(context_.config, class_, pool.buffer(staging), pool.region());
  std::byte* header = add_section(uplink, message, sequence, with_bitmap, with_data);
  skip_sent(uplink);
  std::uint64_t covered = uplink.at(sequence).operation->layout.slice_bytes();
  for (std::uint32_t sections = 1; sections < wire::kMaxSections; ++sections) {
    if (uplink.sending != uplink.started || !message.in_one_piece()) break;  // it is full, or gathered
    if (!next_goes_along(uplink, covered, message.staged()) || !next_fits(uplink, message)) break;
    wire::add_flag(header, wire::kMore);
    while (message.staged() % wire::kSectionAlignment != 0) *message.reserve(1) = std::byte{0};
    const std::uint64_t next = begin_slice(uplink);
    header = add_section(uplink, message, next, true, true);
    skip_sent(uplink);
    covered += uplink.at(next).operation->layout.slice_bytes();
  }
  LaneStatistics::add(context_.statistics.bytes_packed, message.packed());
  for (const std::uint16_t member : targets(uplink)) {
    pool.add_reference(staging);
    context_.push_message(class_, Direction::up, member, staging, message.segments());
  }
  pool.release(staging);
}

/// Whether the message takes the next slice, which has been scanned, with all its data.
bool Worker::next_fits(const Uplink& uplink, const PayloadBuilder& message) const {
  Operation* op = uplink.pending[uplink.first_pending].operation;
  const std::uint64_t slice = next_slice(uplink);
  const auto bits = op->input_bits(slice);
  return wire::aligned_section(message.staged()) + wire::kMaxOverhead + bits.size_bytes() +
             op->stream_bytes(slice, bits) <=
         context_.config.of(class_).slot_bytes;
}

/// A slice's bitmap, or as much of its data as the message takes, or both. Returns where the header lies.
std::byte* Worker::add_section(Uplink& uplink, PayloadBuilder& message, std::uint64_t sequence,
                               bool with_bitmap, bool with_data) {
  Transfer& t = uplink.at(sequence);
  Operation& op = *t.operation;
  const trace::Span span(trace::What::push, op.epoch, t.slice);
  const auto bits = op.input_bits(t.slice);
  const std::uint64_t blocks = op.layout.blocks_of(t.slice);
  const std::uint64_t begin = message.staged();

  Header header{.flags = 0,
                .credit = context_.link(class_, uplink.member).receive_down.take_credit(),
                .epoch = op.epoch,
                .slice = t.slice,
                .sequence = sequence,
                .stream_offset = t.sent_bytes};
  std::byte* header_at = message.reserve(sizeof(Header));
  std::uint64_t used = sizeof(Header);
  if (with_bitmap) {
    header.flags = wire::kHasBitmap;
    header.bitmap_bytes = static_cast<std::uint32_t>(bits.size_bytes());
    std::memcpy(message.reserve(sizeof(op.record)), &op.record, sizeof(op.record));
    if (!bits.empty()) std::memcpy(message.reserve(header.bitmap_bytes), bits.data(), bits.size_bytes());
    used += sizeof(op.record) + bits.size_bytes();
  }
  std::uint64_t room = with_data ? context_.config.of(class_).slot_bytes - begin - used : 0;
  std::uint64_t payload = 0;
  while (room > 0 && t.sent_bytes < t.stream_bytes) {
    const std::uint64_t end = op.input.by_ordinal ? t.up.block + 1 : next_clear(bits, t.up.block, blocks);
    const std::uint64_t run = op.layout.bytes_of_blocks(t.slice, t.up.block, end - t.up.block) - t.up.offset;
    const std::uint64_t n = std::min(run, room);
    const std::uint64_t next = next_set(bits, end, blocks);
    const auto begin_of = [&](std::uint64_t block, std::uint64_t ordinal) {
      return op.input.base + (op.input.by_ordinal ? op.input.place[ordinal] * op.input.stride
                                                  : op.layout.offset_of(t.slice, block));
    };
    if (next < blocks)
      prefetch_to_read(begin_of(next, t.ordinal + 1), op.layout.bytes_of_blocks(t.slice, next, 1));
    if (!message.add(begin_of(t.up.block, t.ordinal) + t.up.offset, n, op.input.region,
                     std::min(room, t.stream_bytes - t.sent_bytes)))
      break;
    room -= n, payload += n, t.sent_bytes += n;
    if (n == run) {
      t.up = {next, 0};
      ++t.ordinal;
    } else {
      t.up.advance(n, op.layout.block_bytes());
    }
  }
  header.payload_bytes = static_cast<std::uint32_t>(payload);
  std::memcpy(header_at, &header, sizeof header);

  op.bytes_sent.fetch_add(targets(uplink).size() * (used + payload), std::memory_order_relaxed);
  return header_at;
}

// --- Down

bool Worker::pull(Uplink& uplink) {
  if (uplink.member == context_.self()) return false;
  ReceiveChannel& channel = context_.link(class_, uplink.member).receive_down;
  bool any = false;
  while (!context_.failure) {
    if (uplink.held.data == nullptr) uplink.held = channel.pop(), uplink.held_at = 0;
    if (uplink.held.data == nullptr) break;
    Header header;
    const std::byte* section = uplink.held.data + uplink.held_at;
    const bool whole = uplink.held_at + sizeof header <= context_.config.of(class_).slot_bytes;
    if (whole) std::memcpy(&header, section, sizeof header);
    if (!whole || !valid(header, uplink.held_at)) {
      context_.fail(ErrorCode::transport,
                    fmt::format("{} sent a malformed result (sequence {})",
                                context_.config.members.name(uplink.member), header.sequence));
      break;
    }
    if (!consume(uplink, header, section + sizeof header)) break;
    any = true;
    if ((header.flags & wire::kMore) != 0) {
      uplink.held_at = wire::next_result(uplink.held_at, header);
      continue;
    }
    channel.release(uplink.held.slot);
    uplink.held = {};
  }
  context_.return_credit(class_, Direction::down, uplink.member);
  return any;
}

bool Worker::valid(const Header& h, std::uint64_t at) const {
  return h.magic == wire::kMagic && h.version == wire::kVersion &&
         at + sizeof h + h.bitmap_bytes + h.payload_bytes <= context_.config.of(class_).slot_bytes;
}

bool Worker::consume_local(const Header& header, const std::byte* body) {
  return consume(uplinks_.front(), header, body);  // uplinks start with the own aggregator
}

bool Worker::consume(Uplink& uplink, const Header& header, const std::byte* body) {
  Transfer& t = uplink.at(header.sequence);
  if (!t.active || header.sequence < uplink.oldest || header.sequence >= uplink.started ||
      t.operation->epoch != header.epoch || t.slice != header.slice) {
    context_.fail(ErrorCode::transport,
                  fmt::format("{} sent a result for operation {} slice {}, which is not running",
                              context_.config.members.name(uplink.member), header.epoch, header.slice));
    return true;
  }
  Operation& op = *t.operation;
  if ((header.flags & wire::kHasBitmap) != 0 && !t.have_union && !take_union(t, header, body)) return true;
  if (!t.have_union || header.stream_offset != t.received_bytes ||
      t.received_bytes + header.payload_bytes > t.union_bytes) {
    context_.fail(ErrorCode::transport,
                  fmt::format("{} sent a result out of order for operation {} slice {}",
                              context_.config.members.name(uplink.member), header.epoch, header.slice));
    return true;
  }
  std::uint64_t place = 0;
  if (op.output.packed) {
    const auto packed = op.packed_place(t.slice, context_.config.lane);
    if (!packed) return false;
    place = *packed;
  }
  const std::uint64_t received = sizeof header + header.bitmap_bytes + header.payload_bytes;
  if (uplink.member != context_.self()) {
    op.bytes_received.fetch_add(received, std::memory_order_relaxed);
    LaneStatistics::add(context_.statistics.bytes_received, received);
  }
  if (header.payload_bytes > 0) scatter(t, body + header.bitmap_bytes, header.payload_bytes, place);
  if ((header.flags & wire::kDirect) != 0) {
    t.direct = true;
    if (uplink.member != context_.self()) {  // the local aggregator has summed in place
      t.direct_expected = header.direct_writes;
      op.bytes_received.fetch_add(t.union_bytes, std::memory_order_relaxed);
    }
  }
  complete_if_done(uplink, t);
  return true;
}

bool Worker::take_union(Transfer& t, const Header& header, const std::byte* bitmap) {
  Operation& op = *t.operation;
  const auto bits = op.union_bits(t.slice);
  if (header.bitmap_bytes != bits.size_bytes()) {
    context_.fail(ErrorCode::transport,
                  fmt::format("a result for operation {} slice {} has a bitmap of {} bytes, not {}",
                              header.epoch, header.slice, header.bitmap_bytes, bits.size_bytes()));
    return false;
  }
  if (!bits.empty()) std::memcpy(bits.data(), bitmap, bits.size_bytes());
  t.have_union = true;
  t.union_bytes = op.stream_bytes(t.slice, bits);
  const std::uint64_t blocks = op.layout.blocks_of(t.slice);
  t.down.block = next_set(bits, 0, blocks);
  op.union_known(t.slice, count_bits(bits));
  // Dense result, out of place: what is in no rank's bitmap is zero.
  if (!op.output.packed && !op.in_place()) {
    const trace::Span span(trace::What::zero, op.epoch, t.slice);
    for (std::uint64_t b = next_clear(bits, 0, blocks), next = b; b < blocks; b = next) {
      const std::uint64_t end = next_set(bits, b, blocks);
      next = next_clear(bits, end, blocks);
      if (next < blocks) {
        prefetch_to_write(op.output.base + op.layout.offset_of(t.slice, next),
                          op.layout.bytes_of_blocks(t.slice, next, 1));
      }
      zero_cold(op.output.base + op.layout.offset_of(t.slice, b),
                op.layout.bytes_of_blocks(t.slice, b, end - b));
    }
  }
  return true;
}

void Worker::scatter(Transfer& t, const std::byte* payload, std::uint64_t bytes, std::uint64_t place) {
  Operation& op = *t.operation;
  const trace::Span span(trace::What::result, op.epoch, t.slice);
  const auto bits = op.union_bits(t.slice);
  const std::uint64_t blocks = op.layout.blocks_of(t.slice);
  t.received_bytes += bytes;
  while (bytes > 0) {
    const std::uint64_t end = op.output.packed ? t.down.block + 1 : next_clear(bits, t.down.block, blocks);
    const std::uint64_t run =
        op.layout.bytes_of_blocks(t.slice, t.down.block, end - t.down.block) - t.down.offset;
    const std::uint64_t n = std::min(run, bytes);
    const std::uint64_t next = next_set(bits, end, blocks);
    if (!op.output.packed && next < blocks) {
      prefetch_to_write(op.output.base + op.layout.offset_of(t.slice, next),
                        op.layout.bytes_of_blocks(t.slice, next, 1));
    }
    if (!op.output.packed) {
      copy_cold(op.output.base + op.layout.offset_of(t.slice, t.down.block) + t.down.offset, payload, n);
    } else if (place + t.packed_block < op.output.capacity) {
      copy_cold(op.output.base + (place + t.packed_block) * op.output.stride + t.down.offset, payload, n);
    }
    payload += n, bytes -= n;
    if (n == run) {
      t.down = {next, 0};
      ++t.packed_block;
    } else {
      t.down.advance(n, op.layout.block_bytes());
    }
  }
}

void Worker::on_direct(std::uint16_t member, std::uint16_t sequence) {
  for (Uplink& uplink : uplinks_) {
    if (uplink.member != member) continue;
    Transfer& t = uplink.at(sequence);
    if (!t.active) {
      context_.fail(ErrorCode::transport,
                    fmt::format("{} announced a direct write for a slice that is not running",
                                context_.config.members.name(member)));
      return;
    }
    ++t.direct_seen;
    complete_if_done(uplink, t);
    return;
  }
  context_.fail(ErrorCode::transport,
                fmt::format("{} announced a direct write, but sums nothing for this rank",
                            context_.config.members.name(member)));
}

void Worker::complete_if_done(Uplink& uplink, Transfer& t) {
  const bool done =
      t.have_union && (t.direct ? t.direct_seen == t.direct_expected : t.received_bytes == t.union_bytes);
  if (!done) return;
  t.active = false;
  uplink.ahead -= t.weight;
  --busy_slices_;
  while (uplink.oldest < uplink.started && !uplink.at(uplink.oldest).active) ++uplink.oldest;
  t.operation->slice_done();  // last: the operation may be gone afterwards
}

std::string Worker::waiting_for() const {
  std::string text;
  const auto add = [&](std::uint16_t member, std::uint64_t epoch, std::uint64_t slice) {
    text += fmt::format("{}{} (operation {}, slice {})", text.empty() ? "" : ", ",
                        context_.config.members.name(member), epoch, slice);
  };
  for (const Uplink& uplink : uplinks_) {
    if (uplink.started > uplink.oldest) {
      const Transfer& t = uplink.transfers[uplink.oldest % kWindow];
      add(uplink.member, t.operation->epoch, t.slice);
    } else if (uplink.pending_count > 0) {  // it gives no slots back
      const Pending& pending = uplink.pending[uplink.first_pending];
      for (const std::uint16_t member : targets(uplink)) {
        if (!context_.link(class_, member).send_up.ready())
          add(member, pending.operation->epoch, pending.next);
      }
    }
  }
  return text;
}

}  // namespace nzcl::engine

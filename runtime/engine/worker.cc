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
    uplink.pending[(uplink.first_pending + uplink.pending_count++) % kMaxOperations] = {
        operation, 0, slices, window(operation->layout)};
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

std::uint64_t Worker::window(const SliceLayout& layout) const {
  if (mirrored_) return kMirroredWindow;
  const std::uint64_t ahead = context_.config.ahead_bytes;
  if (ahead == 0) return kWindow;
  return std::clamp(ahead / (layout.owners() * std::max<std::uint64_t>(1, layout.slice_bytes())),
                    kLeastWindow, kWindow);
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

bool Worker::push(Uplink& uplink) { return start_slice(uplink) || send_data(uplink); }

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

bool Worker::start_slice(Uplink& uplink) {
  if (uplink.pending_count == 0) return false;
  if (uplink.started - uplink.sending > kBitmapsAhead) return false;
  Pending& pending = uplink.pending[uplink.first_pending];
  if (uplink.started - uplink.oldest >= pending.window) return false;
  Operation* op = pending.operation;
  const std::uint64_t slice = mirrored_ ? 0 : op->layout.owned_slice(uplink.owner, pending.next);
  if (!op->ensure_scanned(slice)) return false;

  const auto bits = op->input_bits(slice);
  const std::uint64_t stream = op->stream_bytes(slice, bits);
  const bool local = uplink.member == context_.self();
  const bool turn = uplink.sending == uplink.started;
  const bool one_message =
      wire::kMaxOverhead + bits.size_bytes() + stream <= context_.config.of(class_).slot_bytes;
  if (!local || mirrored_) {
    if (!turn && one_message) return false;  // its bitmap travels with its data
    if (!may_compose(uplink)) return false;
  }

  const std::uint64_t sequence = uplink.started++;
  Transfer& t = uplink.at(sequence);
  t = {};
  t.operation = op;
  t.slice = slice;
  t.active = true;
  t.stream_bytes = stream;
  t.up.block = next_set(bits, 0, op->layout.blocks_of(slice));
  if (op->input.by_ordinal) t.ordinal = op->first_ordinal(slice);
  if (++pending.next == pending.owned) {
    uplink.first_pending = (uplink.first_pending + 1) % kMaxOperations;
    --uplink.pending_count;
  }
  if (!local || mirrored_) compose(uplink, sequence, true, turn);
  if (local) {
    t.sent_bytes = stream;
    skip_sent(uplink);
    local_->offer_local(sequence, op, slice);
  }
  return true;
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
  Transfer& t = uplink.at(sequence);
  Operation& op = *t.operation;
  const trace::Span span(trace::What::push, op.epoch, t.slice);
  const auto bits = op.input_bits(t.slice);
  const std::uint64_t blocks = op.layout.blocks_of(t.slice);
  Link& link = context_.link(class_, uplink.member);
  StagingPool& pool = context_.pool(class_);
  const auto staging = pool.acquire();
  PayloadBuilder message(context_.config, class_, pool.buffer(staging), pool.region());

  Header header{.flags = 0,
                .credit = link.receive_down.take_credit(),
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
  std::uint64_t room = with_data ? context_.config.of(class_).slot_bytes - used : 0;
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

  LaneStatistics::add(context_.statistics.bytes_packed, message.packed());
  const auto members = targets(uplink);
  op.bytes_sent.fetch_add(members.size() * (used + payload), std::memory_order_relaxed);
  for (const std::uint16_t member : members) {
    pool.add_reference(staging);
    context_.push_message(class_, Direction::up, member, staging, message.segments());
  }
  pool.release(staging);
  skip_sent(uplink);
}

// --- Down

bool Worker::pull(Uplink& uplink) {
  if (uplink.member == context_.self()) return false;
  ReceiveChannel& channel = context_.link(class_, uplink.member).receive_down;
  bool any = false;
  while (!context_.failure) {
    if (uplink.held.data == nullptr) uplink.held = channel.pop();
    if (uplink.held.data == nullptr) break;
    Header header;
    std::memcpy(&header, uplink.held.data, sizeof header);
    if (!valid(header)) {
      context_.fail(ErrorCode::transport,
                    fmt::format("{} sent a malformed result (sequence {})",
                                context_.config.members.name(uplink.member), header.sequence));
      break;
    }
    if (!consume(uplink, header, uplink.held.data + sizeof header)) break;
    channel.release(uplink.held.slot);
    uplink.held = {};
    any = true;
  }
  context_.return_credit(class_, Direction::down, uplink.member);
  return any;
}

bool Worker::valid(const Header& h) const {
  return h.magic == wire::kMagic && h.version == wire::kVersion &&
         sizeof h + std::uint64_t{h.bitmap_bytes} + h.payload_bytes <= context_.config.of(class_).slot_bytes;
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

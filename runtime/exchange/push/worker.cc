#include "runtime/exchange/push/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/base/list_text.h"
#include "runtime/exchange/contributions/early_result.h"
#include "runtime/exchange/push/aggregator.h"
#include "runtime/kernels/stream_copy.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Header;
using wire::Priority;

namespace {

/// How many bytes of the tensor had to be scanned for a slice. A message whose slices cover many of them is
/// sent although it is small, because the scans take time.
std::uint64_t covered_bytes(const Transfer& t) {
  const Operation& op = *t.up.operation;
  const bool scanned = !op.layout.tiled() || !op.tile_input().needs_no_scan();
  return scanned ? op.layout.slice_bytes() : 0;
}

/// Returns how many bytes of the cache the slices under way with one owner may take; 0 means any number.
std::uint64_t share_of_cache(const EngineConfig& config) {
  return config.ahead_bytes == 0 ? 0 : std::max<std::uint64_t>(1, config.ahead_bytes / config.owners());
}

}  // namespace

Worker::Worker(LaneContext& context, Priority priority)
    : context_(context),
      priority_(priority),
      ahead_bytes_(share_of_cache(context.config)),
      tile_writer_(context, priority),
      tile_placer_(context, priority) {
  const Members& members = context.config.members;
  for (int i = 0; i < members.aggregators(); ++i) {
    // Every worker begins with another aggregator, so that not all of them send to the same one at once.
    const int aggregator = (members.self + i) % members.aggregators();
    uplinks_.emplace_back(
        static_cast<std::uint16_t>(members.aggregator_member(aggregator)),
        static_cast<std::uint32_t>(aggregator * context.config.lanes + context.config.lane));
  }
}

void Worker::submit(Operation* operation) {
  const SliceLayout& layout = operation->layout;
  if (layout.slices() > 1) {
    for (Uplink& uplink : uplinks_) busy_slices_ += uplink.submit(*operation, layout.owned(uplink.owner()));
    return;
  }
  // A small operation has one slice, whose owner is found once instead of asking for every owner.
  const std::uint32_t owner = layout.owner(0);
  for (Uplink& uplink : uplinks_) {
    if (uplink.owner() == owner) busy_slices_ += uplink.submit(*operation, 1);
  }
}

bool Worker::step() {
  bool any = false;
  for (Uplink& uplink : uplinks_) any |= pull(uplink);
  // At most one message for each owner, so that all owners get their share of the wire. Composing more would
  // delay them, because the lane posts messages only after this step, and scans on the way may take long.
  for (Uplink& uplink : uplinks_) any |= context_.is_self(uplink.member()) ? offer(uplink) : push(uplink);
  return any;
}

bool Worker::refuse(const Uplink& uplink, const std::string& what) {
  context_.fail(ErrorCode::transport, fmt::format("{} {}", context_.name(uplink.member()), what));
  return false;
}

// --- Up

bool Worker::push(Uplink& uplink) {
  if (start_slices(uplink)) return true;
  if (uplink.all_sent() || !may_compose(uplink)) return false;
  compose(uplink, uplink.sending(), {.data = true});
  return true;
}

bool Worker::may_compose(const Uplink& uplink) {
  // The last staging buffer is reserved for the aggregator, because results must never wait for
  // contributions.
  const StagingPool::Bank bank = context_.bank_up(priority_, uplink.member());
  return context_.pool(priority_).available(bank) > 1 && context_.outbox.room() > 0 &&
         context_.channels(priority_, uplink.member()).send_up.ready();
}

/// Returns true if the next slice may be started, and has been scanned.
bool Worker::next_is_ready(const Uplink& uplink) const {
  return uplink.may_start(ahead_bytes_) && uplink.next_operation().ensure_scanned(uplink.next_slice());
}

/// Starts the next slice, and those behind it that fit the same message. Returns true if anything was
/// started.
bool Worker::start_slices(Uplink& uplink) {
  if (!next_is_ready(uplink)) return false;
  // In its turn, the slice is sent with bitmap and data in one message. While earlier slices are still being
  // sent, its bitmap may go ahead.
  const bool its_turn = uplink.all_sent();
  if (!its_turn && !bitmap_goes_ahead(uplink)) return false;
  if (!may_compose(uplink)) return false;
  compose(uplink, uplink.start(), {.bitmap = true, .data = its_turn});
  return true;
}

/// Returns true if the next slice's bitmap may be sent before its data. That costs a message more if the
/// whole slice would fit into one. Tiles are coded with their index sets, so they have no bitmap to send.
bool Worker::bitmap_goes_ahead(const Uplink& uplink) const {
  Operation& next = uplink.next_operation();
  return !next.layout.tiled() &&
         whole_section_bytes(next, uplink.next_slice()) > context_.slot_bytes(priority_);
}

/// Gives slices to the local owner, which reads them where they lie. They come in batches that are about as
/// large as a message, because the owner sums local and remote contributions together. Returns true if there
/// were any.
bool Worker::offer(Uplink& uplink) {
  if (!next_is_ready(uplink)) return false;
  std::uint64_t covered = 0, bytes = 0;
  do {
    Transfer& t = uplink.start();
    covered += covered_bytes(t);
    bytes += t.up.stream_bytes;
    t.up.set_sent();
    uplink.skip_sent();
    local_->offer_local(t.up.sequence, t.up.operation, t.up.slice);
  } while (takes_next_along(uplink, covered, bytes));
  return true;
}

/// Returns true if the next slice goes along with those just started, which cover `covered` bytes of the
/// tensor and have `bytes` to send. In that case it has also been scanned.
bool Worker::takes_next_along(const Uplink& uplink, std::uint64_t covered, std::uint64_t bytes) const {
  return priority_ == Priority::bulk && covered < kMessageCoversBytes && bytes < kFullMessageBytes &&
         next_is_ready(uplink);
}

/// Returns true if the next message to this owner, with blocks of the transfer's size, should be stored past
/// the caches.
bool Worker::streams(const Uplink& uplink, const Transfer& t) {
  const SliceLayout& layout = t.up.operation->layout;
  return context_.lends(priority_, uplink.member()) && priority_ == Priority::bulk && !layout.tiled() &&
         layout.block_bytes() >= kLeastStreamedRun &&
         context_.staging_way(uplink.member()).next_is_streamed();
}

StagingPool::Index Worker::acquire_staging(const Uplink& uplink) {
  return context_.pool(priority_).acquire(context_.bank_up(priority_, uplink.member()));
}

MessageBuilder Worker::begin_message(const Uplink& uplink, StagingPool::Index staging, bool streamed) {
  StagingPool& pool = context_.pool(priority_);
  // The receiver of a lent message reads it in the staging buffer, so all of it has to lie there.
  const bool lent = context_.channels(priority_, uplink.member()).send_up.lends();
  return {{.segments = lent ? 1 : context_.config.message_segments(),
           .gather_bytes = context_.config.link(uplink.member()).gather_bytes,
           .bytes = context_.slot_bytes(priority_),
           .streamed = streamed,
           .level = context_.config.link(uplink.member()).level},
          pool.buffer(staging),
          pool.region()};
}

/// Puts a message into the outbox, whose last section is that of `last`.
void Worker::push_message(const Uplink& uplink, const MessageBuilder& message, StagingPool::Index staging,
                          const Transfer& last) {
  LaneStatistics::add(context_.statistics.bytes_copied, message.copied());
  // Only the last section can have gather entries. The transport reads its operation's input until the write
  // is over, which may be after the result has arrived, so the operation has to wait for the write too.
  std::optional<std::uint32_t> gathers_from;
  if (!message.in_one_piece()) {
    last.up.operation->local_write_started();
    gathers_from = last.up.operation->table_index;
  }
  context_.push_message(priority_, Direction::up, uplink.member(), staging, message.segments(), gathers_from);
}

/// Sends a message that begins with a section of `first`, which has the `parts`. Whole slices that come next
/// go along in sections of their own, as long as the message is too small to be worth its cost.
void Worker::compose(Uplink& uplink, Transfer& first, SectionParts parts) {
  const auto staging = acquire_staging(uplink);
  MessageBuilder message = begin_message(uplink, staging, parts.data && streams(uplink, first));
  const Transfer* last = &first;
  std::byte* header = nullptr;
  std::uint64_t covered = 0;
  std::uint32_t sections = 0;
  for (Transfer* t = &first; t != nullptr; t = start_along(uplink, message, *last, covered)) {
    const std::uint64_t staged = message.staged();
    if (!message.align(wire::kSectionAlignment)) break;
    const auto section = add_section(uplink, message, *t, parts);
    if (!section) {
      message.take_back_to(staged);  // what filled up to where it would begin
      break;
    }
    if (header != nullptr) wire::add_flag(header, wire::kMore);
    header = section->header;
    last = t;
    if (++sections == wire::kMaxSections) break;
    covered += covered_bytes(*t);
    parts = {.bitmap = true, .data = true};
  }
  if (header == nullptr) return fail_without_room(first, staging);
  push_message(uplink, message, staging, *last);
}

/// Slices are cut so that an empty message has room for a section of each, so this is a fault of nzcl's own.
void Worker::fail_without_room(const Transfer& t, StagingPool::Index staging) {
  context_.pool(priority_).release(staging);
  context_.fail(ErrorCode::internal,
                fmt::format("operation {} slice {} does not fit a slot of {} bytes", t.up.operation->epoch,
                            t.up.slice, context_.slot_bytes(priority_)));
}

/// Starts the next slice if it goes along in a message that is composed now. Returns nullptr if it does not.
/// `last` is the transfer of the message's last section, and the sections cover `covered` bytes of the
/// tensor.
Transfer* Worker::start_along(Uplink& uplink, const MessageBuilder& message, const Transfer& last,
                              std::uint64_t covered) {
  if (!uplink.all_sent() || !message.in_one_piece()) return nullptr;
  if (!takes_next_along(uplink, covered, message.bytes())) return nullptr;
  Operation& next = uplink.next_operation();
  if (next.layout.tiled() != last.up.operation->layout.tiled()) return nullptr;
  if (!next.layout.tiled()) {
    const std::uint64_t whole = whole_section_bytes(next, uplink.next_slice());
    if (wire::aligned_section(message.bytes()) + whole > context_.slot_bytes(priority_)) return nullptr;
  }
  return &uplink.start();
}

/// Appends a section of the transfer: its blocks as `parts` says, or its next tiles. Returns nothing if not
/// even one tile fits behind what the message has already.
std::optional<WrittenSection> Worker::add_section(Uplink& uplink, MessageBuilder& message, Transfer& t,
                                                  SectionParts parts) {
  Operation& op = t.operation();
  parts.credit =
      static_cast<std::uint16_t>(context_.channels(priority_, uplink.member()).receive_down.take_credit());
  std::optional<WrittenSection> section;
  if (op.layout.tiled()) {
    section = tile_writer_.write(message, t.up, parts.credit);
  } else {
    section = write_section(message, t.up, parts);
  }
  if (!section) return std::nullopt;
  uplink.skip_sent();
  op.add(op.bytes_sent, section->bytes);
  return section;
}

// --- Down

bool Worker::pull(Uplink& uplink) {
  if (context_.is_self(uplink.member())) return false;
  ReceiveChannel& channel = context_.channels(priority_, uplink.member()).receive_down;
  bool any = false;
  while (!context_.failure) {
    if (uplink.held.data == nullptr) {
      uplink.held = channel.pop(), uplink.held_at = 0;
      if (uplink.held.data == nullptr) break;
      tile_placer_.note(uplink);
    }
    const std::uint64_t before = uplink.held_at;
    const bool consumed = consume_held(uplink);
    any |= consumed || uplink.held_at != before;
    if (!consumed) break;
    channel.release(uplink.held.slot);
    uplink.held = {};
  }
  context_.return_credit(priority_, Direction::down, uplink.member());
  return any;
}

/// Takes all sections of the held message. Returns false if one of them cannot be placed yet or was refused;
/// the message is kept then.
bool Worker::consume_held(Uplink& uplink) {
  wire::SectionReader sections(uplink.held.data, context_.slot_bytes(priority_), Direction::down,
                               uplink.held_at);
  while (const auto section = sections.next()) {
    if (!consume(uplink, *section, false)) return false;
    uplink.held_at = sections.at();
  }
  return sections.wrong() == nullptr ||
         refuse(uplink, fmt::format("sent a malformed result (sequence {}): {}", sections.sequence(),
                                    sections.wrong()));
}

bool Worker::consume_local(const wire::Section& section, bool placed) {
  return consume(uplinks_.front(), section, placed);  // the local aggregator's uplink comes first
}

/// Takes one section of a result. Returns false if it cannot be placed yet, or was refused. If it is
/// `placed`, its payload is in the output already.
bool Worker::consume(Uplink& uplink, const wire::Section& section, bool placed) {
  const Header& header = section.header;
  Transfer* t = uplink.find(header.sequence);
  if (t == nullptr || t->operation().epoch != header.epoch || t->up.slice != header.slice) {
    return refuse(uplink, fmt::format("sent a result for operation {} slice {}, which is not running",
                                      header.epoch, header.slice));
  }
  if ((header.flags & wire::kRefused) != 0) return take_refusal(uplink, *t, section);
  if (t->operation().layout.tiled()) return take_tiles(uplink, *t, section);
  Operation& op = t->operation();
  const bool over = (header.flags & wire::kOver) != 0;
  if (over == op.receives(t->up.slice)) {
    return refuse(uplink, fmt::format("sent {} of operation {} slice {}",
                                      over ? "no result" : "this rank a result", header.epoch, header.slice));
  }
  if (over) return take_end(uplink, *t, section);
  if ((header.flags & wire::kHasBitmap) != 0 && !t->have_union && !take_union(uplink, *t, section))
    return false;
  if (const char* wrong = wrong_with_result(uplink, *t, header)) {
    return refuse(uplink, fmt::format("sent a result out of order for operation {} slice {}: {}",
                                      header.epoch, header.slice, wrong));
  }
  if (!t->down) t->down = op.output_walk(t->up.slice, context_.config.lane);
  if (!t->down) return false;
  count_received(uplink, *t, section);
  if (header.payload_bytes > 0) scatter(uplink, *t, section, placed);
  if ((header.flags & wire::kDirect) != 0) take_notice(uplink, *t, header);
  finish_if_complete(uplink, *t);
  return true;
}

/// Takes one section of a result that consists of tiles. Returns false if one of them cannot be placed yet,
/// or was refused; those before it are in place then.
bool Worker::take_tiles(Uplink& uplink, Transfer& t, const wire::Section& section) {
  if (!tile_placer_.place(uplink, t, section)) return false;
  count_received(uplink, t, section);
  finish_if_complete(uplink, t);
  return true;
}

/// Takes the owner's word that a slice is over whose result is for other ranks.
bool Worker::take_end(Uplink& uplink, Transfer& t, const wire::Section& section) {
  count_received(uplink, t, section);
  t.have_union = true;
  finish_if_complete(uplink, t);
  return true;
}

/// Takes the owner's answer that a rank has refused the operation, so that the slice has no result.
bool Worker::take_refusal(Uplink& uplink, Transfer& t, const wire::Section& section) {
  const Header& header = section.header;
  if (t.have_union || t.direct_seen > 0 || t.placed_tiles > 0 || t.section_at > 0 ||
      header.refused_by >= context_.config.members.workers) {
    return refuse(uplink, fmt::format("sent a refusal that can't be for operation {} slice {}", header.epoch,
                                      header.slice));
  }
  count_received(uplink, t, section);
  t.have_union = true;
  t.placed_tiles = t.up.tiles;
  t.operation().slice_refused(t.up.slice,
                              {header.refused_by,
                               header.refusal_code,
                               {reinterpret_cast<const char*>(section.payload), header.payload_bytes}});
  finish_if_complete(uplink, t);
  return true;
}

/// Returns what is wrong with a section of a slice that is under way, or nullptr. If the section has the
/// union, that has been taken already.
const char* Worker::wrong_with_result(const Uplink& uplink, const Transfer& t, const Header& header) const {
  if (!t.have_union) return "its union has not come";
  if (t.direct) return "all of it was there already";
  if (header.stream_offset != t.received_bytes) return "it is not what follows";
  if (header.payload_bytes > t.union_bytes - t.received_bytes) return "it is more than its union says";
  if ((header.flags & wire::kDirect) == 0) return nullptr;
  if (t.up.operation->output.packed) return "it was written in place, and this rank wants it packed";
  if (t.received_bytes > 0) return "it was written in place, and a part of it came in messages";
  if (announced(uplink) && header.direct_writes > context_.config.announced_writes(priority_))
    return "it counts more direct writes than there may be";
  return nullptr;
}

/// Takes the notice that the result has been written in place. Where writes are announced, some of them may
/// still be on their way.
void Worker::take_notice(Uplink& uplink, Transfer& t, const Header& header) {
  t.direct = true;
  t.direct_expected = announced(uplink) ? header.direct_writes : 0;
}

/// Returns true if direct writes of this owner carry immediates. The local owner sums in place, so it writes
/// nothing. Where writes become visible in order, the notice behind them is enough.
bool Worker::announced(const Uplink& uplink) const {
  return !context_.is_self(uplink.member()) && !context_.config.link(uplink.member()).ordered;
}

bool Worker::take_union(Uplink& uplink, Transfer& t, const wire::Section& section) {
  Operation& op = t.operation();
  const auto bits = op.union_bits(t.up.slice);
  const std::uint32_t bytes = section.header.bitmap_bytes;
  if (bytes != bits.size_bytes()) {
    return refuse(uplink,
                  fmt::format("sent a result for operation {} slice {} with a bitmap of {} bytes, not {}",
                              op.epoch, t.up.slice, bytes, bits.size_bytes()));
  }
  if (!bits.empty()) std::memcpy(bits.data(), section.bitmap, bits.size_bytes());
  const SliceView result = op.union_slice(t.up.slice);
  if (!result.well_formed()) {
    return refuse(uplink, fmt::format("sent a union with bits behind the last block of operation {} slice {}",
                                      op.epoch, t.up.slice));
  }
  t.have_union = true;
  t.union_bytes = result.stream_bytes();
  op.union_known(t.up.slice);
  op.zero_absent(t.up.slice);
  return true;
}

void Worker::count_received(Uplink& uplink, Transfer& t, const wire::Section& section) {
  if (context_.is_self(uplink.member())) return;
  const bool direct = (section.header.flags & wire::kDirect) != 0;
  t.operation().bytes_received.fetch_add(section.bytes + (direct ? t.union_bytes : 0),
                                         std::memory_order_relaxed);
  LaneStatistics::add(context_.statistics.bytes_received, section.bytes);
}

void Worker::scatter(const Uplink& uplink, Transfer& t, const wire::Section& section, bool placed) {
  Operation& op = *t.up.operation;
  const trace::Span span(trace::What::result, op.epoch, t.up.slice);
  context_.time_lent(priority_, uplink.member(), section.header, section.payload);
  RunWalk& down = *t.down;
  const std::byte* payload = section.payload;
  std::uint64_t bytes = section.header.payload_bytes;
  t.received_bytes += bytes;
  const bool cold = op.output_is_cold(t.up.slice);
  while (bytes > 0) {
    const std::uint64_t n = std::min(down.run_bytes(), bytes);
    if (!placed) place_run(op, down, {payload, n}, cold);
    down.advance(n);
    payload += n, bytes -= n;
  }
}

/// Copies a run of blocks to its position in the output, which may be cold (Operation::output_is_cold()).
void Worker::place_run(Operation& op, const RunWalk& down, std::span<const std::byte> run, bool cold) {
  if (cold && run.size() >= kLeastStreamedPlace) {
    copy_past_caches(op.output.base + down.offset(), run.data(), run.size());
    return;
  }
  if (const auto ahead = down.ahead()) prefetch_to_write(op.output.base + ahead->offset, ahead->bytes);
  const std::uint64_t fit = op.writable(down.offset(), run.size());
  copy_cold(op.output.base + down.offset(), run.data(), fit);
  if (fit < run.size()) op.keep_overflow(down.offset() + fit, run.subspan(fit));
}

void Worker::on_direct(std::uint16_t member, std::uint16_t sequence) {
  const auto uplink = std::find_if(uplinks_.begin(), uplinks_.end(),
                                   [member](const Uplink& u) { return u.member() == member; });
  const std::uint64_t most =
      uplink != uplinks_.end() && announced(*uplink) ? context_.config.announced_writes(priority_) : 0;
  const char* wrong = nullptr;
  Transfer* t = nullptr;
  if (uplink == uplinks_.end() || context_.is_self(member)) {
    wrong = ", but sums nothing for this rank";
  } else if (t = uplink->find_short(sequence); t == nullptr) {
    wrong = " for a slice that is not running";
  } else if (!t->operation().receives(t->up.slice)) {
    wrong = " of a result that is not for this rank";
  } else if (t->direct_seen == (t->direct ? t->direct_expected : most)) {
    wrong = " too many";
  }
  if (wrong != nullptr) {
    context_.fail(ErrorCode::transport,
                  fmt::format("{} announced a direct write{}", context_.name(member), wrong));
    return;
  }
  ++t->direct_seen;
  finish_if_complete(*uplink, *t);
}

const char* Worker::wrong_with_end(const Transfer& t) const {
  if (t.direct && t.direct_seen > t.direct_expected) return "more direct writes came than it counts";
  if (!t.complete()) return nullptr;
  if (!t.direct && t.direct_seen > 0) return "direct writes were announced, and it came in messages";
  return wrong_with_early_result(t.up.sent());
}

void Worker::finish_if_complete(Uplink& uplink, Transfer& t) {
  Operation& op = t.operation();
  if (const char* wrong = wrong_with_end(t)) {
    refuse(uplink, fmt::format("sent a result that can't be for operation {} slice {}: {}", op.epoch,
                               t.up.slice, wrong));
    return;
  }
  if (!t.complete()) return;
  uplink.finish(t);
  --busy_slices_;
  op.slice_done();  // last, because the operation may be deleted from here on
}

std::string Worker::waiting_for() const {
  std::string text;
  const auto add = [&](std::uint16_t member, std::uint64_t epoch, std::uint64_t slice) {
    append_item(text, fmt::format("{} (operation {}, slice {})", context_.name(member), epoch, slice));
  };
  for (const Uplink& uplink : uplinks_) {
    if (uplink.any_started()) {
      add(uplink.member(), uplink.oldest().up.operation->epoch, uplink.oldest().up.slice);
    } else if (uplink.has_next() && !context_.channels(priority_, uplink.member()).send_up.ready()) {
      // This aggregator returns no credits.
      add(uplink.member(), uplink.next_operation().epoch, uplink.next_slice());
    }
  }
  return text;
}

}  // namespace nzcl::engine

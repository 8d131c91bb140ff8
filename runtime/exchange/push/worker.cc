#include "runtime/exchange/push/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/base/list_text.h"
#include "runtime/exchange/push/aggregator.h"

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
      busy_(static_cast<std::size_t>(context.config.members.aggregators())),
      tile_writer_(context, priority),
      taker_(context, priority) {
  const Members& members = context.config.members;
  uplinks_.reserve(static_cast<std::size_t>(members.aggregators()));
  for (int i = 0; i < members.aggregators(); ++i) {
    // Every worker begins with another aggregator, so that not all of them send to the same one at once.
    const int aggregator = (members.self + i) % members.aggregators();
    uplinks_.emplace_back(static_cast<std::uint16_t>(members.aggregator_member(aggregator)),
                          static_cast<std::uint32_t>(aggregator * context.config.lanes + context.config.lane),
                          context.config.worker_window);
  }
}

/// Returns the place of an aggregator's uplink.
std::size_t Worker::uplink_to(int aggregator) const {
  const int aggregators = context_.config.members.aggregators();
  return static_cast<std::size_t>((aggregator + aggregators - context_.config.members.self % aggregators) %
                                  aggregators);
}

void Worker::add(std::size_t uplink, Operation& operation, std::uint64_t owned) {
  if (owned == 0) return;
  submitted_slices_ += uplinks_[uplink].submit(operation, owned);
  busy_.insert(uplink);
}

void Worker::submit(Operation* operation) {
  const SliceLayout& layout = operation->layout;
  if (layout.slices() > 1) {
    for (std::size_t i = 0; i < uplinks_.size(); ++i) add(i, *operation, layout.owned(uplinks_[i].owner()));
    return;
  }
  // A small operation has one slice, whose owner is found once instead of asking for every owner.
  const std::size_t uplink = uplink_to(static_cast<int>(layout.owner(0)) / context_.config.lanes);
  if (uplinks_[uplink].owner() == layout.owner(0)) add(uplink, *operation, 1);
}

bool Worker::step() {
  bool any = pull_arrived();
  // At most one message for each owner, so that all owners get their share of the wire. Composing more would
  // delay them, because the lane posts messages only after this step, and scans on the way may take long.
  busy_.for_each([&](std::size_t i) {
    Uplink& uplink = uplinks_[i];
    any |= context_.is_self(uplink.member()) ? offer(uplink) : push(uplink);
    if (uplink.idle()) busy_.erase(i);
  });
  return any;
}

/// Takes what has arrived, in the order of the uplinks.
bool Worker::pull_arrived() {
  bool any = false;
  ReadySet& arrived = context_.arrived_from(priority_, Direction::down);
  arrived.for_each_from(uplinks_.front().member(), [&](std::size_t member) {
    Uplink& uplink = uplinks_[uplink_to(context_.config.members.aggregator_of(static_cast<int>(member)))];
    any |= taker_.pull(uplink);
    if (!taker_.has_more(uplink)) arrived.erase(member);
  });
  return any;
}

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
  const auto staging = context_.pool(priority_).acquire(context_.bank_up(priority_, uplink.member()));
  MessageBuilder message = begin_message(uplink, staging, parts.data && streams(uplink, first));
  const Transfer* last = nullptr;
  std::uint64_t covered = 0;
  for (Transfer* t = &first; t != nullptr && add_section(uplink, message, *t, parts);
       t = start_along(uplink, message, *last, covered)) {
    last = t;
    covered += covered_bytes(*t);
    parts = {.bitmap = true, .data = true};
  }
  if (last == nullptr) return fail_without_room(first, staging);
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
  if (!uplink.all_sent() || !message.in_one_piece() || message.sections() == wire::kMaxSections)
    return nullptr;
  if (!takes_next_along(uplink, covered, message.bytes())) return nullptr;
  Operation& next = uplink.next_operation();
  if (next.layout.tiled() != last.up.operation->layout.tiled()) return nullptr;
  if (!next.layout.tiled()) {
    const std::uint64_t whole = whole_section_bytes(next, uplink.next_slice());
    if (wire::aligned_section(message.bytes()) + whole > context_.slot_bytes(priority_)) return nullptr;
  }
  return &uplink.start();
}

/// Appends a section of the transfer: its blocks as `parts` says, or its next tiles. Returns false if not
/// even one tile fits behind what the message has already.
bool Worker::add_section(Uplink& uplink, MessageBuilder& message, Transfer& t, SectionParts parts) {
  Operation& op = t.operation();
  parts.credit =
      static_cast<std::uint16_t>(context_.channels(priority_, uplink.member()).receive_down.take_credit());
  const std::uint64_t bytes = op.layout.tiled() ? tile_writer_.write(message, t.up, parts.credit)
                                                : write_section(message, t.up, parts);
  if (bytes == 0) return false;
  uplink.skip_sent();
  op.add(op.bytes_sent, bytes);
  return true;
}

void Worker::on_direct(std::uint16_t member, std::uint16_t sequence) {
  const Members& members = context_.config.members;
  if (members.is_aggregator(member) && !context_.is_self(member))
    return taker_.on_direct(uplinks_[uplink_to(members.aggregator_of(member))], sequence);
  context_.fail(
      ErrorCode::transport,
      fmt::format("{} announced a direct write, but sums nothing for this rank", context_.name(member)));
}

/// Aggregators that are ahead of others may wait for these, so only those of the oldest operation are named.
std::string Worker::waiting_for() const {
  std::string text;
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  const auto add = [&](std::uint16_t member, std::uint64_t epoch, std::uint64_t slice) {
    if (epoch > oldest) return;
    if (epoch < oldest) text.clear();
    oldest = epoch;
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

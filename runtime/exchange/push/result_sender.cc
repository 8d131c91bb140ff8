#include "runtime/exchange/push/result_sender.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "runtime/base/list_text.h"
#include "runtime/exchange/contributions/agreement.h"
#include "runtime/exchange/push/worker.h"
#include "runtime/kernels/stream_copy.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Header;
using wire::Immediate;
using wire::Priority;

namespace {

/// Returns the ranks that results are sent to, without this member. The first one is the rank behind this
/// member, so that not all aggregators send to the same rank first.
std::vector<std::uint16_t> remote_receivers(const Members& members) {
  std::vector<std::uint16_t> receivers;
  for (int i = 1; i <= members.workers; ++i) {
    const int rank = (members.self + i) % members.workers;
    if (rank != members.self) receivers.push_back(static_cast<std::uint16_t>(rank));
  }
  return receivers;
}

/// The same, and behind them this member, if it is a rank.
std::vector<std::uint16_t> all_receivers(const Members& members) {
  auto receivers = remote_receivers(members);
  if (members.is_worker(members.self)) receivers.push_back(static_cast<std::uint16_t>(members.self));
  return receivers;
}

}  // namespace

ResultSender::ResultSender(LaneContext& context, Priority priority, const Intake& intake, SliceSum& sum)
    : context_(context),
      priority_(priority),
      intake_(intake),
      sum_(sum),
      receivers_(remote_receivers(context.config.members)),
      scratch_(new std::byte[kSummedPartBytes]),
      results_(kWaitingResults, all_receivers(context.config.members)) {}

void ResultSender::start() {
  direct_ = streamed_ = result_sent_ = false;
  const IncomingSlice& s = sum_.slice();
  audience_ = {};
  if (s.layout->is_meeting(s.slice)) audience_ = {.kind = wire::Audience::Kind::none};
  if (s.refusal) audience_ = {};  // which concerns everybody
  if (!s.refusal && !s.layout->is_meeting(s.slice))
    audience_ = wire::receivers(s.record.collective, s.record.root(), s.layout->chunk_of(s.slice),
                                context_.config.members.workers);
  if (s.layout->tiled()) return;
  const std::uint64_t runs = sum_.result().runs();
  const bool stays_here = local_receives() && audience_ == wire::Audience{.kind = wire::Audience::Kind::only,
                                                                          .rank = context_.self()};
  direct_ = !s.refusal && s.record.packed_result == 0 && runs > 0 &&
            (stays_here ||
             (sum_.result_bytes() / runs >= context_.config.direct_bytes && fits_announcements(runs)));
  direct_writes_ = 0;
  streamed_ = !direct_ && !s.refusal && worth_streaming();
}

/// Returns true if some receiver gets the slice's result faster when it is streamed. To the others that costs
/// little in comparison.
bool ResultSender::worth_streaming() const {
  if (priority_ != Priority::bulk || !has_long_runs()) return false;
  bool any = false;
  for (const std::uint16_t rank : receivers_) {
    if (audience_.has(rank) && context_.lends(priority_, rank))
      any |= context_.staging_way(rank).next_is_streamed();
  }
  return any;
}

/// Returns true if a receiver's endpoint was opened for as many immediates as the slice's direct writes need.
/// This matters only where each write is announced. A run is written in parts of at most a slot.
bool ResultSender::fits_announcements(std::uint64_t runs) const {
  if (context_.config.all_ordered() || receivers_.empty()) return true;
  const std::uint64_t most = runs + sum_.result_bytes() / context_.slot_bytes(priority_);
  return most <= context_.config.announced_writes(priority_);
}

// --- Parts

std::uint64_t ResultSender::bitmap_bytes() const {
  return part_.with_union ? sum_.result().bits().size_bytes() : 0;
}

bool ResultSender::open_for_tile(std::uint64_t bytes) {
  if (!part_.open) return open_part(Form::tiles, bytes);
  if (part_.to.room() >= bytes) return true;
  send();
  return false;
}

void ResultSender::filled_with_tiles(std::uint64_t first, std::uint64_t tiles, std::uint64_t bytes) {
  if (part_.tiles == 0) part_.stream_offset = first;
  part_.tiles += static_cast<std::uint32_t>(tiles);
  fill(bytes);
}

/// Counts what was written to at(), of which there is no more than room() said.
void ResultSender::fill(std::uint64_t bytes) {
  if (part_.to.take(bytes) == nullptr) fail_without_room();
}

bool ResultSender::open_part(Form form, std::uint64_t tile_bytes) {
  Part part;
  part.form = form;
  part.stream_offset = form == Form::in_message || form == Form::direct ? sum_.summed_bytes() : 0;
  part.with_union = form == Form::notice || (form == Form::in_message && sum_.summed_bytes() == 0);
  const std::uint64_t rest = form == Form::tiles ? tile_bytes : rest_of(form);
  part.open = form == Form::direct && local_receives() ? open_in_output(part) : open_in_staging(part, rest);
  if (part.open) part_ = part;
  return part.open;
}

/// Opens a part in the local output: the sum is made in its final position there, and written from it to the
/// other ranks.
bool ResultSender::open_in_output(Part& part) {
  part.tensor_offset = sum_.tensor_offset();
  const Operation& local = *sum_.slice().local;
  part.to = {local.output.base + local.output_offset(sum_.slice().slice) + part.tensor_offset,
             context_.slot_bytes(priority_)};
  return true;
}

/// Opens a part behind the sections that a message has already, if the `rest` of the slice fits there, and
/// otherwise in a message of its own.
bool ResultSender::open_in_staging(Part& part, std::uint64_t rest) {
  const std::uint64_t slot = context_.slot_bytes(priority_);
  StagingPool& pool = context_.pool(priority_);
  const bool direct = part.form == Form::direct;
  const std::uint64_t bitmap = part.with_union ? sum_.result().bits().size_bytes() : 0;
  const std::uint64_t fixed = direct ? 0 : sizeof(Header) + bitmap;
  std::uint64_t begin = message_ ? wire::aligned_section(message_->bytes) : 0;
  part.streamed = streamed_ && part.form == Form::in_message;
  part.placed = part.form == Form::in_message && has_long_runs() && local_receives() &&
                sum_.slice().record.packed_result == 0;
  if (message_ && (direct || message_->audience != audience_ || message_->placed != part.placed ||
                   begin + fixed + rest > slot)) {
    queue(message_);
    begin = 0;
  }
  if (message_) {
    part.staging = message_->staging;
  } else {
    if (!may_open_message(over_)) return false;
    part.staging = pool.acquire(context_.bank_down(priority_));
  }
  if (direct) part.tensor_offset = sum_.tensor_offset();
  if (begin_in(pool.buffer(*part.staging), begin, part, rest)) return true;
  if (!message_) pool.release(*part.staging);
  return false;
}

/// Begins a part `begin` bytes into a buffer. Parts that must not be split, the tile that follows and the
/// reason of a refusal, have to have room. Slices are cut so that they have it in an empty message, so
/// otherwise this fails, which is a fault of nzcl's own.
bool ResultSender::begin_in(std::byte* buffer, std::uint64_t begin, Part& part, std::uint64_t rest) {
  const bool direct = part.form == Form::direct,
             whole = part.form == Form::tiles || part.form == Form::refusal;
  const std::uint64_t bitmap = part.with_union ? sum_.result().bits().size_bytes() : 0;
  SlotWriter message(buffer, context_.slot_bytes(priority_));
  bool fits = message.take(begin) != nullptr;
  part.header = message.next();
  fits = fits && (direct || (message.take(sizeof(Header)) != nullptr && message.take(bitmap) != nullptr));
  part.to = message.rest();
  fits = fits && (!whole || part.to.room() >= rest);
  if (fits && part.form == Form::refusal) fits = part.to.put(sum_.slice().refusal->text().data(), rest);
  if (!fits) fail_without_room();
  return fits;
}

void ResultSender::fail_without_room() {
  context_.fail(ErrorCode::internal,
                fmt::format("the result of operation {} slice {} does not fit a slot of {} bytes",
                            sum_.slice().epoch, sum_.slice().slice, context_.slot_bytes(priority_)));
}

/// Returns true if there is a buffer for another message, and room for it in the queue even if the `other`
/// open message goes there first.
bool ResultSender::may_open_message(const std::optional<ResultMessage>& other) const {
  return context_.pool(priority_).available(context_.bank_down(priority_)) > 0 &&
         results_.room() > (other ? 1u : 0u);
}

/// How many bytes are still to follow the header, and the bitmap if there is one.
std::uint64_t ResultSender::rest_of(Form form) const {
  switch (form) {
    case Form::notice:
      return 0;
    case Form::refusal:
      return sum_.slice().refusal->bytes();
    default:
      return sum_.result_bytes() - sum_.summed_bytes();
  }
}

bool ResultSender::has_long_runs() const { return sum_.slice().layout->block_bytes() >= kLeastStreamedRun; }

std::byte* ResultSender::at() {
  std::byte* to = part_.to.next();
  if (part_.placed) {
    const Operation& local = *sum_.slice().local;
    to = local.output.base + local.output_offset(sum_.slice().slice) + sum_.tensor_offset();
  } else if (part_.streamed) {
    to = scratch_.get();
  }
  filling_ = to;
  return to;
}

void ResultSender::filled(const SliceSum::Step& step) {
  std::byte* const in_message = part_.to.next();
  if (part_.streamed) {
    copy_past_caches(in_message, filling_, step.bytes);
  } else if (part_.placed) {
    std::memcpy(in_message, filling_, step.bytes);
  }
  fill(step.bytes);
  part_.full = part_.form == Form::direct && step.ends_stretch;
}

bool ResultSender::send() {
  if (part_.form == Form::direct) return write_direct();
  close_section();
  // A small message waits for the results of the next slices, if these come within this step.
  const bool may_grow = priority_ == Priority::bulk && sum_.done() && message_->bytes < kFullMessageBytes &&
                        message_->sections < wire::kMaxSections;
  if (!may_grow) queue(message_);
  return true;
}

bool ResultSender::finish() {
  if (part_.open && part_.form == Form::direct && !send()) return false;
  if (sum_.slice().layout->tiled() && !sum_.slice().refusal) return !part_.open || send();
  // A result in messages is over with its last section. An empty one has no section yet, a direct one needs a
  // notice, and that of a refused operation is the refusal.
  if (!result_sent_ && audience_.kind != wire::Audience::Kind::none) {
    if (!part_.open && !open_part(last_form())) return false;
    send();
  }
  result_sent_ = true;
  return audience_.kind == wire::Audience::Kind::all || tell_others();
}

/// Tells the ranks that are no receivers that the slice is over. Returns false if there is no buffer for it
/// now.
bool ResultSender::tell_others() {
  const IncomingSlice& s = sum_.slice();
  StagingPool& pool = context_.pool(priority_);
  const wire::Audience others = audience_.others();
  if (over_ && over_->audience != others) queue(over_);
  if (!over_) {
    if (!may_open_message(message_)) return false;
    over_ = {.staging = pool.acquire(context_.bank_down(priority_)), .epoch = s.epoch, .audience = others};
  } else {
    wire::add_flag(over_->last_header, wire::kMore);
  }
  const Header header{.flags = wire::kOver, .epoch = s.epoch, .slice = s.slice, .sequence = s.sequence};
  SlotWriter message(pool.buffer(over_->staging) + over_->bytes,
                     context_.slot_bytes(priority_) - over_->bytes);
  over_->last_header = message.next();
  if (!message.put(&header, sizeof header)) return fail_without_room(), false;
  over_->bytes += sizeof header;
  if (++over_->sections == wire::kMaxSections || message.room() < sizeof header) queue(over_);
  return true;
}

ResultSender::Form ResultSender::last_form() const {
  if (sum_.slice().refusal) return Form::refusal;
  return direct_ ? Form::notice : Form::in_message;
}

/// Completes the open part, if it is a section of a message.
void ResultSender::close_section() {
  if (!part_.open || part_.form == Form::direct) return;
  const IncomingSlice& s = sum_.slice();
  const std::uint64_t bitmap = bitmap_bytes();
  Header header{
      .epoch = s.epoch, .slice = s.slice, .sequence = s.sequence, .stream_offset = part_.stream_offset};
  if (part_.with_union) header.flags |= wire::kHasBitmap;
  if (part_.streamed) header.flags |= wire::kStreamed;
  if (part_.form == Form::notice) {
    header.flags |= wire::kDirect;
    header.direct_writes = direct_writes_;
  }
  if (part_.form == Form::tiles) {
    header.flags |= wire::kTiles;
    header.tiles = part_.tiles;
  }
  if (part_.form == Form::refusal) {
    header.flags |= wire::kRefused;
    header.refused_by = s.refusal->rank();
    header.refusal_code = s.refusal->code();
  }
  header.bitmap_bytes = static_cast<std::uint32_t>(bitmap);
  header.payload_bytes = static_cast<std::uint32_t>(part_.to.bytes());
  std::memcpy(part_.header, &header, sizeof header);
  if (bitmap > 0) std::memcpy(part_.header + sizeof header, sum_.result().bits().data(), bitmap);

  const std::byte* buffer = context_.pool(priority_).buffer(*part_.staging);
  if (!message_) {
    message_ = {.staging = *part_.staging, .epoch = s.epoch, .audience = audience_, .placed = part_.placed};
  } else {
    wire::add_flag(message_->last_header, wire::kMore);
  }
  message_->last_header = part_.header;
  message_->bytes =
      static_cast<std::uint64_t>(part_.header - buffer) + sizeof header + bitmap + part_.to.bytes();
  ++message_->sections;
  part_ = {};
}

// --- Direct writes

/// Writes the part to its position in the outputs of the ranks that do not have it yet, as far as the outbox
/// has room. The next call goes on with the next rank, so there may be more ranks than the outbox has places.
bool ResultSender::write_direct() {
  for (; part_.written_to < receivers_.size(); ++part_.written_to) {
    if (!audience_.has(receivers_[part_.written_to])) continue;
    if (context_.outbox.room() == 0) return false;
    write_direct_to(receivers_[part_.written_to]);
  }
  ++direct_writes_;
  if (part_.staging) context_.pool(priority_).release(*part_.staging);
  part_ = {};
  return true;
}

void ResultSender::write_direct_to(std::uint16_t rank) {
  const IncomingSlice& s = sum_.slice();
  StagingPool& pool = context_.pool(priority_);
  const verbs::Segment segment{part_.to.begin(), static_cast<std::uint32_t>(part_.to.bytes()),
                               part_.staging ? pool.region() : s.local->output.region};
  WriteContext context{.priority = priority_};
  if (part_.staging) {
    pool.add_reference(*part_.staging);
    context.staging = *part_.staging;
  } else {
    s.local->local_write_started();
    context.operation = s.local->table_index;
  }
  verbs::Write write{.peer = rank,
                     .segments = {},
                     .target = intake_.output_of(s, rank).offset(part_.tensor_offset),
                     .immediate = std::nullopt,
                     .context = context.encode()};
  if (!context_.config.link(rank).ordered) {
    write.immediate = context_.immediate(Immediate::Kind::direct, Direction::down, priority_,
                                         static_cast<std::uint16_t>(s.sequence));
  }
  context_.push(write, {&segment, 1});
}

// --- Messages

void ResultSender::queue(std::optional<ResultMessage>& message) {
  if (!message) return;
  results_.push_back({message->staging, static_cast<std::uint32_t>(message->bytes), message->epoch,
                      message->audience, message->placed});
  message.reset();
  deliver_to_others();
}

void ResultSender::send_messages() {
  queue(message_);
  queue(over_);
}

bool ResultSender::deliver() {
  if (results_.empty()) return false;
  const bool any = deliver_to_others();
  return (local_ != nullptr && deliver_local()) || any;
}

bool ResultSender::deliver_to_others() {
  bool any = false;
  results_.for_each_waiting([&](std::size_t i) { any |= i < receivers_.size() && deliver_to(i); });
  return any;
}

bool ResultSender::deliver_to(std::size_t receiver) {
  const std::uint16_t rank = receivers_[receiver];
  const SendChannel& channel = context_.channels(priority_, rank).send_down;
  StagingPool& pool = context_.pool(priority_);
  bool any = false;
  while (const ResultQueue::Result* next = results_.next(receiver)) {
    if (!channel.ready() || context_.outbox.room() == 0) break;
    const verbs::Segment message{pool.buffer(next->staging), next->bytes, pool.region()};
    pool.add_reference(next->staging);
    context_.push_message(priority_, Direction::down, rank, next->staging, {&message, 1}, std::nullopt,
                          results_.seal_next(receiver));
    taken(receiver, next->staging);
    any = true;
  }
  return any;
}

bool ResultSender::deliver_local() {
  bool any = false;
  while (const ResultQueue::Result* next = results_.next(receivers_.size())) {
    wire::SectionReader sections(context_.pool(priority_).buffer(next->staging), next->bytes, Direction::down,
                                 local_at_);
    while (const auto section = sections.next()) {
      if (!local_->consume_local(*section, next->placed)) return any;
      local_at_ = sections.at();
      any = true;
    }
    local_at_ = 0;
    taken(receivers_.size(), next->staging);
  }
  return any;
}

void ResultSender::taken(std::size_t receiver, StagingPool::Index staging) {
  if (results_.take(receiver)) context_.pool(priority_).release(staging);
}

Stall ResultSender::waiting_for() const {
  const auto is_stuck = [this](std::size_t i) {
    return results_.next(i) != nullptr && !context_.channels(priority_, receivers_[i]).send_down.ready();
  };
  std::string stuck;
  std::uint64_t epoch = 0;
  bool others_go_on = false;  // of those that get the same results
  for (std::size_t i = 0; i < receivers_.size(); ++i) {
    if (!is_stuck(i)) continue;
    const ResultQueue::Result& next = *results_.next(i);
    if (stuck.empty()) epoch = next.epoch;
    append_item(stuck, context_.number(receivers_[i]));
    for (std::size_t other = 0; other < receivers_.size(); ++other)
      others_go_on |= next.audience.has(receivers_[other]) && !is_stuck(other);
  }
  if (stuck.empty()) return {};
  std::string text = fmt::format("{}: rank(s) {} stopped taking results", describe(context_, epoch), stuck);
  if (!others_go_on) return {.known = {}, .suspected = {}, .all = std::move(text)};
  return {.known = std::move(text), .suspected = {}};
}

}  // namespace nzcl::engine

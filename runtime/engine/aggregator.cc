#include "runtime/engine/aggregator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/engine/lane_memory.h"
#include "runtime/engine/worker.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Class;
using wire::Direction;
using wire::Header;
using wire::Immediate;

namespace {

/// Members that results are written to, beside the local worker.
std::vector<std::uint16_t> remote_receivers(const EngineConfig& config, Class c) {
  std::vector<std::uint16_t> receivers;
  if (config.of(c).mirrored) return receivers;
  const int self = config.members.self, ranks = config.members.workers;
  // Starting behind the own rank: aggregators do not all write to the same rank first.
  for (int i = 1; i <= ranks; ++i) {
    if (const int rank = (self + i) % ranks; rank != self)
      receivers.push_back(static_cast<std::uint16_t>(rank));
  }
  return receivers;
}

}  // namespace

Aggregator::Aggregator(LaneContext& context, Class size_class)
    : context_(context),
      class_(size_class),
      ranks_(context.config.members.workers),
      receivers_(remote_receivers(context.config, size_class)),
      max_words_(context.config.of(size_class).slot_bytes / 2 / 8 + 1),
      sources_(static_cast<std::size_t>(ranks_)),
      bitmaps_(new std::uint64_t[kWindow * static_cast<std::uint64_t>(ranks_) * max_words_]),
      union_(new std::uint64_t[max_words_]),
      edges_(new std::uint64_t[max_words_]),
      results_(kWaitingResults,
               receivers_.size() + (context.config.members.is_worker(context.config.members.self) ? 1 : 0)) {
  for (Source& source : sources_) {
    source.queue =
        FixedQueue<Contribution>(std::size_t{context.config.of(size_class).slots} * wire::kMaxSections);
    source.outputs.resize(kWindow);
    source.seen.resize(kWindow);
  }
  present_.reserve(static_cast<std::size_t>(ranks_));
  pointers_.reserve(static_cast<std::size_t>(ranks_));
}

std::uint64_t* Aggregator::bits_of(std::uint64_t sequence, int rank) {
  return bitmaps_.get() +
         (sequence % kWindow * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank)) *
             max_words_;
}

std::span<const std::uint64_t> Aggregator::bits_of(const Slice& s, int rank) const {
  const std::uint64_t place =
      s.sequence % kWindow * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank);
  return {bitmaps_.get() + place * max_words_, s.layout->words_of(s.slice)};
}

bool Aggregator::step() {
  bool any = deliver();
  for (int rank = 0; rank < ranks_; ++rank) any |= receive(rank);
  while (!context_.failure) {
    Slice& s = slices_[head_ % kWindow];
    if (!s.active || s.missing > 0) break;
    if (!s.summing) begin_sum(s);
    const Progress progress = sum_piece(s, any);
    if (progress == Progress::waiting) {
      if (message_ && piece_.open && piece_.form != Form::direct)
        flush_section(s);  // who waits for the others need not
      break;
    }
    any = true;
    if (progress == Progress::slice_over) ++head_;
    if (progress == Progress::flushed) break;  // let it be posted before the next piece is summed
  }
  send_message();  // nobody waits for one that is not full
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != context_.config.members.self) {
      context_.return_credit(class_, Direction::up, static_cast<std::uint16_t>(rank));
    }
  }
  return any;
}

// --- Sums go out

void Aggregator::begin_sum(Slice& s) {
  const std::uint64_t words = s.layout->words_of(s.slice);
  const std::uint64_t blocks = s.layout->blocks_of(s.slice);
  std::fill_n(union_.get(), words, 0);
  std::fill_n(edges_.get(), words, 0);
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::uint64_t* bits = bits_of(s.sequence, rank);
    for (std::uint64_t w = 0; w < words; ++w) {
      union_[w] |= bits[w];
      // Bit b of the difference: this rank holds one of the blocks b and b + 1 but not the other.
      const std::uint64_t next = w + 1 < words ? bits[w + 1] : 0;
      edges_[w] |= bits[w] ^ (bits[w] >> 1 | next << 63);
    }
  }
  const std::span<const std::uint64_t> all{union_.get(), words};
  s.union_bytes = stream_bytes(*s.layout, s.slice, all);
  s.at.block = next_set(all, 0, blocks);
  s.run_end = s.at.block;
  const std::uint64_t runs = count_runs(all, blocks);
  s.direct = s.record.packed_result == 0 && runs > 0 && s.union_bytes / runs >= context_.config.direct_bytes;
  s.summing = true;
}

/// Until the piece has gone, or something is missing; `any` becomes true if anything was summed.
Aggregator::Progress Aggregator::sum_piece(Slice& s, bool& any) {
  const std::int64_t begin = trace::now();
  bool summed = false;
  Progress progress;
  while ((progress = sum_some(s)) == Progress::summed) summed = true;
  if (summed || progress != Progress::waiting) trace::record(trace::What::reduce, begin, s.epoch, s.slice);
  any |= summed;
  return progress;
}

Aggregator::Progress Aggregator::sum_some(Slice& s) {
  const std::span<const std::uint64_t> all{union_.get(), s.layout->words_of(s.slice)};
  const std::uint64_t blocks = s.layout->blocks_of(s.slice);

  if (s.summed_bytes == s.union_bytes) return close_slice(s);
  if (!piece_.open && !open_piece(s, s.direct ? Form::direct : Form::packed)) return Progress::waiting;
  if (piece_.room == 0) return flush(s) ? Progress::flushed : Progress::waiting;

  // The run of blocks from here that the same ranks hold.
  if (s.run_end <= s.at.block) {
    const std::span<const std::uint64_t> edges{edges_.get(), all.size()};
    s.run_end = std::min(next_set(edges, s.at.block, blocks) + 1, blocks);
  }
  std::uint64_t end = s.run_end;
  if (s.local != nullptr && s.local->input.by_ordinal) end = s.at.block + 1;
  const std::uint64_t run = s.layout->bytes_of_blocks(s.slice, s.at.block, end - s.at.block) - s.at.offset;
  const std::uint64_t n = gather_sources(s, std::min(run, piece_.room));
  if (n == 0) return Progress::waiting;

  const std::uint64_t next = next_set(all, end, blocks);
  if (next < blocks && s.local != nullptr && !s.local->input.by_ordinal &&
      test_bit(bits_of(s, context_.config.members.self), next)) {
    prefetch_to_read(s.local->input.base + s.layout->offset_of(s.slice, next),
                     s.layout->bytes_of_blocks(s.slice, next, 1));
  }
  const auto type = static_cast<DataType>(s.record.type);
  reduce_kernel(type, static_cast<ReduceOp>(s.record.op))(
      piece_.at + piece_.bytes, pointers_.data(), pointers_.size(), n / element_bytes(type),
      {.ranks = ranks_, .with_zero = static_cast<int>(pointers_.size()) < ranks_});
  advance_sources(s, n);
  piece_.bytes += n, piece_.room -= n, s.summed_bytes += n;
  if (n == run) {
    if (s.direct && next != end) piece_.room = 0;  // the next block goes elsewhere
    s.at = {next, 0};
  } else {
    s.at.advance(n, s.layout->block_bytes());
  }
  return Progress::summed;
}

/// All is summed, or there is nothing to sum: sends what is left, and tells every rank that the slice is
/// complete.
Aggregator::Progress Aggregator::close_slice(Slice& s) {
  if (piece_.open && piece_.form == Form::direct && !flush(s)) return Progress::waiting;
  // The last piece of a packed slice says all; an empty union and a direct slice need a message of their own.
  if (!piece_.open && !open_piece(s, s.direct ? Form::notice : Form::packed)) return Progress::waiting;
  if (!flush(s)) return Progress::waiting;
  s.active = false;
  return Progress::slice_over;
}

std::uint64_t Aggregator::gather_sources(Slice& s, std::uint64_t limit) {
  present_.clear();
  pointers_.clear();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!test_bit(bits_of(s, rank), s.at.block)) continue;
    if (rank == context_.config.members.self) {
      const auto& input = s.local->input;
      const std::uint64_t offset = input.by_ordinal ? input.place[s.local_ordinal] * input.stride
                                                    : s.layout->offset_of(s.slice, s.at.block);
      pointers_.push_back(input.base + offset + s.at.offset);
    } else {
      Source& source = sources_[static_cast<std::size_t>(rank)];
      if (source.queue.empty()) return 0;
      const Contribution& first = source.queue.front();
      if (first.sequence != s.sequence) {
        context_.fail(ErrorCode::transport,
                      fmt::format("rank {} sent less data than its bitmap says (operation {}, slice {})",
                                  rank, s.epoch, s.slice));
        return 0;
      }
      pointers_.push_back(first.payload + source.used);
      limit = std::min(limit, first.bytes - source.used);
    }
    present_.push_back(rank);
  }
  return limit;
}

void Aggregator::advance_sources(Slice& s, std::uint64_t bytes) {
  for (const int rank : present_) {
    if (rank == context_.config.members.self) {
      if (s.local->input.by_ordinal &&
          s.at.offset + bytes == s.layout->bytes_of_blocks(s.slice, s.at.block, 1)) {
        ++s.local_ordinal;
      }
      continue;
    }
    Source& source = sources_[static_cast<std::size_t>(rank)];
    source.used += bytes;
    if (source.used == source.queue.front().bytes) release(rank);
  }
}

void Aggregator::release(int rank) {
  Source& source = sources_[static_cast<std::size_t>(rank)];
  const Contribution& first = source.queue.front();
  if (first.last_in_slot)
    context_.link(class_, static_cast<std::uint16_t>(rank)).receive_up.release(first.slot);
  source.queue.pop_front();
  source.used = 0;
}

bool Aggregator::open_piece(Slice& s, Form form) {
  Piece p;
  p.open = true;
  p.form = form;
  p.stream_offset = s.summed_bytes;
  const std::uint64_t slot = context_.config.of(class_).slot_bytes;
  if (form == Form::direct) {
    p.tensor_offset = s.layout->offset_of(s.slice, s.at.block) + s.at.offset;
    p.room = slot;
    if (s.local != nullptr) {  // summed in its final place here, and written from there to the others
      p.at = s.local->output.base + p.tensor_offset;
      piece_ = p;
      return true;
    }
  }
  StagingPool& pool = context_.pool(class_);
  p.first = form == Form::notice || (form == Form::packed && s.summed_bytes == 0);
  const std::uint64_t overhead =
      form == Form::direct ? 0 : sizeof(Header) + (p.first ? s.layout->words_of(s.slice) * 8 : 0);
  std::uint64_t begin = message_ ? wire::aligned_section(message_->bytes) : 0;
  const std::uint64_t whole = overhead + (form == Form::notice ? 0 : s.union_bytes - s.summed_bytes);
  if (message_ && (form == Form::direct || begin + whole > slot)) {
    send_message();
    begin = 0;
  }
  if (message_) {
    p.staging = message_->staging;
  } else {
    if (pool.available() == 0 || results_.full()) return false;
    p.staging = pool.acquire();
  }
  p.section = pool.buffer(*p.staging) + begin;
  p.at = p.section + overhead;
  p.room = slot - begin - overhead;
  if (form == Form::notice) p.stream_offset = 0;
  piece_ = p;
  return true;
}

/// Sends the open piece on its way to every receiver. False: there is no room for its writes now; it stays
/// open.
bool Aggregator::flush(Slice& s) {
  if (piece_.form == Form::direct) {
    if (context_.outbox.room() < receivers_.size()) return false;
    flush_direct(s);
    return true;
  }
  const bool complete = s.summed_bytes == s.union_bytes;
  flush_section(s);
  // A small message may take the next slice's result along, if that comes within this step.
  if (class_ != Class::bulk || !complete || message_->bytes >= kWorthAMessage ||
      message_->sections == wire::kMaxSections)
    send_message();
  return true;
}

/// Completes the open piece, a section of the message.
void Aggregator::flush_section(Slice& s) {
  const std::uint64_t bitmap_bytes = piece_.first ? s.layout->words_of(s.slice) * 8 : 0;
  Header header{
      .epoch = s.epoch, .slice = s.slice, .sequence = s.sequence, .stream_offset = piece_.stream_offset};
  if (piece_.first) header.flags |= wire::kHasBitmap;
  if (piece_.form == Form::notice) {
    header.flags |= wire::kDirect;
    header.direct_writes = context_.config.ordered ? 0 : s.direct_writes;
  }
  header.bitmap_bytes = static_cast<std::uint32_t>(bitmap_bytes);
  header.payload_bytes = static_cast<std::uint32_t>(piece_.bytes);
  std::memcpy(piece_.section, &header, sizeof header);
  if (bitmap_bytes > 0) std::memcpy(piece_.section + sizeof header, union_.get(), bitmap_bytes);

  const std::byte* buffer = context_.pool(class_).buffer(*piece_.staging);
  if (!message_) {
    message_ = {.staging = *piece_.staging, .epoch = s.epoch};
  } else {
    wire::add_flag(message_->last, wire::kMore);
  }
  message_->last = piece_.section;
  message_->bytes =
      static_cast<std::uint64_t>(piece_.section - buffer) + sizeof header + bitmap_bytes + piece_.bytes;
  ++message_->sections;
  piece_ = {};
}

/// The message, if there is one, is a result from now on.
void Aggregator::send_message() {
  if (!message_) return;
  results_.push_back({message_->staging, static_cast<std::uint32_t>(message_->bytes), message_->epoch});
  message_.reset();
  deliver();
}

/// Writes the open piece to its place in every receiver's output.
void Aggregator::flush_direct(Slice& s) {
  StagingPool& pool = context_.pool(class_);
  const verbs::Segment segment{piece_.at, static_cast<std::uint32_t>(piece_.bytes),
                               piece_.staging ? pool.region() : s.local->output.region};
  for (const std::uint16_t rank : receivers_) {
    WriteContext context;
    if (piece_.staging) {
      pool.add_reference(*piece_.staging);
      context = {WriteContext::Kind::staging, class_, *piece_.staging};
    } else {
      s.local->local_write_started();
      context = {WriteContext::Kind::operation, class_, s.local->table_index};
    }
    verbs::Write write{.peer = rank,
                       .segments = {},
                       .target = sources_[rank].outputs[s.sequence % kWindow].offset(piece_.tensor_offset),
                       .immediate = std::nullopt,
                       .context = context.encode()};
    if (!context_.config.ordered) {
      write.immediate = context_.immediate(Immediate::Kind::direct, Direction::down, class_,
                                           static_cast<std::uint16_t>(s.sequence));
    }
    context_.push(write, {&segment, 1});
  }
  ++s.direct_writes;
  if (piece_.staging) pool.release(*piece_.staging);
  piece_ = {};
}

/// Results go to whoever can take them now.
bool Aggregator::deliver() {
  if (results_.empty()) return false;
  bool any = false;
  for (std::size_t i = 0; i < receivers_.size(); ++i) any |= deliver_to(i);
  if (local_ != nullptr) any |= deliver_local();
  return any;
}

bool Aggregator::deliver_to(std::size_t receiver) {
  const std::uint16_t rank = receivers_[receiver];
  const SendChannel& channel = context_.link(class_, rank).send_down;
  StagingPool& pool = context_.pool(class_);
  bool any = false;
  while (const ResultQueue::Result* next = results_.next(receiver)) {
    if (!channel.ready() || context_.outbox.room() == 0) break;
    const verbs::Segment message{pool.buffer(next->staging), next->bytes, pool.region()};
    pool.add_reference(next->staging);
    context_.push_message(class_, Direction::down, rank, next->staging, {&message, 1});
    taken(receiver, next->staging);
    any = true;
  }
  return any;
}

bool Aggregator::deliver_local() {
  bool any = false;
  while (const ResultQueue::Result* next = results_.next(receivers_.size())) {
    const std::byte* section = context_.pool(class_).buffer(next->staging) + local_at_;
    Header header;
    std::memcpy(&header, section, sizeof header);
    if (!local_->consume_local(header, section + sizeof header)) break;
    any = true;
    if ((header.flags & wire::kMore) != 0) {
      local_at_ = wire::next_result(local_at_, header);
      continue;
    }
    local_at_ = 0;
    taken(receivers_.size(), next->staging);
  }
  return any;
}

void Aggregator::taken(std::size_t receiver, StagingPool::Index staging) {
  if (results_.take(receiver)) context_.pool(class_).release(staging);
}

}  // namespace nzcl::engine

#include "runtime/exchange/push/result_taker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/exchange/contributions/early_result.h"
#include "runtime/kernels/stream_copy.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Header;
using wire::Priority;

ResultTaker::ResultTaker(LaneContext& context, Priority priority)
    : context_(context), priority_(priority), tile_placer_(context, priority) {}

bool ResultTaker::refuse(const Uplink& uplink, const std::string& what) {
  context_.fail(ErrorCode::transport, fmt::format("{} {}", context_.name(uplink.member()), what));
  return false;
}

bool ResultTaker::pull(Uplink& uplink) {
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

bool ResultTaker::has_more(const Uplink& uplink) const {
  return uplink.held.data != nullptr ||
         context_.channels(priority_, uplink.member()).receive_down.credit_due();
}

/// Takes all sections of the held message. Returns false if one of them cannot be placed yet or was refused;
/// the message is kept then.
bool ResultTaker::consume_held(Uplink& uplink) {
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

bool ResultTaker::consume(Uplink& uplink, const wire::Section& section, bool placed) {
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
bool ResultTaker::take_tiles(Uplink& uplink, Transfer& t, const wire::Section& section) {
  if (!tile_placer_.place(uplink, t, section)) return false;
  count_received(uplink, t, section);
  finish_if_complete(uplink, t);
  return true;
}

/// Takes the owner's word that a slice is over whose result is for other ranks.
bool ResultTaker::take_end(Uplink& uplink, Transfer& t, const wire::Section& section) {
  count_received(uplink, t, section);
  t.have_union = true;
  finish_if_complete(uplink, t);
  return true;
}

/// Takes the owner's answer that a rank has refused the operation, so that the slice has no result.
bool ResultTaker::take_refusal(Uplink& uplink, Transfer& t, const wire::Section& section) {
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
const char* ResultTaker::wrong_with_result(const Uplink& uplink, const Transfer& t,
                                           const Header& header) const {
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
void ResultTaker::take_notice(Uplink& uplink, Transfer& t, const Header& header) {
  t.direct = true;
  t.direct_expected = announced(uplink) ? header.direct_writes : 0;
}

/// Returns true if direct writes of this owner carry immediates. The local owner sums in place, so it writes
/// nothing. Where writes become visible in order, the notice behind them is enough.
bool ResultTaker::announced(const Uplink& uplink) const {
  return !context_.is_self(uplink.member()) && !context_.config.link(uplink.member()).ordered;
}

bool ResultTaker::take_union(Uplink& uplink, Transfer& t, const wire::Section& section) {
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

void ResultTaker::count_received(Uplink& uplink, Transfer& t, const wire::Section& section) {
  if (context_.is_self(uplink.member())) return;
  const bool direct = (section.header.flags & wire::kDirect) != 0;
  t.operation().bytes_received.fetch_add(section.bytes + (direct ? t.union_bytes : 0),
                                         std::memory_order_relaxed);
  LaneStatistics::add(context_.statistics.bytes_received, section.bytes);
}

void ResultTaker::scatter(const Uplink& uplink, Transfer& t, const wire::Section& section, bool placed) {
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
void ResultTaker::place_run(Operation& op, const RunWalk& down, std::span<const std::byte> run, bool cold) {
  if (cold && run.size() >= kLeastStreamedPlace) {
    copy_past_caches(op.output.base + down.offset(), run.data(), run.size());
    return;
  }
  if (const auto ahead = down.ahead()) prefetch_to_write(op.output.base + ahead->offset, ahead->bytes);
  const std::uint64_t fit = op.writable(down.offset(), run.size());
  copy_cold(op.output.base + down.offset(), run.data(), fit);
  if (fit < run.size()) op.keep_overflow(down.offset() + fit, run.subspan(fit));
}

void ResultTaker::on_direct(Uplink& uplink, std::uint16_t sequence) {
  const std::uint64_t most = announced(uplink) ? context_.config.announced_writes(priority_) : 0;
  const char* wrong = nullptr;
  Transfer* const t = uplink.find_short(sequence);
  if (t == nullptr) {
    wrong = " for a slice that is not running";
  } else if (!t->operation().receives(t->up.slice)) {
    wrong = " of a result that is not for this rank";
  } else if (t->direct_seen == (t->direct ? t->direct_expected : most)) {
    wrong = " too many";
  }
  if (wrong != nullptr) {
    refuse(uplink, fmt::format("announced a direct write{}", wrong));
    return;
  }
  ++t->direct_seen;
  finish_if_complete(uplink, *t);
}

const char* ResultTaker::wrong_with_end(const Transfer& t) const {
  if (t.direct && t.direct_seen > t.direct_expected) return "more direct writes came than it counts";
  if (!t.complete()) return nullptr;
  if (!t.direct && t.direct_seen > 0) return "direct writes were announced, and it came in messages";
  return wrong_with_early_result(t.up.sent());
}

void ResultTaker::finish_if_complete(Uplink& uplink, Transfer& t) {
  Operation& op = t.operation();
  if (const char* wrong = wrong_with_end(t)) {
    refuse(uplink, fmt::format("sent a result that can't be for operation {} slice {}: {}", op.epoch,
                               t.up.slice, wrong));
    return;
  }
  if (!t.complete()) return;
  const std::uint64_t slice = t.up.slice;
  const bool written = t.direct && !context_.is_self(uplink.member());
  uplink.finish(t);
  ++finished_;
  op.slice_done(slice, written);  // last, because the operation may be deleted from here on
}

}  // namespace nzcl::engine

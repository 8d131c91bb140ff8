#include "runtime/exchange/contributions/intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/list_text.h"

namespace nzcl::engine {

using wire::Direction;
using wire::Header;
using wire::Priority;

Intake::Intake(LaneContext& context, Priority priority)
    : context_(context),
      priority_(priority),
      ranks_(context.config.members.workers),
      max_words_(context.slot_bytes(priority) / 2 / 8 + 1),
      window_(context, priority),
      sources_(static_cast<std::size_t>(ranks_)),
      credits_due_(static_cast<std::size_t>(ranks_)),
      bitmaps_(new std::uint64_t[kWindow * static_cast<std::uint64_t>(ranks_) * max_words_]) {
  for (Source& source : sources_)
    source.sections =
        FixedQueue<Section>(std::size_t{context.config.channel(priority).slots} * wire::kMaxSections);
}

bool Intake::refuse(ErrorCode code, std::string text) {
  context_.fail(code, std::move(text));
  return false;
}

/// The bitmaps of a slice lie together, so that they take what they have, and not what they might.
std::uint64_t* Intake::bits_at(const IncomingSlice& s, int rank) const {
  const std::uint64_t place = s.sequence % kWindow * static_cast<std::uint64_t>(ranks_) * max_words_;
  return bitmaps_.get() + place + static_cast<std::uint64_t>(rank) * s.words();
}

std::span<const std::uint64_t> Intake::bits(const IncomingSlice& s, int rank) const {
  return {bits_at(s, rank), s.words()};
}

// --- Messages arrive

bool Intake::receive() {
  bool any = false;
  ReadySet& arrived = context_.arrived_from(priority_, Direction::up);
  arrived.for_each([&](std::size_t rank) {
    any |= receive_from(static_cast<int>(rank));
    arrived.erase(rank);
  });
  return any;
}

bool Intake::receive_from(int rank) {
  ReceiveChannel& channel = context_.channels(priority_, static_cast<std::uint16_t>(rank)).receive_up;
  bool any = false;
  while (!context_.failure) {
    const ReceiveChannel::Received message = channel.pop();
    if (message.data == nullptr || !take(rank, message)) break;
    any = true;
  }
  return any;
}

/// Takes all sections of a message. The slot is held until its last section with data has been consumed.
bool Intake::take(int rank, const ReceiveChannel::Received& message) {
  auto& sections_held = source_of(rank).sections;
  const std::size_t before = sections_held.size();
  wire::SectionReader sections(message.data, context_.slot_bytes(priority_), Direction::up);
  while (const auto section = sections.next()) {
    if (!take_section(rank, message.slot, *section)) return false;
  }
  if (sections.wrong() != nullptr) {
    return refuse(ErrorCode::transport,
                  fmt::format("rank {} sent a malformed contribution (sequence {}): {}",
                              context_.number(rank), sections.sequence(), sections.wrong()));
  }
  if (sections_held.size() > before) {
    sections_held.back().last_in_slot = true;
  } else {
    release(rank, message.slot);
  }
  return true;
}

bool Intake::take_section(int rank, std::uint32_t slot, const wire::Section& section) {
  const Header& header = section.header;
  if (!context_.credit(priority_, Direction::down, static_cast<std::uint16_t>(rank), header.credit)) {
    return refuse(ErrorCode::transport, fmt::format("rank {} returned more credits than it was sent messages",
                                                    context_.number(rank)));
  }
  LaneStatistics::add(context_.statistics.bytes_received, section.bytes);
  if ((header.flags & wire::kHasBitmap) != 0) {
    const auto refusal = refusal_in(rank, section);
    const IncomingSlice* s = window_.enter(rank, header, section.record, refusal ? &*refusal : nullptr);
    if (s == nullptr) return false;
    if (s->layout->tiled()) {
      window_.entry_of(rank, s->sequence).promised = refusal ? 0 : s->layout->tiles_of(s->slice);
    } else if (!take_bitmap(rank, *s, section.bitmap)) {
      return false;
    }
  }
  if ((header.flags & wire::kRefused) != 0) {
    const bool empty = window_.entry_of(rank, header.sequence).promised == 0;
    return empty || refuse(ErrorCode::transport,
                           fmt::format("rank {} refused operation {} slice {}, and contributes blocks to it",
                                       context_.number(rank), header.epoch, header.slice));
  }
  if (header.payload_bytes == 0) return true;
  if (!expects(rank, header)) return false;
  context_.time_lent(priority_, rank, header, section.payload);
  source_of(rank).sections.push_back(
      {slot, section.payload, header.payload_bytes, header.sequence, header.tiles, false});
  return true;
}

/// Copies the bitmap of a slice that the rank has entered. Then the copy is checked, and not the original,
/// which the peer could still change.
bool Intake::take_bitmap(int rank, const IncomingSlice& s, const std::byte* bitmap) {
  const SliceView view = s.view(bits(s, rank));
  if (!view.bits().empty()) std::memcpy(bits_at(s, rank), bitmap, view.bits().size_bytes());
  if (!view.well_formed()) {
    return refuse(
        ErrorCode::transport,
        fmt::format("rank {} sent a bitmap with bits behind the last block of operation {} slice {}",
                    context_.number(rank), s.epoch, s.slice));
  }
  if (view.count() > 0 && !s.contributors().has(rank)) {
    return refuse(ErrorCode::transport,
                  fmt::format("rank {} contributes blocks to {}, slice {}, which is not its part in it",
                              context_.number(rank), describe(s), s.slice));
  }
  window_.entry_of(rank, s.sequence).promised = view.stream_bytes();
  return true;
}

/// Returns the refusal that a rank sent in place of a contribution, if it did. SectionReader has checked its
/// shape.
std::optional<wire::Refusal> Intake::refusal_in(int rank, const wire::Section& section) {
  if ((section.header.flags & wire::kRefused) == 0) return std::nullopt;
  return wire::Refusal(static_cast<std::uint16_t>(rank), section.header.refusal_code,
                       {reinterpret_cast<const char*>(section.payload), section.header.payload_bytes});
}

/// Returns true if the data is what the rank's bitmap promises next, and counts it.
bool Intake::expects(int rank, const Header& header) {
  const IncomingSlice& s = window_.in_place_of(header.sequence);
  SliceEntry& entry = window_.entry_of(rank, header.sequence);
  const char* wrong = nullptr;
  const std::uint64_t data = header.tiles > 0 ? header.tiles : header.payload_bytes;
  if (!s.active || s.sequence != header.sequence || !entry.seen) {
    wrong = "no bitmap came before it";
  } else if (s.epoch != header.epoch || s.slice != header.slice) {
    wrong = "its bitmap was of another slice";
  } else if (s.layout->tiled() != (header.tiles > 0)) {
    wrong = "its tensor is not exchanged in that form";
  } else if (header.stream_offset != entry.received) {
    wrong = "it is out of order";
  } else if (data > entry.promised - entry.received) {
    wrong = header.tiles > 0 ? "it is more than its slice has" : "it is more than its bitmap says";
  } else if (header.tiles == 0 &&
             header.payload_bytes % element_bytes(static_cast<DataType>(s.record.type)) != 0) {
    wrong = "it ends within an element";
  }
  if (wrong != nullptr) {
    return refuse(ErrorCode::transport,
                  fmt::format("rank {} sent data of operation {} slice {} (sequence {}) that can't be: {}",
                              context_.number(rank), header.epoch, header.slice, header.sequence, wrong));
  }
  entry.received += data;
  return true;
}

void Intake::offer_local(std::uint64_t sequence, Operation* operation, std::uint64_t slice) {
  const int rank = context_.config.members.self;
  const bool tiled = operation->layout.tiled();
  const auto bits = tiled ? std::span<const std::uint64_t>() : operation->input_slice(slice).bits();
  Header header{.epoch = operation->epoch, .slice = slice, .sequence = sequence};
  header.bitmap_bytes = static_cast<std::uint32_t>(bits.size_bytes());
  IncomingSlice* s = window_.enter(rank, header, operation->record_of(slice), operation->refusal.get());
  if (s == nullptr) return;
  if (!bits.empty()) std::memcpy(bits_at(*s, rank), bits.data(), bits.size_bytes());
  s->local = operation;
  if (!tiled) s->local_walk = operation->input_walk(slice);
}

// --- Contributions are consumed

std::span<const std::byte> Intake::next(const IncomingSlice& s, int rank) {
  if (context_.is_self(rank)) return {s.local->input.base + s.local_walk.offset(), s.local_walk.run_bytes()};
  const Source& source = source_of(rank);
  if (source.sections.empty()) return {};
  const Section& section = source.sections.front();
  if (section.sequence != s.sequence) {
    refuse(ErrorCode::transport,
           fmt::format("rank {} sent less data than its bitmap says (operation {}, slice {})",
                       context_.number(rank), s.epoch, s.slice));
    return {};
  }
  return {section.payload + source.used, section.bytes - source.used};
}

void Intake::consume(IncomingSlice& s, int rank, std::uint64_t bytes) {
  if (context_.is_self(rank)) {
    s.local_walk.advance(bytes);
    return;
  }
  Source& source = source_of(rank);
  const Section& section = source.sections.front();
  source.used += bytes;
  if (source.used == section.bytes) pop_section(rank);
}

void Intake::pop_section(int rank) {
  Source& source = source_of(rank);
  const Section& section = source.sections.front();
  if (section.last_in_slot) release(rank, section.slot);
  source.sections.pop_front();
  source.used = source.used_tiles = source.used_listed = 0;
}

void Intake::release(int rank, std::uint32_t slot) {
  ReceiveChannel& channel = context_.channels(priority_, static_cast<std::uint16_t>(rank)).receive_up;
  channel.release(slot);
  if (channel.credit_due()) credits_due_.insert(static_cast<std::size_t>(rank));
}

bool Intake::has_tile(const IncomingSlice& s, int rank) {
  if (context_.is_self(rank)) return true;
  const Source& source = source_of(rank);
  if (source.sections.empty()) return false;
  if (source.sections.front().sequence == s.sequence) return true;
  refuse_tile(s, rank, "it is missing, and one of a later slice is here");
  return false;
}

/// Returns why a tile that could be read cannot be what the rank sends next, or nullptr.
const char* Intake::wrong_with_tile(const IncomingSlice& s, const Source& source, const wire::Tile& tile) {
  if (tile.count > 0 && !wire::may_contribute(s.record.value_rule, tile.value_code))
    return "its values are coded in another way than the operation says";
  if (tile.listed && s.record.value_rule != wire::ValueRule::as_is)
    return "it is in a list, and its operation codes values";
  // The peer may have changed what lies there since a part of the run was consumed.
  const bool runs_on = tile.tiles > source.used_tiles &&
                       tile.tiles - source.used_tiles <= source.sections.front().tiles &&
                       (source.used_listed == 0 || (tile.listed && tile.count >= source.used_listed));
  return runs_on ? nullptr : "its section has not so many tiles";
}

std::optional<wire::Tile> Intake::tile(const IncomingSlice& s, int rank, const wire::TileShape& shape) {
  const Source& source = source_of(rank);
  const Section& section = source.sections.front();
  const auto type = static_cast<DataType>(s.record.type);
  const char* wrong = nullptr;
  auto tile = wire::read_tile({section.payload, section.bytes}, source.used, type, shape, wrong);
  if (tile) wrong = wrong_with_tile(s, source, *tile);
  if (wrong != nullptr) return refuse_tile(s, rank, wrong), std::nullopt;
  tile->tiles -= source.used_tiles;
  if (!tile->listed) return tile;
  const auto used = static_cast<std::uint32_t>(source.used_listed);
  tile->count -= used;
  tile->values = tile->values.subspan(used * shape.unit * element_bytes(type));
  tile->index = tile->index.subspan(used * sizeof(std::uint32_t));
  return tile;
}

void Intake::consume_tiles(int rank, const wire::Tile& tile, std::uint64_t tiles, std::size_t listed) {
  Source& source = source_of(rank);
  Section& section = source.sections.front();
  section.tiles -= static_cast<std::uint32_t>(tiles);
  const bool some_left = tiles < tile.tiles;
  source.used_tiles = some_left ? source.used_tiles + tiles : 0;
  source.used_listed = some_left ? source.used_listed + listed : 0;
  if (!some_left) source.used = tile.end;
  if (section.tiles == 0) pop_section(rank);
}

void Intake::refuse_tile(const IncomingSlice& s, int rank, const char* wrong) {
  refuse(ErrorCode::transport, fmt::format("rank {} sent a tile of operation {} slice {} that can't be: {}",
                                           context_.number(rank), s.epoch, s.slice, wrong));
}

bool Intake::drop_tiles(const IncomingSlice& s) {
  bool all = true;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (context_.is_self(rank)) continue;
    auto& sections = source_of(rank).sections;
    while (!sections.empty() && sections.front().sequence == s.sequence) pop_section(rank);
    const SliceEntry& entry = window_.entry_of(rank, s.sequence);
    all &= entry.received == entry.promised;
  }
  return all;
}

void Intake::return_credits() {
  credits_due_.for_each([&](std::size_t rank) {
    const auto member = static_cast<std::uint16_t>(rank);
    context_.return_credit(priority_, Direction::up, member);
    if (!context_.channels(priority_, member).receive_up.credit_due()) credits_due_.erase(rank);
  });
}

// --- Texts for error messages

std::string Intake::waiting_for(std::span<const int> expected) const {
  const IncomingSlice& s = oldest();
  if (!s.active) return {};
  std::string absent, silent;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!window_.entry_of(rank, s.sequence).seen) append_item(absent, context_.number(rank));
  }
  for (const int rank : expected) {
    if (!context_.is_self(rank) && source_of(rank).sections.empty())
      append_item(silent, context_.number(rank));
  }
  if (absent.empty() && silent.empty()) return {};
  std::string text = describe(s) + ":";
  if (!absent.empty()) text += fmt::format(" rank(s) {} did not join;", absent);
  if (!silent.empty()) text += fmt::format(" rank(s) {} stopped sending;", silent);
  text.pop_back();
  return text;
}

}  // namespace nzcl::engine

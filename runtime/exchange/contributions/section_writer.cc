#include "runtime/exchange/contributions/section_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {
namespace {

/// Writes the slice's bitmap. Returns its size in bytes.
std::uint32_t write_bitmap(MessageBuilder& message, const Contribution& c) {
  const auto bits = c.operation->input_slice(c.slice).bits();
  const auto bytes = static_cast<std::uint32_t>(bits.size_bytes());
  if (bytes > 0) std::memcpy(message.reserve(bytes), bits.data(), bytes);
  return bytes;
}

/// Writes as much of the stream as `room` bytes and the gather list take. Returns the number of bytes
/// written.
std::uint64_t write_data(MessageBuilder& message, Contribution& c, std::uint64_t room) {
  const InputView& input = c.operation->input;
  std::uint64_t written = 0;
  while (room > 0 && !c.sent()) {
    const std::uint64_t n = std::min(c.walk.run_bytes(), room);
    if (const auto ahead = c.walk.ahead()) prefetch_to_read(input.base + ahead->offset, ahead->bytes);
    const std::uint64_t left = std::min(room, c.stream_bytes - c.sent_bytes);
    if (!message.add(input.base + c.walk.offset(), n, input.region, left)) break;
    c.walk.advance(n);
    c.sent_bytes += n;
    room -= n, written += n;
  }
  return written;
}

}  // namespace

std::byte* begin_section(MessageBuilder& message, const Contribution& c, wire::Header& header,
                         const SectionParts& parts) {
  const Operation& op = *c.operation;
  header = {.credit = parts.credit,
            .epoch = op.epoch,
            .slice = c.slice,
            .sequence = c.sequence,
            .stream_offset = op.layout.tiled() ? c.sent_tiles : c.sent_bytes};
  std::byte* const at = message.reserve(sizeof header);
  if (parts.bitmap) {
    header.flags = wire::kHasBitmap;
    const wire::OperationRecord record = op.record_of(c.slice);
    std::memcpy(message.reserve(sizeof record), &record, sizeof record);
  }
  return at;
}

std::uint32_t write_refusal(MessageBuilder& message, wire::Header& header, const wire::Refusal& refusal) {
  header.flags |= wire::kRefused;
  header.refused_by = refusal.rank();
  header.refusal_code = refusal.code();
  const std::string_view text = refusal.text();
  if (!text.empty()) std::memcpy(message.reserve(refusal.bytes()), text.data(), text.size());
  return refusal.bytes();
}

void write_entry(MessageBuilder& message, Contribution& c) {
  Operation& op = *c.operation;
  wire::BatchEntry entry;
  const std::uint64_t begin = message.staged();
  std::byte* const entry_at = message.reserve(sizeof entry);
  write_bitmap(message, c);
  if (op.refusal) {
    wire::Header header;
    entry.payload_bytes = write_refusal(message, header, *op.refusal);
    entry.refusal_code = header.refusal_code;
  } else {
    entry.payload_bytes = static_cast<std::uint32_t>(write_data(message, c, message.room()));
  }
  std::memcpy(entry_at, &entry, sizeof entry);
  const std::uint64_t bytes = message.staged() - begin;
  const auto filler = static_cast<std::uint32_t>(wire::aligned_section(bytes) - bytes);
  if (filler > 0) std::memset(message.reserve(filler), 0, filler);
}

std::uint64_t write_tensor(std::byte* to, Operation& op, std::uint64_t sequence) {
  const trace::Span span(trace::What::push, op.epoch, 0);
  const auto bits = op.input_slice(0).bits();
  const std::uint64_t bytes = op.layout.tensor_bytes();
  const wire::Header header{.flags = wire::kHasBitmap,
                            .epoch = op.epoch,
                            .sequence = sequence,
                            .bitmap_bytes = static_cast<std::uint32_t>(bits.size_bytes()),
                            .payload_bytes = static_cast<std::uint32_t>(bytes)};
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + sizeof header, &op.record, sizeof op.record);
  std::byte* const bitmap = to + wire::kMaxOverhead;
  if (!bits.empty()) std::memcpy(bitmap, bits.data(), bits.size_bytes());
  if (bytes > 0) std::memcpy(bitmap + bits.size_bytes(), op.input.base, bytes);
  return wire::kMaxOverhead + bits.size_bytes() + bytes;
}

WrittenSection write_section(MessageBuilder& message, Contribution& c, const SectionParts& parts) {
  Operation& op = *c.operation;
  const trace::Span span(trace::What::push, op.epoch, c.slice);
  const std::uint64_t begin = message.staged();
  wire::Header header;
  std::byte* header_at = begin_section(message, c, header, parts);
  if (parts.bitmap) header.bitmap_bytes = write_bitmap(message, c);
  const std::uint64_t fixed = message.staged() - begin;
  if (op.refusal) {
    header.payload_bytes = write_refusal(message, header, *op.refusal);
  } else if (parts.data) {
    header.payload_bytes =
        static_cast<std::uint32_t>(write_data(message, c, message.limits().bytes - begin - fixed));
  }
  if (message.limits().streamed) header.flags |= wire::kStreamed;
  std::memcpy(header_at, &header, sizeof header);
  return {header_at, fixed + header.payload_bytes};
}

}  // namespace nzcl::engine

#include "runtime/exchange/contributions/section_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/cold_memory.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {
namespace {

std::span<const std::uint64_t> bitmap_of(const Contribution& c) {
  return c.operation->input_slice(c.slice).bits();
}

/// Writes as much of the stream as `room` bytes and the gather list take. Returns the number of bytes
/// written.
std::uint64_t write_data(MessageBuilder& message, Contribution& c, std::uint64_t room) {
  const InputView& input = c.operation->input;
  std::uint64_t written = 0;
  while (room > 0 && !c.sent()) {
    const std::uint64_t n = std::min(c.walk.run_bytes(), room);
    if (input.far.region != nullptr) {
      if (!message.add_far(input.far.base + c.walk.offset(), n, input.far.region)) break;
    } else {
      if (const auto ahead = c.walk.ahead()) prefetch_to_read(input.base + ahead->offset, ahead->bytes);
      const std::uint64_t left = std::min(room, c.stream_bytes - c.sent_bytes);
      if (!message.add(input.base + c.walk.offset(), n, input.region, left)) break;
    }
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
  std::byte* const at = message.align(wire::kSectionAlignment) ? message.reserve(sizeof header) : nullptr;
  if (at == nullptr || !parts.bitmap) return at;
  header.flags = wire::kHasBitmap;
  const wire::OperationRecord record = op.record_of(c.slice, message.limits().level);
  return message.put(&record, sizeof record) ? at : nullptr;
}

std::uint64_t end_section(MessageBuilder& message, std::byte* at, const wire::Header& header) {
  std::memcpy(at, &header, sizeof header);
  return message.end_section(at);
}

bool write_refusal(MessageBuilder& message, wire::Header& header, const wire::Refusal& refusal) {
  if (!message.put(refusal.text().data(), refusal.bytes())) return false;
  header.flags |= wire::kRefused;
  header.refused_by = refusal.rank();
  header.refusal_code = refusal.code();
  header.payload_bytes = refusal.bytes();
  return true;
}

bool write_tensor(SlotWriter& message, Operation& op, std::uint64_t sequence) {
  const trace::Span span(trace::What::push, op.epoch, 0);
  const auto bits = op.input_slice(0).bits();
  const std::uint64_t bytes = op.layout.tensor_bytes();
  const wire::Header header{.flags = wire::kHasBitmap,
                            .epoch = op.epoch,
                            .sequence = sequence,
                            .bitmap_bytes = static_cast<std::uint32_t>(bits.size_bytes()),
                            .payload_bytes = static_cast<std::uint32_t>(bytes)};
  return message.put(&header, sizeof header) && message.put(&op.record, sizeof op.record) &&
         message.put(bits.data(), bits.size_bytes()) && message.put(op.input.base, bytes);
}

std::uint64_t write_section(MessageBuilder& message, Contribution& c, const SectionParts& parts) {
  Operation& op = *c.operation;
  const trace::Span span(trace::What::push, op.epoch, c.slice);
  const std::uint64_t staged = message.staged();
  const auto bits = parts.bitmap ? bitmap_of(c) : std::span<const std::uint64_t>();
  wire::Header header;
  std::byte* const header_at = begin_section(message, c, header, parts);
  header.bitmap_bytes = static_cast<std::uint32_t>(bits.size_bytes());
  if (header_at == nullptr || !message.put(bits.data(), bits.size_bytes()) ||
      (op.refusal && !write_refusal(message, header, *op.refusal))) {
    message.take_back_to(staged);
    return 0;
  }
  if (!op.refusal && parts.data)
    header.payload_bytes = static_cast<std::uint32_t>(write_data(message, c, message.room()));
  if (message.limits().streamed) header.flags |= wire::kStreamed;
  return end_section(message, header_at, header);
}

}  // namespace nzcl::engine

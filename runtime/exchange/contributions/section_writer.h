// Writes this rank's contributions into messages, section by section.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/channel/message_builder.h"
#include "runtime/operation/operation.h"
#include "runtime/wire/message.h"

namespace nzcl::engine {

/// What this rank contributes to one slice, and how much of it has been put into messages.
struct Contribution {
  Contribution() = default;
  /// Precondition: the slice has been scanned.
  Contribution(Operation& op, std::uint64_t slice_number, std::uint64_t sequence_number)
      : operation(&op), slice(slice_number), sequence(sequence_number) {
    if (op.layout.tiled()) {
      tiles = op.layout.tiles_of(slice_number);
    } else {
      walk = op.input_walk(slice_number);
      stream_bytes = op.input_slice(slice_number).stream_bytes();
    }
  }

  bool sent() const { return sent_bytes == stream_bytes && sent_tiles == tiles; }
  /// Notes that nothing of it has to be sent any more.
  void set_sent() { sent_bytes = stream_bytes, sent_tiles = tiles; }

  Operation* operation = nullptr;
  std::uint64_t slice = 0;
  std::uint64_t sequence = 0;
  RunWalk walk;
  std::uint64_t stream_bytes = 0, sent_bytes = 0;
  std::uint64_t tiles = 0, sent_tiles = 0;  // of a tiled operation, in place of the stream
};

/// Returns the size of a section that holds the whole contribution to this slice, in bytes. Precondition: the
/// slice has been scanned.
inline std::uint64_t whole_section_bytes(Operation& op, std::uint64_t slice) {
  const SliceView view = op.input_slice(slice);
  const std::uint64_t reason = op.refusal ? op.refusal->bytes() : 0;
  return wire::kMaxOverhead + view.bits().size_bytes() + view.stream_bytes() + reason;
}

/// What a section is to contain.
struct SectionParts {
  /// The operation's record and the slice's bitmap, which are in the slice's first section.
  bool bitmap = false;
  bool data = false;         // as much of the stream as fits the message
  std::uint16_t credit = 0;  // see wire::Header::credit
};

/// Begins a section, where one may begin, with a header, and the operation's record if it is the slice's
/// first one. Returns where the header has to be written when the rest of the section is known, or nullptr if
/// the message has no room.
[[nodiscard]] std::byte* begin_section(MessageBuilder& message, const Contribution& contribution,
                                       wire::Header& header, const SectionParts& parts);

/// Ends a section, and returns its size, with data that is gathered.
std::uint64_t end_section(MessageBuilder& message, std::byte* at, const wire::Header& header);

/// Writes why this rank takes part without data, and notes it in the header. Returns false, and writes
/// nothing, if the message has no room.
[[nodiscard]] bool write_refusal(MessageBuilder& message, wire::Header& header, const wire::Refusal& refusal);

/// Writes a message of one section: the whole tensor of an operation of one slice, with a bitmap that says
/// so. Returns false if it has no room, and is of no use then. Precondition: all blocks are present, in a
/// whole tensor, and the request is not refused.
[[nodiscard]] bool write_tensor(SlotWriter& message, Operation& operation, std::uint64_t sequence);

/// Appends a section to the message. Short runs are copied, and long ones become entries of its gather list.
/// Returns its size, or 0 if the message has no room for all but the data; it is left as it was then.
[[nodiscard]] std::uint64_t write_section(MessageBuilder& message, Contribution& contribution,
                                          const SectionParts& parts);

}  // namespace nzcl::engine

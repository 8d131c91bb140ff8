// Reads a message section by section. Every length is checked before anything behind it is touched.
#pragma once

#include <cstring>
#include <optional>

#include "runtime/wire/checks.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"

namespace nzcl::wire {

/// One section, which lies completely inside its slot. The pointers lead into the slot.
struct Section {
  Header header;
  OperationRecord record;  // upwards with kHasBitmap
  const std::byte* bitmap = nullptr;
  const std::byte* payload = nullptr;
  std::uint64_t bytes = 0;  // of the whole section
};

/// Checks the form of a message, but not its meaning: magic number, version, flags, lengths, and the number
/// of sections. What a section says about slices and operations, the caller has to check.
class SectionReader {
 public:
  /// `at` is where the next section begins, for a caller that resumes in the middle of a message.
  SectionReader(const std::byte* slot, std::uint64_t slot_bytes, Direction direction, std::uint64_t at = 0)
      : slot_(slot), slot_bytes_(slot_bytes), direction_(direction), at_(at) {}

  /// Returns the next section, or nothing behind the last one and where the message is malformed. wrong()
  /// tells these apart.
  std::optional<Section> next() {
    if (!more_) return std::nullopt;
    more_ = false;
    Section s;
    wrong_ = read_header(s.header);
    if (wrong_ != nullptr) return std::nullopt;
    const std::byte* begin = slot_ + at_ + sizeof(Header);
    if (direction_ == Direction::up && (s.header.flags & kHasBitmap) != 0) {
      std::memcpy(&s.record, begin, sizeof s.record);
      begin += sizeof s.record;
    }
    s.bitmap = begin;
    s.payload = s.bitmap + s.header.bitmap_bytes;
    s.bytes = static_cast<std::uint64_t>(s.payload + s.header.payload_bytes - (slot_ + at_));
    more_ = (s.header.flags & kMore) != 0;
    at_ = aligned_section(at_ + s.bytes);
    return s;
  }

  /// Returns what is wrong with the message, as a part of a sentence, or nullptr if nothing has been found so
  /// far.
  const char* wrong() const { return wrong_; }
  /// Whether another section follows the one that next() returned last, and where it begins in the slot.
  bool more() const { return more_; }
  std::uint64_t at() const { return at_; }
  /// Returns the sequence from the last header that was read, for error messages.
  std::uint64_t sequence() const { return sequence_; }

 private:
  const char* read_header(Header& header) {
    if (++sections_ > kMaxSections || at_ > slot_bytes_ || slot_bytes_ - at_ < sizeof header)
      return "another section is announced where none can be";
    std::memcpy(&header, slot_ + at_, sizeof header);
    sequence_ = header.sequence;
    return wrong_with(header, direction_, at_, slot_bytes_);
  }

  const std::byte* slot_;
  const std::uint64_t slot_bytes_;
  const Direction direction_;
  std::uint64_t at_;
  std::uint32_t sections_ = 0;
  bool more_ = true;
  const char* wrong_ = nullptr;
  std::uint64_t sequence_ = 0;
};

}  // namespace nzcl::wire

// Writes into the memory of one message, and never behind its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nzcl::engine {

/// Hands out the bytes of a message, one part behind the other. Nobody composes a message in another way, so
/// what a writer has not counted, or has counted wrongly, cannot get into the memory behind: there is no
/// room, and the writer is told so. It owns nothing. For one thread.
class SlotWriter {
 public:
  SlotWriter() = default;
  SlotWriter(std::byte* begin, std::uint64_t capacity) : begin_(begin), capacity_(capacity) {}

  std::byte* begin() const { return begin_; }
  /// Bytes that were taken, and that are left.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t room() const { return capacity_ - bytes_; }
  /// Where the next part begins. Up to room() bytes may be written there before they are taken.
  std::byte* next() const { return begin_ + bytes_; }

  /// Takes the next bytes, which the caller writes. Returns nullptr, and takes nothing, if there is no room
  /// for them.
  [[nodiscard]] std::byte* take(std::uint64_t bytes) {
    if (bytes > room()) return nullptr;
    std::byte* const at = next();
    bytes_ += bytes;
    return at;
  }
  /// Takes bytes and copies `data` there. Returns false, and takes nothing, if there is no room for them.
  [[nodiscard]] bool put(const void* data, std::uint64_t bytes) {
    std::byte* const at = take(bytes);
    if (at == nullptr) return false;
    if (bytes > 0) std::memcpy(at, data, bytes);
    return true;
  }
  /// Fills up with zeros until `bytes` bytes are taken in all. Returns false, and takes nothing, if there is
  /// no room for them.
  [[nodiscard]] bool fill_up_to(std::uint64_t bytes) {
    const std::uint64_t filler = bytes - bytes_;
    std::byte* const at = take(filler);
    if (at == nullptr) return false;
    std::memset(at, 0, filler);
    return true;
  }
  /// A writer for what is left.
  SlotWriter rest() const { return {next(), room()}; }
  /// Gives back what was taken last, so that `bytes` bytes are taken.
  void take_back_to(std::uint64_t bytes) { bytes_ = bytes; }

 private:
  std::byte* begin_ = nullptr;
  std::uint64_t capacity_ = 0, bytes_ = 0;
};

}  // namespace nzcl::engine

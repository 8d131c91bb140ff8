// The part of a packed result that the caller has given no room for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace nzcl::engine {

/// Keeps what lies behind the end of a packed output until the caller has made room for it. It allocates and
/// locks, which is why callers should give enough room. Thread-safe.
class PackedOverflow {
 public:
  /// Keeps `bytes` that belong `offset` bytes behind the end of the output.
  void write(std::uint64_t offset, std::span<const std::byte> bytes) {
    const std::scoped_lock lock(mutex_);
    if (bytes_.size() < offset + bytes.size()) bytes_.resize(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  /// All of it. Nobody may write any more.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  std::vector<std::byte> bytes_;
};

}  // namespace nzcl::engine

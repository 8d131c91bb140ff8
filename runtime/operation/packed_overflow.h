// A packed result for which the caller has not given enough room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace nzcl::engine {

/// Keeps what lies behind the end of a packed output until the caller has made room for it: values, and the
/// numbers of their blocks. It allocates and locks, which is why callers should give enough room.
class PackedOverflow {
 public:
  // --- While the operation runs, from any thread.
  /// Keeps `bytes` that belong `offset` bytes behind the end of the output.
  void write(std::uint64_t offset, std::span<const std::byte> bytes) {
    const std::scoped_lock lock(mutex_);
    if (bytes_.size() < offset + bytes.size()) bytes_.resize(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  /// Keeps the numbers of as many blocks as there are `offsets`, which begin `position` blocks behind the end
  /// of the output: `first` and each of the offsets together.
  void write_indices(std::uint64_t position, std::uint64_t first, std::span<const std::uint16_t> offsets) {
    const std::scoped_lock lock(mutex_);
    if (indices_.size() < position + offsets.size()) indices_.resize(position + offsets.size());
    for (const std::uint16_t offset : offsets)
      indices_[position++] = static_cast<std::int64_t>(first + offset);
  }

  // --- When the operation has finished, from one thread at a time.
  /// Keeps a copy of the output too, so that the caller may free, move or overwrite it. Only the first call
  /// reads the output, because the caller may have done so after it.
  void keep_output(std::span<const std::byte> output) {
    if (output_) return;
    auto copy = std::make_unique_for_overwrite<std::byte[]>(output.size());
    std::ranges::copy(output, copy.get());
    output_ = std::move(copy);
    output_bytes_ = output.size();
  }
  /// Writes the values of the whole result, and forgets them. Precondition: keep_output().
  void move_to(std::byte* to) {
    std::copy_n(output_.get(), output_bytes_, to);
    std::ranges::copy(bytes_, to + output_bytes_);
    output_.reset();
    bytes_ = {};
  }

  /// The numbers of the blocks that lie behind the end of the output.
  std::span<const std::int64_t> indices() const { return indices_; }

 private:
  std::mutex mutex_;
  std::vector<std::byte> bytes_;
  std::vector<std::int64_t> indices_;
  std::unique_ptr<std::byte[]> output_;
  std::size_t output_bytes_ = 0;
};

}  // namespace nzcl::engine

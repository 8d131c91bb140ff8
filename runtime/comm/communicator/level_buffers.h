// Registered memory for what a step of a packed sum leaves to the next one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "nzcl/packed_memory.h"
#include "runtime/comm/session/registrations.h"

namespace nzcl::comm {

/// Packed blocks with their indices. It grows, and is registered when that is asked for.
class LevelBuffer {
 public:
  using Register = std::function<std::shared_ptr<Registration>(void* data, std::size_t bytes)>;

  std::byte* values() { return values_.get(); }
  std::uint64_t capacity() const { return indices_.size(); }  // in the blocks that it was made room for
  std::vector<std::int64_t>& indices() { return indices_; }
  /// Makes room for so many blocks. What is in the buffer is lost if it is too small.
  PackedMemory make_room(std::uint64_t blocks, std::uint64_t block_bytes) {
    const std::size_t bytes = blocks * block_bytes;
    if (bytes > bytes_) {
      registration_.reset();
      bytes_ = std::bit_ceil(bytes);
      values_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    }
    indices_.resize(blocks);
    return {.values = values_.get(), .indices = indices_.data()};
  }
  void make_registered(const Register& register_memory) {
    if (!registration_ && bytes_ > 0) registration_ = register_memory(values_.get(), bytes_);
  }

 private:
  std::unique_ptr<std::byte[]> values_;
  std::size_t bytes_ = 0;
  std::vector<std::int64_t> indices_;
  std::shared_ptr<Registration> registration_;
};

/// Keeps buffers for the next sums, so that few of them register anything. Thread-safe.
class LevelBuffers {
 public:
  using Register = LevelBuffer::Register;

  explicit LevelBuffers(Register register_memory) : register_memory_(std::move(register_memory)) {}
  std::unique_ptr<LevelBuffer> take() {
    const std::scoped_lock lock(mutex_);
    if (spare_.empty()) return std::make_unique<LevelBuffer>();
    auto buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  void give_back(std::unique_ptr<LevelBuffer> buffer) {
    const std::scoped_lock lock(mutex_);
    spare_.push_back(std::move(buffer));
  }
  const Register& register_memory() const { return register_memory_; }

 private:
  const Register register_memory_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LevelBuffer>> spare_;
};

}  // namespace nzcl::comm

// Memory that one object leaves to the next.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

namespace nzcl {

/// Keeps the last large piece of memory that was given back, for the next one who wants no more than that.
/// The system takes pages back from large pieces that are freed, and has to clear others for the next
/// operation, which takes about as long as to write them once more. Any thread may call it.
class SpareMemory : public std::enable_shared_from_this<SpareMemory> {
 public:
  struct GiveBack {
    std::shared_ptr<SpareMemory> keeper;  // nullptr: it is freed
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const {
      std::unique_ptr<std::byte[]> piece(memory);
      if (keeper) keeper->keep(std::move(piece), bytes);
    }
  };
  using Piece = std::unique_ptr<std::byte[], GiveBack>;

  /// Memory that nobody keeps.
  static Piece make(std::size_t bytes) { return {new std::byte[bytes], GiveBack{nullptr, bytes}}; }
  /// Returns memory of at least so many bytes, with arbitrary content. Throws std::bad_alloc.
  Piece take(std::size_t bytes) {
    if (bytes < kLeastKept) return make(bytes);
    {
      const std::scoped_lock lock(mutex_);
      if (bytes <= kept_bytes_)
        return {kept_.release(), GiveBack{shared_from_this(), std::exchange(kept_bytes_, 0)}};
    }
    return {new std::byte[bytes], GiveBack{shared_from_this(), bytes}};
  }

 private:
  /// Smaller pieces stay with malloc() anyway.
  static constexpr std::size_t kLeastKept = 1 << 20;

  /// The smaller piece of the two is freed, when the lock is no longer held.
  void keep(std::unique_ptr<std::byte[]> piece, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    if (bytes < kept_bytes_) return;
    kept_.swap(piece);
    kept_bytes_ = bytes;
  }

  std::mutex mutex_;
  std::unique_ptr<std::byte[]> kept_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace nzcl

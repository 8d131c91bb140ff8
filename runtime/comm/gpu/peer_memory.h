// Memory of a GPU that the GPUs of the host's other ranks read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/gpu/peer_board.h"
#include "runtime/gpu/gpu.h"

namespace nzcl::comm {

/// One piece of it, for one operation at a time, and the words of pinned memory by which the GPU is told what
/// becomes of the operation. Owned by PeerMemory.
class PeerSlot {
 public:
  /// Throws Error{system, unsupported} if there is no memory, or none that others may read.
  PeerSlot(std::shared_ptr<gpu::Gpu> gpu, const gpu::Shape& shape, std::uint64_t slices_each, int rank);
  /// Frees all. Nothing may use it any more.
  ~PeerSlot();
  PeerSlot(const PeerSlot&) = delete;
  PeerSlot& operator=(const PeerSlot&) = delete;

  struct Words {
    gpu::PeerTable table;
    std::uint32_t go[2];   // before the sum, and before its result is placed
    std::uint32_t summed;  // by this rank
  };
  std::byte* contribution() const { return memory_; }
  std::byte* results() const { return memory_ + results_at_; }
  std::uint64_t* bits() const { return reinterpret_cast<std::uint64_t*>(memory_ + bits_at_); }
  Words& words() const { return *reinterpret_cast<Words*>(pinned_.host); }
  template <typename T>
  T* seen(T* at) const {
    return pinned_.seen(at);
  }
  std::uint64_t bytes() const { return bytes_; }

  PublishedSlot published;
  std::uint32_t number = 0;                // on the board
  std::uint32_t use = 0;                   // how often it has been used
  std::optional<std::uint64_t> last = {};  // the epoch of its last use

 private:
  const std::shared_ptr<gpu::Gpu> gpu_;
  const std::uint64_t results_at_, bits_at_, bytes_;
  std::byte* memory_ = nullptr;
  gpu::PinnedMemory pinned_;
};

/// The slots of this rank, and those of the others as its GPU reads them. All that may wait for the GPU is
/// done by calls that begin operations: what others have published is opened there. So the first operations
/// of a size find that not all ranks have opened the slot of all, and are summed on the host. Thread-safe.
class PeerMemory {
 public:
  explicit PeerMemory(std::shared_ptr<PeerBoard> board);
  /// Frees this rank's slots, but for those that were lost.
  ~PeerMemory();

  PeerBoard& board() { return *board_; }
  /// Opens what the other ranks have published. Then returns a slot that is large enough, that all of them
  /// have opened, and that none of them reads; or nothing, after which there may be one at the next call.
  std::unique_ptr<PeerSlot> take(const std::shared_ptr<gpu::Gpu>& gpu, const gpu::Shape& shape,
                                 std::uint64_t slices_each);
  /// `last`: the operation for which it has been voted, if it has been.
  void give_back(std::unique_ptr<PeerSlot> slot, std::optional<std::uint64_t> last);
  /// Keeps a slot for ever to which the GPU may still write, because a stream has not come so far.
  static void lose(std::unique_ptr<PeerSlot> slot);
  /// Where the slots lie that the ranks have voted for, if they are as large as such a tensor needs. As the
  /// board says the same to all ranks, all get an answer or none does.
  std::optional<gpu::PeerTable> table(const PeerBoard::Slots& slots, const gpu::Shape& shape,
                                      std::uint64_t slices_each) const;
  /// Closes what belongs to other ranks. Nothing may read it any more. take() returns nothing from then on.
  void close();

 private:
  struct Opened {
    PublishedSlot slot;
    std::byte* at = nullptr;
  };
  void open_published();
  void make(const gpu::Shape& shape, std::uint64_t slices_each);
  void give_up(const std::string& why);

  const std::shared_ptr<PeerBoard> board_;
  mutable std::mutex mutex_;  // of all below
  std::shared_ptr<gpu::Gpu> gpu_;
  std::vector<std::unique_ptr<PeerSlot>> slots_;  // that are not in use
  std::vector<std::vector<Opened>> opened_;       // by rank
  std::uint64_t bytes_ = 0;                       // of all slots
  bool ended_ = false;                            // take() does nothing any more
};

}  // namespace nzcl::comm

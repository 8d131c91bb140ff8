// A sum that the GPUs of a host's ranks make, on one of these ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/comm/gpu/peer_memory.h"
#include "runtime/gpu/gpu.h"

namespace nzcl::comm {

/// What is summed, and where its result belongs on this rank.
struct PeerTensor {
  gpu::Shape shape;
  gpu::SumType type{};
  gpu::SumOp op{};
  std::byte* output = nullptr;
  std::uint64_t* union_bits = nullptr;  // of the blocks of all slices; in pinned memory, as the GPU sees it
  bool in_place = false;
};

/// It has a slot, into which the caller's stream packs this rank's contribution. Then it begins: it gives the
/// GPU all that it has to do, and after that only changes words of memory. The staging thread calls step();
/// the other calls are made by one thread at a time as well.
class PeerSum {
 public:
  enum class State : std::uint8_t {
    open,      ///< not all ranks have called, or this rank's contribution is not there
    declined,  ///< some rank has not voted for it: the host sums
    agreed,    ///< the GPUs sum
    known      ///< all results are there, and the GPU places them
  };
  /// Returns nothing if the ranks have no slots for such a tensor yet, or cannot have any.
  static std::unique_ptr<PeerSum> make(std::shared_ptr<PeerMemory> memory,
                                       const std::shared_ptr<gpu::Gpu>& gpu, const PeerTensor& tensor);
  /// Gives the slot back, or keeps it for ever if the GPU may still write there.
  ~PeerSum();
  PeerSum(const PeerSum&) = delete;
  PeerSum& operator=(const PeerSum&) = delete;

  /// From now on the GPU uses the slot.
  void begin_use();
  /// Where the caller's stream has to pack the contribution, all blocks at their places, and its bits.
  std::byte* contribution() const { return slot_->contribution(); }
  std::uint64_t* bits() const { return slot_->bits(); }

  /// Puts sum and result into the stream. Throws Error, after which give_up() has to be called.
  void begin(gpu::Stream stream);
  /// A kernel behind begin() in the stream has to do nothing unless the word has this value, which it gets
  /// when the sum is declined.
  const std::uint32_t* declined_word() const { return slot_->seen(&slot_->words().go[0]); }
  std::uint32_t declined_value() const { return value() + 1; }

  void vote(std::uint64_t epoch);
  /// `packed`: the caller's stream has packed the contribution. Returns whether anything has changed.
  bool step(bool packed);
  State state() const { return state_; }
  /// Which other ranks it waits for, and for what, as the beginning of a sentence; empty if for none.
  std::string awaited() const;
  /// Lets the stream go on without a result, if it has not got one.
  void give_up();
  /// The GPU does nothing here any more; `packed` as above.
  void release(bool packed);

 private:
  PeerSum(std::shared_ptr<PeerMemory> memory, std::unique_ptr<PeerSlot> slot, std::shared_ptr<gpu::Gpu> gpu,
          const PeerTensor& tensor);
  /// What words are set to in this use: to go on; to leave the sum to the host; to do nothing at all.
  std::uint32_t value() const { return 4 * slot_->use; }
  void go_on(std::size_t word, std::uint32_t value);
  bool decide();
  bool go_on_if_ready();
  std::uint64_t what() const;

  const std::shared_ptr<PeerMemory> memory_;
  std::unique_ptr<PeerSlot> slot_;
  const std::shared_ptr<gpu::Gpu> gpu_;
  const PeerTensor tensor_;
  State state_ = State::open;
  std::optional<std::uint64_t> epoch_;  // once it has voted
  bool in_use_ = false, noted_packed_ = false, noted_summed_ = false;
  static constexpr std::size_t kWords = 2;
  std::size_t gone_on_ = 0;  // of the words for which the stream waits, so many have been set
};

}  // namespace nzcl::comm

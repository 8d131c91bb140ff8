// What the ranks of a host tell each other about sums that their GPUs make: words of memory that all share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "runtime/bootstrap/rounds.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/kernels/jobs.h"
#include "runtime/plan/membership.h"
#include "verbs/segment/mapping.h"

namespace nzcl::comm {

/// A piece of GPU memory that a rank has published: a contribution from its beginning on, the results of the
/// rank's share, and the bits of the contribution.
struct PublishedSlot {
  gpu::SharedMemory memory;
  std::uint64_t results_at = 0, bits_at = 0;
};

/// Each rank writes its own words only, and each word only grows, so nothing is locked and nothing is ever
/// taken back. Words that belong to an operation are in one of kMaxOperations entries, of which the operation
/// that is so many later takes the same one: it begins when the first is over on that rank.
///
/// Whether an operation is summed by the GPUs is decided by votes: each rank votes for it in its call, or
/// calls without a vote. When all have called, all see the same votes. Thread-safe.
class PeerBoard {
 public:
  static constexpr std::uint32_t kMostSlots = 64;
  enum class Verdict : std::uint8_t { open, no, yes };
  enum class Step : std::uint8_t {
    packed,  ///< the rank's contribution is in its slot
    summed,  ///< and so are the results of its share: it does not read contributions any more
    placed   ///< it does not read results any more
  };
  using Slots = std::array<std::uint32_t, gpu::kMostPeers>;

  /// Collective over the members of `membership`, of which `rounds` are: makes the memory and shares it.
  /// Without dedicated aggregators, on one host, and where all may have a GPU; otherwise it returns nullptr
  /// without a message, and also
  /// if a rank cannot reach the memory: `why_not` is the reason then, the same on all ranks.
  static std::shared_ptr<PeerBoard> share(const engine::Membership& membership, bootstrap::Rounds& rounds,
                                          bootstrap::Deadline deadline, std::string& why_not);
  PeerBoard(const PeerBoard&) = delete;
  PeerBoard& operator=(const PeerBoard&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // --- Slots. One thread at a time.
  /// Returns the number of the slot, or nothing if there is no room for more.
  std::optional<std::uint32_t> publish(const PublishedSlot& slot);
  std::uint32_t published(int rank) const;
  PublishedSlot slot(int rank, std::uint32_t number) const;
  /// This rank has opened so many slots of that one, the first ones.
  void note_opened(int rank, std::uint32_t count);
  /// Whether all ranks have opened this rank's slot.
  bool all_opened(std::uint32_t number) const;

  // --- Operations, by their epochs, which are the same on all ranks.
  /// Votes that the GPUs sum this operation, with this rank's slot. `what` is a number that depends on all
  /// that the ranks have to agree on. It has to come before called().
  void vote(std::uint64_t epoch, std::uint32_t slot, std::uint64_t what);
  /// This rank has called the operation. To be told of every operation of the communicator, in their order.
  void called(std::uint64_t epoch);
  /// `slots` gets the slot of each rank if it is yes.
  Verdict verdict(std::uint64_t epoch, Slots& slots) const;
  void note(Step step, std::uint64_t epoch);
  bool all_have(Step step, std::uint64_t epoch) const;
  /// The ranks that have not called it, or have not come so far, as a list for people.
  std::string not_called(std::uint64_t epoch) const;
  std::string without(Step step, std::uint64_t epoch) const;

 private:
  struct Words;
  PeerBoard(verbs::segment::Mapping memory, int rank, int ranks)
      : memory_(std::move(memory)), rank_(rank), ranks_(ranks) {}
  Words& of(int rank) const;
  bool has(int rank, Step step, std::uint64_t epoch) const;

  const verbs::segment::Mapping memory_;
  const int rank_, ranks_;
};

}  // namespace nzcl::comm

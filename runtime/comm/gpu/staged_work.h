// One operation whose memory is on a GPU, as the staging thread takes it from step to step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/failure.h"
#include "runtime/comm/gpu/staged_list.h"
#include "runtime/operation/operation.h"
#include "runtime/operation/staged_memory.h"

namespace nzcl::comm {

/// The call gives the GPU everything that it has to do: from then on only words of pinned memory change,
/// which say how far the GPU and the host have come. (A driver may refuse to start anything while another
/// thread is in a call that waits for the GPU, as cudaFree() does. So an operation that still had something
/// to start would wait for itself.) The staging thread does the rest, and the lanes say which slices are
/// over. Only enqueue_wait() may come from any thread.
class StagedWork : public engine::StagedMemory {
 public:
  /// Who exchanges the tensor: the operation, whose layout the staging has too, or other operations, which
  /// read and write the whole of it between all_published() and the end of the operation's rest.
  enum class Exchanged : std::uint8_t { by_operation, by_others };
  /// Gives the GPU all that it has to do for the operation that will have this epoch. Without a `bitmap`, it
  /// finds out which blocks of a tensor are not zero; with one it takes those that are set, and `all` stands
  /// for all of them. Throws Error, after which the operation is of no use.
  virtual void begin(std::uint64_t epoch, std::span<const std::uint64_t> bitmap, bool all) = 0;
  /// The operation that has begun has this epoch. Called before publish(), in the order of epochs.
  virtual void called(std::uint64_t /*epoch*/) {}
  /// Publishes what has come of the input, and notes whether the caller's stream has. Returns true if
  /// anything has changed.
  virtual bool publish(engine::Operation& operation) = 0;
  /// The list that has come for an operation whose tensor other operations exchange, if it has one. Throws
  /// Error{system} if there was no memory for it.
  virtual std::optional<HostList> list_for_others() const { return std::nullopt; }
  /// Whether nothing is left for publish(): the caller's stream has come to the operation.
  virtual bool all_published() const = 0;
  /// Whether the caller's stream has come to the operation. If it comes late, that is this rank's fault.
  virtual bool stream_has_come() const { return all_published(); }
  /// Whether GPUs of other ranks may wait for this one, even if the lanes are done with the operation.
  virtual bool peers_wait() const { return false; }
  /// What other ranks have not done for whom this one waits outside of the lanes, as the beginning of a
  /// sentence, or an empty string.
  virtual std::string awaited_of_peers() const { return {}; }
  /// Whether the GPUs have summed it.
  virtual bool summed_by_gpus() const { return false; }
  /// How many bytes the transport has taken from memory of the GPU, or written there, itself.
  virtual std::uint64_t far_bytes() const { return 0; }
  /// The first block, of those that this rank's input has, that a bitmap hides although it is not zero. It is
  /// found only if it was asked for, and known when all is published.
  virtual std::optional<std::uint64_t> hidden_block() const { return std::nullopt; }
  /// Lets the GPU go on with what the exchange has come to, or, if the operation is `lost`, without a result.
  /// Called once, when the lanes are done, and all is published or the operation is lost. Returns why there
  /// is no result, if that is only known here.
  virtual std::optional<Failure> place_rest(engine::Operation& operation, bool lost) = 0;
  virtual bool is_placed() const = 0;
  /// Why the GPU does no more work, if that is so.
  virtual std::optional<std::string> why_broken() const = 0;
  /// The last step: lets all streams go on that wait for the operation, whatever has become of it, and gives
  /// its memory to others.
  virtual void release() = 0;
};

}  // namespace nzcl::comm

// The operations of a communicator, from the call that starts them until they have finished.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/bootstrap/control.h"
#include "runtime/comm/communicator/reassignment.h"
#include "runtime/comm/request/kept_request.h"
#include "runtime/lane/lane.h"
#include "runtime/operation/operation.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {

/// Numbers the operations. Since all ranks start them in the same order, an operation has the same number,
/// its *epoch*, on every rank. At most kMaxOperations are in flight.
///
/// A thread that starts an operation holds `mutex()` from next_epoch() until all lanes know the operation, so
/// that every lane sees the operations in the order of their epochs. Calls under "Locked" must be made with
/// the mutex held; the others lock it themselves.
class OperationTable {
 public:
  std::mutex& mutex() { return mutex_; }

  // --- Locked.
  std::uint64_t next_epoch() const { return next_epoch_; }
  std::uint32_t next_index() const { return index_of(next_epoch_); }
  /// Returns the operation that has to finish before another one can start, or nullptr if there is room.
  std::shared_ptr<engine::Operation> blocker() const;
  /// Drops the references to the oldest operations, as far as they have finished, so that the next one can
  /// have their memory. Returns the last of them if it is small: the caller destroys it when the next one is
  /// on its way, because until then nothing else should take time.
  std::shared_ptr<engine::Operation> forget_finished();
  /// Throws Error{invalid_usage} if an operation in flight reads or writes the memory that is to be written,
  /// or writes the memory that is to be read. The text begins with the name of the `call`.
  void check_conflicts(std::string_view call, std::span<const std::byte> input,
                       std::span<const std::byte> output);
  /// Precondition: blocker() is nullptr, and the operation has the next epoch.
  /// `kept` is the operation's request, if it may have to begin once more.
  void add(std::shared_ptr<engine::Operation> operation, std::span<const std::byte> input,
           std::span<const std::byte> output, std::shared_ptr<const KeptRequest> kept);
  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  std::vector<std::shared_ptr<engine::Operation>> all() const;
  /// Of an operation that has not been forgotten, and its request if that was kept.
  const std::shared_ptr<engine::Operation>& operation(std::uint64_t epoch) const {
    return entries_[index_of(epoch)].operation;
  }
  const std::shared_ptr<const KeptRequest>& kept(std::uint64_t epoch) const {
    return entries_[index_of(epoch)].kept;
  }
  OperationsInFlight in_flight() const;

  // --- Not locked.
  /// An operation in flight that check_conflicts() would name, or nullptr.
  std::shared_ptr<engine::Operation> conflicting(std::span<const std::byte> input,
                                                 std::span<const std::byte> output);
  bool is_closed();
  /// Blocks while another call has the mutex.
  bootstrap::Progress progress();
  /// Returns how long this lane may stand still, if it has not moved since `otherwise.since`: the timeout
  /// that ends first among those of the operations on it. Returns `otherwise` if only other members'
  /// operations are under way, and nothing if another call holds the mutex, which is over soon. Does not
  /// block.
  std::optional<engine::Patience> patience(std::uint32_t lane, std::uint32_t lanes,
                                           engine::Patience otherwise);
  /// Fails all operations that have not finished. No lane may touch an operation any more.
  void fail_all(const Failure& failure);
  /// Lets finished operations release their memory regions. The lane that finishes an operation does not do
  /// so, because deregistering is slow and would delay its other work. The thread that waits for the
  /// operation does it, or, for operations that nobody waits for, the thread of an idle lane through this
  /// call.
  void release_finished();

 private:
  struct Entry {
    std::shared_ptr<engine::Operation> operation;
    std::span<const std::byte> input, output;
    std::shared_ptr<const KeptRequest> kept;
    /// When patience() first saw the operation; its timeout counts from then on. That is a moment after the
    /// call, which would take longer if it read the clock.
    verbs::Clock::time_point seen{};
  };
  static std::uint32_t index_of(std::uint64_t epoch) {
    return static_cast<std::uint32_t>(epoch % engine::kMaxOperations);
  }
  const Entry* find_conflict(std::span<const std::byte> input, std::span<const std::byte> output) const;

  std::mutex mutex_;
  std::uint64_t next_epoch_ = 0;
  std::uint64_t wanted_ = 0;  // operations up to the last one that was not refused here
  std::uint64_t oldest_ = 0;  // all operations before it have finished and were forgotten
  std::array<Entry, engine::kMaxOperations> entries_;
  bool closed_ = false;
};

}  // namespace nzcl::comm

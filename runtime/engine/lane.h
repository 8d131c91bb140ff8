// Drives one endpoint and the engines behind it. The only place where protocol meets I/O.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/bootstrap/control.h"
#include "runtime/engine/aggregator.h"
#include "runtime/engine/doorbell.h"
#include "runtime/engine/lane_context.h"
#include "runtime/engine/lane_memory.h"
#include "runtime/engine/worker.h"
#include "verbs/transport.h"

namespace nzcl::engine {

struct LaneOptions {
  EngineConfig config;
  std::chrono::nanoseconds timeout{};  // without progress for this long, an operation fails
  std::chrono::nanoseconds spin{};     // how long a driver may poll without giving way
  std::function<void(const bootstrap::Failure&)> on_failure;  // once, by the driver; must not block
};

/// Threads: whoever gets `drive_` makes a round: the lane's own thread (run), or a caller that waits for an
/// operation (drive), so that a small operation costs no thread switch. While callers drive, the lane's
/// thread stands back.
class Lane {
 public:
  Lane(const LaneOptions& options, std::shared_ptr<verbs::Device> device);
  ~Lane();

  /// What member `peer` needs to connect to this lane; then connect() with all members' answers for this one.
  std::string address_for(int peer);
  void connect(std::span<const std::string> addresses, verbs::Deadline deadline);

  /// Takes part in `operation`, of which this lane owns a slice, until it has finished; the caller keeps it
  /// alive until then. Any thread; calls in epoch order.
  void submit(Operation* operation);
  /// One round if nobody else is driving. True if anything moved.
  bool drive();
  /// Driving on a caller's behalf: between enter_caller and leave_caller the lane's own thread stands back.
  void enter_caller() noexcept { callers_.fetch_add(1, std::memory_order_relaxed); }
  void leave_caller() noexcept { callers_.fetch_sub(1, std::memory_order_relaxed); }
  /// Sleeps until something may have happened, at most `at_most`.
  void sleep(std::chrono::nanoseconds at_most);
  void ring() noexcept { doorbell_.ring(); }

  /// The lane's thread. Returns when asked to, or after halt().
  void run(std::stop_token stop);
  /// The communicator has failed: no more rounds.
  void halt() noexcept;
  /// After halt() or when no operation is left: one round that posts nothing and forgets what comes, until
  /// the last write's completion is in. Peers may depend on it until they have drained too. True: nothing of
  /// this lane is under way any more.
  bool drain();
  /// Ends all traffic: afterwards nothing is posted, and (as far as the transport can promise) nothing of a
  /// peer's lands.
  void shut_down();

  const LaneStatistics& statistics() const { return context_.statistics; }

 private:
  bool round();
  void dispatch(const verbs::Completion& completion);
  void arrived(std::uint32_t immediate);
  void written(std::uint64_t context);
  void take_submissions();
  void post();
  void check_timeout(bool moved);
  bool active(wire::Class c) const;
  void wake(wire::Class c) { at_rest_[static_cast<std::size_t>(c)] = false; }
  Worker* worker(wire::Class c) { return workers_[static_cast<std::size_t>(c)].get(); }

  const LaneOptions options_;
  std::shared_ptr<verbs::Device> device_;
  LaneContext context_;
  LaneMemory memory_;
  std::unique_ptr<verbs::Endpoint> endpoint_;
  // By class; workers only in workers, aggregators only where one lives.
  std::array<std::unique_ptr<Worker>, wire::kClasses> workers_;
  std::array<std::unique_ptr<Aggregator>, wire::kClasses> aggregators_;
  std::array<Operation*, kMaxOperations> operations_{};  // by table index

  std::mutex drive_;  // held for a round; never waited for on the data path
  std::mutex submit_mutex_;
  std::vector<Operation*> submissions_;
  std::atomic<bool> has_submissions_{false};
  Doorbell doorbell_;
  std::atomic<bool> sleeping_{false};
  std::atomic<int> callers_{0};
  std::atomic<std::uint32_t> caller_rounds_{0};
  std::atomic<bool> is_active_{false};
  std::atomic<bool> halted_{false};
  // By class: its engines moved nothing when they were last stepped, and only a completion or a submission
  // can change that. Express slices wait for nothing else; bulk ones may also wait for scan threads and other
  // lanes, and are at rest only when there are none. Who polls for a small operation mostly looks at the
  // endpoint.
  std::array<bool, wire::kClasses> at_rest_{};
  std::array<verbs::Completion, 64> completions_;
  bool failure_told_ = false;
  bool has_fd_ = false;  // the transport has a descriptor to sleep on
  std::uint32_t quiet_rounds_ = 0;
  verbs::Clock::time_point last_moved_ = verbs::Clock::now();
  bool moved_since_check_ = false;
};

}  // namespace nzcl::engine

// Drives one endpoint and the exchanges behind it. The only place where protocol meets I/O.
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

#include "runtime/base/failure.h"
#include "runtime/channel/lane_context.h"
#include "runtime/channel/lane_memory.h"
#include "runtime/exchange/exchange.h"
#include "runtime/lane/doorbell.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// A lane that does not move fails when `timeout` has passed since `since`.
struct Patience {
  verbs::Clock::time_point since{};
  std::chrono::nanoseconds timeout{};
  verbs::Clock::time_point end() const { return since + timeout; }
};

struct LaneOptions {
  EngineConfig config;
  std::chrono::nanoseconds timeout{};              // where only others' operations are under way
  std::chrono::nanoseconds spin{};                 // how long a driver may poll without giving way
  std::function<void(const Failure&)> on_failure;  // once, by the driver; must not block
  // Often, by the lane's own thread while there is nothing to do for it or callers drive; holds no lock.
  std::function<void()> on_idle = [] {};
  // What ends first on this lane if it has not moved; nothing: ask again soon. By the driver, in quiet rounds
  // only; must not block. The second argument says what counts where this member has no operation.
  std::function<std::optional<Patience>(int lane, Patience otherwise)> patience =
      [](int, Patience otherwise) { return otherwise; };
};

/// Owns an endpoint, the memory of its channels, and one exchange for each priority. Each *round* polls the
/// endpoint, hands what arrived to the exchanges, lets them work, and posts what they put into the outbox.
///
/// Threads: whoever gets the `drive_` lock makes a round: the lane's own thread in run(), or a caller that
/// waits for an operation in drive(), so that a small operation costs no thread switch. While callers drive,
/// the lane's own thread stands back.
class Lane {
 public:
  Lane(const LaneOptions& options, std::shared_ptr<verbs::Device> device);
  ~Lane();

  /// Returns what member `peer` needs to connect to this lane. connect() then takes all members' answers.
  std::string address_for(int peer);
  void connect(std::span<const std::string> addresses, verbs::Deadline deadline);

  /// Takes part in `operation`, of which this lane owns a slice, until it has finished. The caller keeps it
  /// alive until then. Any thread may call it, in the order of the epochs.
  void submit(Operation* operation);
  /// One round if nobody else is driving. True if anything moved.
  bool drive();
  /// Between these two calls a caller drives, and the lane's own thread stands back.
  void enter_caller() noexcept { callers_.fetch_add(1, std::memory_order_relaxed); }
  void leave_caller() noexcept { callers_.fetch_sub(1, std::memory_order_relaxed); }
  /// Sleeps until something may have happened, at most `at_most`.
  void sleep(std::chrono::nanoseconds at_most);
  void ring() noexcept { doorbell_.ring(); }

  /// The lane's thread. Returns when asked to, or after halt().
  void run(std::stop_token stop);
  /// The communicator has failed: no more rounds.
  void halt() noexcept;
  /// After halt(), or when no operation is left: takes completions and ignores what arrives, but posts
  /// nothing. True: none of this lane's writes is under way any more. It must be called until all members
  /// have drained, because peers may need this lane to poll.
  bool drain();
  /// Ends all traffic. Afterwards nothing is posted, and no write of a peer lands here, as far as the
  /// transport can promise that.
  void shut_down();

  const LaneStatistics& statistics() const { return context_.statistics; }

 private:
  bool round();
  void dispatch(const verbs::Completion& completion);
  void arrived(std::uint32_t immediate);
  const char* take(const wire::Immediate& immediate);
  void written(std::uint64_t context);
  void take_submissions();
  void post();
  void check_timeout(bool moved);
  void report_stall(verbs::Clock::time_point now);
  bool step_exchanges();
  void look_at(wire::Priority p) { at_rest_[static_cast<std::size_t>(p)] = false; }
  Exchange& exchange(wire::Priority p) { return *exchanges_[static_cast<std::size_t>(p)]; }

  const LaneOptions options_;
  std::shared_ptr<verbs::Device> device_;
  LaneContext context_;
  LaneMemory memory_;
  std::unique_ptr<verbs::Endpoint> endpoint_;
  std::array<std::unique_ptr<Exchange>, wire::kPriorities> exchanges_;  // by priority
  std::array<Operation*, kMaxOperations> operations_{};                 // by table index

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
  // By priority: its exchange moved nothing when it was last stepped, and only a completion or a submission
  // can change that. So a caller that polls for a small operation mostly looks at the endpoint alone. Express
  // slices wait for nothing else; bulk ones may also wait for scan threads and for other lanes, so they are
  // at rest only when there are none.
  std::array<bool, wire::kPriorities> at_rest_{};
  std::array<verbs::Completion, 64> completions_;
  bool failure_told_ = false;
  bool has_fd_ = false;  // the transport has a descriptor to sleep on
  std::uint32_t quiet_rounds_ = 0;
  verbs::Clock::time_point last_moved_ = verbs::Clock::now();
  bool moved_since_check_ = false;
};

}  // namespace nzcl::engine

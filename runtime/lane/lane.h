// Drives one endpoint and the exchanges behind it. This is the only place where protocol meets I/O.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/base/try_lock.h"
#include "runtime/channel/lane_context.h"
#include "runtime/channel/lane_memory.h"
#include "runtime/exchange/exchange.h"
#include "runtime/lane/doorbell.h"
#include "runtime/lane/submission_queue.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// How long a lane may stand still: it fails when `timeout` has passed since `since`.
struct Patience {
  verbs::Clock::time_point since{};
  std::chrono::nanoseconds timeout{};
  verbs::Clock::time_point end() const { return since + timeout; }
};

struct LaneOptions {
  EngineConfig config;
  /// Applies while only other members' operations are under way. An operation of this member has a timeout of
  /// its own.
  std::chrono::nanoseconds timeout{};
  std::chrono::nanoseconds spin{};   // how long the lane's thread polls before it yields its core
  std::size_t peer_descriptors = 0;  // as in verbs::EndpointOptions
  /// Called once, by the driver. It must not block.
  std::function<void(const Failure&)> on_failure;
  /// Called often, by the lane's own thread, while the lane has nothing to do or callers drive it. The thread
  /// holds no lock then.
  std::function<void()> on_idle = [] {};
  /// Says how long the lane may stand still, from the timeouts of the operations on it. It returns
  /// `otherwise` if this member has no operation on the lane, and nothing if the answer is not known now;
  /// then the lane asks again soon. Called by the driver, only in rounds in which nothing moved. It must not
  /// block.
  std::function<std::optional<Patience>(int lane, Patience otherwise)> patience =
      [](int, Patience otherwise) { return otherwise; };
};

/// Owns an endpoint, the memory of its channels, and one exchange for each priority. Each *round* polls the
/// endpoint, hands what arrived to the exchanges, lets them work, and posts what they put into the outbox.
///
/// Threads: whoever holds the `drive_` lock makes a round. That is the lane's own thread in run(), or a
/// caller that waits for an operation in drive(), so that a small operation costs no thread switch. While
/// callers drive, the lane's own thread stands back.
class Lane {
 public:
  Lane(const LaneOptions& options, std::shared_ptr<verbs::Device> device);
  ~Lane();

  /// Returns what member `peer` needs to connect to this lane. connect() then takes all members' answers.
  std::string address_for(int peer);
  void connect(std::span<const std::string> addresses, verbs::Deadline deadline);

  /// Takes part in `operation`, of which this lane owns a slice. The caller keeps it alive until it has
  /// finished. Any thread may call this, but the calls must come one after the other, in the order of the
  /// epochs.
  void submit(Operation* operation);
  /// Makes one round, unless another thread is driving. Returns true if anything moved. Whoever has driven
  /// calls hand_back() when it does so no longer.
  bool drive();
  /// Wakes the lane's own thread if it has slept while callers drove, and may have something to do now.
  void hand_back() noexcept {
    if (disturbed_.load(std::memory_order_relaxed)) wake();
  }
  /// Between these two calls a caller drives, and the lane's own thread stands back.
  void enter_caller() noexcept { callers_.fetch_add(1, std::memory_order_relaxed); }
  void leave_caller() noexcept {
    callers_.fetch_sub(1, std::memory_order_relaxed);
    hand_back();
  }
  /// For a caller that drives: sleeps until something may have arrived, at most `at_most`.
  void sleep(std::chrono::nanoseconds at_most);
  /// Makes the lane look once more at what it waits for. Any thread may call it, after it has made something
  /// ready.
  void ring() noexcept;

  /// What the lane's thread runs. Returns when it is asked to stop, or after halt().
  void run(std::stop_token stop);
  /// Called when the communicator has failed: no more rounds are made.
  void halt() noexcept;
  /// Called after halt(), or when no operation is left. Takes completions and ignores what arrives, but posts
  /// nothing. Returns true when none of this lane's writes is under way any more. It must be called until all
  /// members have drained, because peers may need this lane to poll. A round that is being made is waited
  /// for, but not for long.
  bool drain();
  /// Ends all traffic. Afterwards nothing is posted, and no write of a peer lands here, as far as the
  /// transport can promise that. Returns false, and ends nothing, if a thread has not come back from the
  /// transport after kStuckTime; the lane must not be destroyed then.
  [[nodiscard]] bool shut_down();

  // For tests: how often the lane's thread has slept to the end of its time; and how often it has then found
  // something to do, of which it should have been told.
  std::uint64_t slept_out() const { return slept_out_.load(std::memory_order_relaxed); }
  std::uint64_t overslept() const { return overslept_.load(std::memory_order_relaxed); }
  const LaneStatistics& statistics() const { return context_.statistics; }
  StagingSummary staging_summary() const { return context_.staging_summary(); }

 private:
  struct Nap {
    std::chrono::nanoseconds at_most{};
    Descriptors descriptors{-1, -1, -1, -1};
  };
  enum class Slept : std::uint8_t { no, until_woken, to_its_end };

  void wake() noexcept;
  Slept rest(const std::stop_token& stop, std::chrono::nanoseconds quiet);
  std::optional<Nap> plan_nap(std::chrono::nanoseconds quiet);
  std::chrono::nanoseconds longest_nap(std::chrono::nanoseconds quiet) const;
  std::optional<Descriptors> prepare_descriptors();
  bool round();
  void dispatch(const verbs::Completion& completion);
  void arrived(std::uint32_t immediate);
  const char* take(const wire::Immediate& immediate);
  void prefetch(const verbs::Completion& completion);
  void written(std::uint64_t context);
  void take_submissions();
  void post();
  void post_at(verbs::Level level);
  void check_timeout(bool moved);
  void report_stall(verbs::Clock::time_point now);
  bool work();
  void expect_messages();
  bool step_exchanges();
  void look_at(wire::Priority p) { awake_ |= bit_of(p) & existing_; }
  static std::uint8_t bit_of(wire::Priority p) {
    return static_cast<std::uint8_t>(1u << static_cast<unsigned>(p));
  }
  Exchange& exchange(wire::Priority p) { return *exchanges_[static_cast<std::size_t>(p)]; }

  const LaneOptions options_;
  std::shared_ptr<verbs::Device> device_;
  LaneContext context_;
  LaneMemory memory_;
  std::unique_ptr<verbs::Endpoint> endpoint_;
  std::array<std::unique_ptr<Exchange>, wire::kPriorities> exchanges_;  // by priority; some may be missing
  std::array<Operation*, kMaxOperations> operations_{};                 // by Operation::table_index

  TryLock drive_;  // held during a round
  SubmissionQueue submissions_;
  // How the lane's thread sleeps and is woken. It says that it sleeps, looks once more whether there is
  // anything new, and then sleeps; whoever has something new says so, and then looks whether it sleeps. These
  // stores and loads are sequentially consistent, so one of the two sees the other.
  Doorbell doorbell_;
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> rung_{false};       // something may be ready, and no round has looked at it yet
  std::atomic<bool> disturbed_{false};  // a caller has done something since the thread looked last
  bool moved_ = false;                  // in the last round something moved, so there may be more to do
  bool unprompted_ = false;             // and nothing had come that would have woken the lane
  std::atomic<std::uint64_t> slept_out_{0}, overslept_{0};
  std::atomic<int> callers_{0};
  std::atomic<std::uint32_t> caller_rounds_{0};
  std::atomic<bool> is_active_{false};
  std::atomic<bool> halted_{false};
  // Sets of priorities, with a bit for each. An exchange that is not awake moved nothing when it was last
  // stepped, and only a completion or a submission can change that, so it is not stepped. A caller that polls
  // for a small operation then mostly looks at the endpoint alone. Express slices wait for nothing else. Bulk
  // slices, and those that are merged, may also wait for scan threads and for other lanes, so their exchanges
  // go to rest only when they are idle.
  std::uint8_t existing_ = 0;  // those that have an exchange
  std::uint8_t awake_ = 0;
  std::uint8_t busy_ = 0;  // those whose exchange was not idle after it was last stepped
  std::array<verbs::Completion, 64> completions_;
  bool failure_told_ = false;
  bool has_fd_ = false;  // the endpoint is used, and has a file descriptor to sleep on
  std::uint32_t quiet_rounds_ = 0;
  verbs::Clock::time_point last_moved_ = verbs::Clock::now();
  bool moved_since_check_ = false;
};

}  // namespace nzcl::engine

// The implementation of the control plane. control_meeting.cc brings it to life, control.cc serves it, and
// control_succession.cc goes on when the hub has died. README.md in this folder shows the frames.
#pragma once

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <variant>

#include "runtime/bootstrap/control.h"
#include "runtime/bootstrap/control_connection.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/gather_board.h"
#include "runtime/bootstrap/gather_calls.h"
#include "runtime/bootstrap/leave_board.h"
#include "runtime/bootstrap/listener.h"
#include "runtime/bootstrap/reception.h"
#include "runtime/bootstrap/regroup_board.h"
#include "runtime/bootstrap/stream_threads.h"

namespace nzcl::bootstrap {

class StarControl final : public ControlPlane {
 public:
  explicit StarControl(MeetingSettings self, std::string introduction = {});
  ~StarControl() override;
  /// To be called once, before all else.
  void meet(Meeting& meeting, Deadline deadline);

  const std::vector<std::string>& introductions() const override { return introductions_; }
  void settle(Settings settings, Deadline deadline) override;
  std::string open_port(Settings settings) override;
  void settle(const std::vector<std::string>& told) override;
  void watch(std::function<Progress()> progress, std::function<void()> on_failure) override;
  void unwatch() override;
  const std::string& local_address() const override { return local_address_; }
  void abort(Failure failure) override;
  void abort_after(std::chrono::nanoseconds time, Failure failure) override;
  void do_not_abort() override;
  bool failed() const noexcept override { return failed_.load(std::memory_order_acquire); }
  std::optional<Failure> failure() const override;
  void quiesced() override;
  bool wait_quiesced(Deadline deadline) override;
  void has_begun(std::uint64_t operations) override;
  bool leave(Deadline deadline) override;
  std::optional<std::vector<std::string>> gather(const std::string& name, const std::vector<int>& members,
                                                 std::string part, Deadline deadline) override;
  std::optional<std::vector<std::string>> tell_each(const std::string& name, const std::vector<int>& members,
                                                    const Row& row, Deadline deadline) override;
  Regrouping& regrouping() override { return regrouping_; }

  using AnyFrame = std::variant<ControlFrame, GatherFrame, RegroupFrame>;

 private:
  struct Member {
    std::shared_ptr<ControlConnection> connection;
    bool gone = false, quiet = false, bye = false;
    bool dead = false;  // gone, and for certain: it has not only become unreachable
  };

  // --- The meeting, on the caller's thread (control_meeting.cc)
  void receive_members(Meeting& meeting, Deadline deadline);
  void admit(MemberHello hello, std::shared_ptr<Stream> stream);
  void join_hub(Meeting& meeting, Deadline deadline);
  void take_introductions();
  void throw_failure() const;
  template <typename Done>
  bool run_until(Done done, Deadline deadline);
  std::unique_ptr<Listener> listen(const Settings& settings);
  std::string own_address(const Listener* listener) const;
  std::vector<HubAddress> addresses_of(const std::vector<std::string>& told) const;
  /// Both on the control thread.
  void take_settings(Settings settings);
  void take_addresses(std::vector<HubAddress> addresses);

  // --- Connections and their frames, on the control thread (control.cc)
  bool is_hub() const { return self_ == hub_; }
  /// The connection to the hub, if this member has one that is open.
  ControlConnection* to_hub();
  std::shared_ptr<ControlConnection> connect(std::size_t position, std::shared_ptr<Stream> stream);
  asio::awaitable<void> read_loop(std::shared_ptr<ControlConnection> connection, std::size_t index);
  void take_frame(std::size_t index, AnyFrame frame);
  void hub_frame(std::size_t index, const ControlFrame& frame);
  void member_frame(const ControlFrame& frame);
  void gather_frame(std::size_t index, GatherFrame frame);
  void send_answers(const GatherBoard::Answers& answers);
  /// On a caller's thread: sends the part, or the row, and waits for the outcome.
  std::optional<std::vector<std::string>> take_part(GatherFrame frame, Deadline deadline);
  /// On a caller's thread: brings the frame to the hub, which may be this member.
  void send_to_board(GatherFrame frame);
  void tell_hub(const char* type, std::uint64_t operations);
  void tell_all(const char* type, std::uint64_t operations);
  void broadcast(const nlohmann::json& frame);

  // --- Members that leave
  void said_bye(std::size_t index, std::uint64_t begun);
  void check_leaves();
  void check_wanted();
  asio::awaitable<void> finish(std::uint64_t operations);
  void say_quiet();
  void check_all();
  void all_left();
  bool serves(std::size_t index) const { return index < serves_.size() && serves_[index]; }

  // --- Failures
  void lost(std::size_t index, const std::string& why, bool vanished);
  void report(Failure failure);
  void report_to_hub(Failure failure);
  void fail(Failure failure);
  void set_failure(const Failure& failure);
  bool is_failed() const { return failed_.load(std::memory_order_relaxed); }
  /// `flag` is one of those that mutex_ guards.
  bool is_set(const bool& flag) const;
  void set_flag(bool& flag);

  // --- Members that make a communicator in the place of this one (control_regrouping.cc)
  void regroup_frame(std::size_t index, const RegroupFrame& frame);
  void say_regroup_state();
  void take_regroup_state(std::size_t index, RegroupState state);
  void decide_regrouping();
  void replace();
  void note_failure();
  void look_for_reason();

  // --- When the hub is lost (control_succession.cc). Nothing is left to do then but to find out when all
  // members are quiet, and to shrink.
  void look_for_hub();
  void host_vanished(const std::string& id);
  asio::awaitable<void> find_hub();
  bool somebody_is_late() const;
  asio::awaitable<bool> call_member(std::size_t position);
  asio::awaitable<bool> call(std::size_t position, std::string host);
  asio::awaitable<void> look(std::size_t position);
  void mark_gone(std::size_t position, bool for_certain);
  void take_over();
  asio::awaitable<void> greet(std::shared_ptr<Stream> stream);
  asio::awaitable<void> await_hubship();
  asio::awaitable<void> look_after(std::size_t index, bool call_it);
  void doubt_hub();
  void ask_hub();
  void drop_hub();
  void resign();
  void tell_hub_quiet();
  /// Whether nothing more is to be found out, for this member and for those that have called it.
  bool is_over() const {
    return shut_ || (is_set(all_quiet_) && !regrouping_.under_way() && !hub_is_doubted_);
  }

  const MeetingSettings me_;
  const int self_;
  int hub_ = 0;
  /// Only on member 0, from the meeting on. Streams belong to it, so it comes before all that has some.
  std::optional<StreamThreads> stream_threads_;
  asio::io_context io_;
  std::optional<Reception> reception_;  // only on member 0
  /// Of connections to a hub that takes the place of one that has died. Empty until all members have met.
  std::unique_ptr<asio::ssl::context> context_;
  /// On every member but the first hub, once it has settled. That a process listens tells the others that it
  /// lives. They connect with it when the hub is lost, or silent.
  std::shared_ptr<Listener> listener_;
  std::vector<HubAddress> addresses_;          // by position; empty until this member has settled
  std::vector<Member> members_;                // by position; only the hub has connections to all others
  std::set<std::shared_ptr<Stream>> calling_;  // to members that have not answered yet
  std::string local_address_;
  std::vector<std::string> introductions_;       // by position; the others' are empty until all have met
  std::uint64_t introduced_bytes_ = 0;           // only on the hub
  std::vector<std::string> names_;               // by position
  std::vector<bool> serves_;                     // may be shorter
  bool named_ = false;                           // the members know who they are
  bool settled_ = false;                         // and where each of them listens
  std::optional<asio::steady_timer> suspicion_;  // only on the hub, which waits at most once
  std::optional<asio::steady_timer> verdict_;    // only on other members; of a failure that was reported
  bool shut_ = false;                            // the destructor has begun: lost connections mean nothing
  std::function<Progress()> progress_ = [] { return Progress{}; };
  std::function<void()> on_failure_ = [] {};
  GatherBoard board_;                   // only on the hub
  LeaveBoard leaves_;                   // only on the hub
  std::optional<std::uint64_t> asked_;  // only on the hub: for how many operations it has asked last
  GatherCalls calls_;
  Regrouping regrouping_;
  bool replaced_ = false;       // this hub fails the communicator because another one takes its place
  RegroupBoard regroup_board_;  // only on the hub
  std::optional<asio::steady_timer> abort_time_;     // of abort_after()
  std::optional<asio::steady_timer> reason_time_;    // only on the hub
  std::optional<asio::steady_timer> patience_time_;  // only on a hub that has taken another one's place
  bool looking_for_hub_ = false;
  Clock::time_point heard_;      // while it looks: when the one that is called has proved the key last
  bool hub_is_doubted_ = false;  // another member has called this one, because the hub is lost to it
  std::optional<asio::steady_timer> doubt_time_;     // until the hub is asked whether it is there
  std::optional<asio::steady_timer> presence_time_;  // while the hub has been asked whether it is there
  bool hub_is_there_ = false;                        // it has said so

  mutable std::mutex mutex_;  // guards failure_, all_quiet_ and all_bye_, which other threads read
  std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  /// How many operations can complete, given which members have left. Written by the control thread.
  std::atomic<std::uint64_t> limit_{std::numeric_limits<std::uint64_t>::max()};
  std::optional<Failure> failure_;
  bool all_quiet_ = false, all_bye_ = false;

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::jthread thread_;  // the last member, because it uses all others
};

}  // namespace nzcl::bootstrap

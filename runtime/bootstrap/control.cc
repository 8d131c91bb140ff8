// See control.h for the protocol and runtime/bootstrap/README.md for its frames.
#include "runtime/bootstrap/control.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "runtime/base/block_signals.h"
#include "runtime/base/json_text.h"
#include "runtime/base/list_text.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/control_connection.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/gather_board.h"
#include "runtime/bootstrap/gather_calls.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/listener.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

// How long a connection attempt may take. After it, the next address is tried, since packets to some
// addresses may be dropped without an answer.
constexpr std::chrono::seconds kConnectTime{3};
// How long the hub waits after a transport has reported a lost peer. A process that dies frees its memory
// before its sockets are closed, so the transport may notice the death first, often without knowing who died.
// The closed connection, a moment later, tells which member it was.
constexpr std::chrono::seconds kSuspicionTime{1};
// Only the hub decides whether a gather has timed out. A member waits for this long after its deadline for
// what the hub says.
constexpr std::chrono::seconds kDecisionTime{5};

class StarControl final : public ControlPlane {
 public:
  StarControl(Bootstrap& bootstrap, Settings settings, std::function<void()> on_failure)
      : settings_(std::move(settings)),
        self_(bootstrap.rank()),
        members_(static_cast<std::size_t>(bootstrap.size())),
        on_failure_(std::move(on_failure)),
        board_(settings_.names),
        work_(asio::make_work_guard(io_)) {
    for (std::size_t i = 0; i < members_.size(); ++i)
      members_[i].bye = serves(i);  // a member that serves leaves last, so nobody waits for its goodbye
  }

  ~StarControl() override {
    asio::post(io_, [this] {
      shut_ = true;
      listener_.reset();
      if (suspicion_) suspicion_->cancel();
      for (Member& m : members_) {
        if (m.connection) m.connection->finish();
      }
      work_.reset();
    });
    if (thread_.joinable()) {
      thread_.join();
    } else {
      io_.run();
    }
  }

  void meet(Bootstrap& bootstrap, Deadline deadline) {
    // Member 0 tells the others where it listens, and the key. It may do so because the meeting is trusted,
    // or has authenticated its members.
    std::string mine;
    std::string secret;
    if (self_ == 0) {
      secret = random_secret();
      if (members_.size() > 1) {
        listener_.emplace(io_, settings_.one_host ? resolve(own_loopback()) : Addresses(), 0,
                          "rank 0: control plane");
        mine = json_text({{"port", listener_->port()},
                          {"hosts", host_addresses()},
                          {"host_id", host_id()},
                          {"key", secret}});
      } else {
        mine = "{}";
      }
    }
    const auto all = bootstrap.allgather(mine, deadline);
    if (members_.size() > 1) {
      if (self_ == 0) {
        context_ = make_psk_context(secret);
        listener_->start(*context_, [this](std::shared_ptr<Stream> stream) { return greet(stream); });
        run_until([this] { return connected_ + 1 == members_.size(); }, deadline,
                  [this] { return missing_text(); });
        listener_.reset();
      } else {
        HubAddress hub = parse_hub_address(all[0]);
        context_ = make_psk_context(hub.key);
        if (hub.host_id == host_id()) hub.hosts = {own_loopback()};
        asio::co_spawn(io_, connect_to_hub(hub.hosts, hub.port, deadline), asio::detached);
        run_until([this] { return connected_ == 1; }, deadline,
                  [this] {
                    return fmt::format("the control plane of {} was not reached: {}", settings_.names[0],
                                       connect_error_);
                  });
      }
    }
    const BlockSignals blocked;
    thread_ = std::jthread([this] {
      ::pthread_setname_np(::pthread_self(), "nzcl-control");
      io_.run();
    });
    bootstrap.allgather("control", deadline);
  }

  void abort(Failure failure) override {
    asio::post(io_, [this, failure = std::move(failure)]() mutable {
      if (self_ == 0) {
        report(std::move(failure));
      } else if (members_[0].connection) {
        members_[0].connection->send(
            {{"type", "abort"}, {"code", static_cast<int>(failure.code)}, {"text", failure.text}});
      }
    });
  }
  bool failed() const noexcept override { return failed_.load(std::memory_order_acquire); }
  std::optional<Failure> failure() const override {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }
  void quiesced() override {
    asio::post(io_, [this] { say("quiet", &Member::quiet); });
  }
  bool wait_quiesced(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return all_quiet_; });
  }
  bool leave(Deadline deadline) override {
    asio::post(io_, [this] { say("bye", &Member::bye); });
    std::unique_lock lock(mutex_);
    const auto over = [this] { return all_bye_ || failure_.has_value(); };
    if (deadline == Deadline::max()) {
      changed_.wait(lock, over);
    } else {
      changed_.wait_until(lock, deadline, over);
    }
    return all_bye_ && !failure_;
  }

  std::optional<std::vector<std::string>> gather(const std::string& name, const std::vector<int>& members,
                                                 std::string part, Deadline deadline) override {
    using State = GatherCalls::State;
    const auto tell = [&](GatherFrame::Kind kind, std::vector<std::string> parts) {
      send_to_board(
          {.kind = kind, .name = name, .members = members, .parts = std::move(parts), .failure = {}});
    };
    calls_.begin(name);
    tell(GatherFrame::Kind::part, {std::move(part)});
    State state = calls_.wait(name, deadline);
    if (state == State::waiting) {
      tell(GatherFrame::Kind::late, {});
      state = calls_.wait(name, Clock::now() + kDecisionTime);
    }
    auto answer = calls_.end(name);
    if (answer) return parts_of(std::move(*answer), members.size());
    if (state == State::waiting)
      throw Error(ErrorCode::timeout, fmt::format("{}: {} does not answer", name, settings_.names[0]));
    if (const auto failed = failure()) throw Error(failed->code, failed->text);
    return std::nullopt;
  }
  void give_up(const std::string& name, const std::vector<int>& members, Failure failure) override {
    send_to_board({.kind = GatherFrame::Kind::failed,
                   .name = name,
                   .members = members,
                   .parts = {},
                   .failure = std::move(failure)});
  }

 private:
  struct Member {
    std::shared_ptr<ControlConnection> connection;
    bool gone = false, quiet = false, bye = false;
  };

  // --- Meeting, on the caller's thread

  /// Runs the io_context on the calling thread until done() is true. Throws Error{timeout} with text() at the
  /// deadline.
  template <typename Done, typename Text>
  void run_until(Done done, Deadline deadline, Text text) {
    while (!done()) {
      if (Clock::now() >= deadline) throw Error(ErrorCode::timeout, text());
      io_.run_one_until(deadline);
    }
  }
  std::string missing_text() const {
    std::string list;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      if (!members_[i].connection) append_item(list, settings_.names[i]);
    }
    return "the control plane was not joined in time by " + list;
  }

  asio::awaitable<void> greet(std::shared_ptr<Stream> stream) {
    const std::size_t index = parse_control_hello(co_await read_frame(*stream, kHelloLimit));
    if (index == 0 || index >= members_.size() || members_[index].connection)
      throw Error(ErrorCode::denied,
                  fmt::format("it claims to be member {}, but no such member is awaited", index));
    const auto connection = std::make_shared<ControlConnection>(stream);
    members_[index].connection = connection;
    connection->send(welcome());
    asio::co_spawn(io_, write_loop(connection), asio::detached);
    asio::co_spawn(io_, read_loop(connection, index), asio::detached);
    ++connected_;
  }

  // These are functions of their own, because gcc 12 cannot compile initialiser lists of json within
  // coroutines.
  std::string hello() const { return json_text({{"member", self_}}); }
  static json welcome() { return {{"type", "welcome"}}; }

  asio::awaitable<void> connect_to_hub(std::vector<std::string> hosts, int port, Deadline deadline) {
    for (std::size_t turn = 0; Clock::now() < deadline; ++turn) {
      try {
        const Tcp::endpoint hub(asio::ip::make_address(hosts[turn % hosts.size()]),
                                static_cast<unsigned short>(port));
        auto connection =
            std::make_shared<ControlConnection>(co_await connect_secure(*context_, hub, kConnectTime));
        co_await write_frame(*connection->stream, hello());
        co_await read_frame(*connection->stream, kHelloLimit);  // welcome
        members_[0].connection = connection;
        asio::co_spawn(io_, write_loop(connection), asio::detached);
        asio::co_spawn(io_, read_loop(connection, 0), asio::detached);
        connected_ = 1;
        co_return;
      } catch (const std::exception& e) {
        connect_error_ = fmt::format("{}:{}: {}", hosts[turn % hosts.size()], port, e.what());
      }
      asio::steady_timer pause(io_, std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::use_awaitable);
    }
  }

  // --- The communicator's life, on the control thread

  asio::awaitable<void> read_loop(std::shared_ptr<ControlConnection> connection, std::size_t index) {
    std::string why = "its connection closed";
    const std::uint32_t limit = kGatherHeadLimit + (self_ == 0 ? part_limit(members_.size()) : kFrameLimit);
    try {
      while (true) {
        const std::string text = co_await read_frame(*connection->stream, limit);
        if (is_gather_frame(text)) {
          gather_frame(index, parse_gather_frame(text));
          continue;
        }
        const ControlFrame frame = parse_control_frame(text);
        self_ == 0 ? hub_frame(index, frame) : member_frame(frame);
      }
    } catch (const std::system_error& e) {
      if (e.code() != asio::error::eof && e.code() != asio::ssl::error::stream_truncated) why = e.what();
    } catch (const std::exception& e) {
      why = e.what();
    }
    connection->close();
    lost(index, why);
  }

  void hub_frame(std::size_t index, const ControlFrame& frame) {
    if (frame.type == "abort") {
      report(frame.failure);
    } else if (frame.type == "quiet") {
      members_[index].quiet = true;
      check_all();
    } else if (frame.type == "bye") {
      said_bye(index);
    }
  }

  /// On the hub. A member that serves is in gathers until all others have left, no matter what it says.
  void said_bye(std::size_t index) {
    members_[index].bye = true;
    if (!serves(index)) send_answers(board_.left(index));
    check_all();
  }

  // --- Gathers, on the control thread

  void gather_frame(std::size_t index, GatherFrame frame) {
    if (self_ != 0) {
      calls_.answer(std::move(frame));
    } else if (!is_failed()) {
      send_answers(board_.take(index, std::move(frame)));
    }
  }

  void send_answers(const GatherBoard::Answers& answers) {
    for (const auto& [member, frame] : answers) {
      if (member == 0) {
        calls_.answer(parse_gather_frame(frame));
      } else if (members_[member].connection && !members_[member].gone) {
        members_[member].connection->send_bytes(frame);
      }
    }
  }

  void member_frame(const ControlFrame& frame) {
    if (frame.type == "failed") {
      set_failure(frame.failure);
    } else if (frame.type == "all_quiet") {
      set_flag(all_quiet_);
    } else if (frame.type == "all_bye") {
      all_left();
    }
  }

  void lost(std::size_t index, const std::string& why) {
    Member& m = members_[index];
    m.gone = true;
    if (shut_) return;
    if (is_set(all_bye_)) {  // leaving in good order
      self_ == 0 ? check_all() : set_flag(all_quiet_);
      return;
    }
    if (self_ != 0) {
      set_failure({ErrorCode::peer_failed, fmt::format("{} died: {}", settings_.names[index], why)});
    } else if (!m.bye || serves(index)) {
      fail({ErrorCode::peer_failed, fmt::format("{} died: {}", settings_.names[index], why)});
    }
    if (self_ == 0) check_all();
  }

  /// On the hub, when a member has reported a failure. A transport's report of a lost peer is only a
  /// suspicion for kSuspicionTime: if a connection closes within this time, the death of that member is the
  /// failure (see lost()).
  void report(Failure failure) {
    if (failure.code != ErrorCode::peer_failed) return fail(std::move(failure));
    if (shut_ || is_failed() || suspicion_) return;
    suspicion_.emplace(io_, kSuspicionTime);
    suspicion_->async_wait([this, failure = std::move(failure)](const asio::error_code& error) mutable {
      if (!error && !shut_) fail(std::move(failure));
    });
  }

  /// On the hub: tells all members of the failure, if it is the communicator's first.
  void fail(Failure failure) {
    if (is_failed()) return;
    broadcast({{"type", "failed"}, {"code", static_cast<int>(failure.code)}, {"text", failure.text}});
    set_failure(failure);
  }

  void say(const char* type, bool Member::*flag) {
    if (self_ == 0 && flag == &Member::bye) {
      said_bye(0);
    } else if (self_ == 0) {
      members_[0].*flag = true;
      check_all();
    } else if (members_[0].connection && !members_[0].gone) {
      members_[0].connection->send({{"type", type}});
    }
  }

  /// On the hub: if all living members are quiet, or have said goodbye, tells all members so.
  void check_all() {
    const auto all = [this](bool Member::*flag) {
      for (const Member& m : members_) {
        if (!(m.*flag) && !m.gone) return false;
      }
      return true;
    };
    if (!is_set(all_quiet_) && (is_failed() || is_set(all_bye_)) && all(&Member::quiet)) {
      broadcast({{"type", "all_quiet"}});
      set_flag(all_quiet_);
    }
    if (!is_set(all_bye_) && all(&Member::bye)) {
      broadcast({{"type", "all_bye"}});
      all_left();
    }
  }

  void broadcast(const json& frame) {
    for (Member& m : members_) {
      if (m.connection && !m.gone) m.connection->send(frame);
    }
  }

  bool serves(std::size_t index) const { return index < settings_.serves.size() && settings_.serves[index]; }
  /// `flag` is one of those that mutex_ guards.
  bool is_set(const bool& flag) const {
    const std::scoped_lock lock(mutex_);
    return flag;
  }
  /// Gathers end before leave() returns, so that a gather that is begun afterwards finds nobody.
  void all_left() {
    board_.clear();
    calls_.close();
    set_flag(all_bye_);
  }
  bool is_failed() const { return failed_.load(std::memory_order_relaxed); }
  void set_flag(bool& flag) {
    {
      const std::scoped_lock lock(mutex_);
      flag = true;
    }
    changed_.notify_all();
  }
  void set_failure(const Failure& failure) {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_) return;
      failure_ = {failure.code, valid_utf8(failure.text)};  // the same text that the other members receive
    }
    failed_.store(true, std::memory_order_release);
    changed_.notify_all();
    board_.clear();
    calls_.close();
    on_failure_();
  }

  /// On a caller's thread: brings the frame to the hub, which may be this member.
  void send_to_board(GatherFrame frame) {
    asio::post(io_, [this, frame = std::move(frame)]() mutable {
      if (self_ == 0) {
        try {
          gather_frame(0, std::move(frame));
        } catch (const Error& e) {  // from another member this would end its connection
          fail({ErrorCode::internal, fmt::format("{}: {}", settings_.names[0], e.what())});
        }
      } else if (members_[0].connection && !members_[0].gone) {
        members_[0].connection->send_bytes(encode(frame));
      }
    });
  }
  static std::vector<std::string> parts_of(GatherFrame answer, std::size_t members) {
    if (answer.kind == GatherFrame::Kind::failed) throw Error(answer.failure.code, answer.failure.text);
    if (answer.kind != GatherFrame::Kind::parts || answer.parts.size() != members)
      throw Error(ErrorCode::mismatch, answer.name + ": the hub's answer has not one part for each member");
    return std::move(answer.parts);
  }

  const Settings settings_;
  const int self_;
  asio::io_context io_;
  std::unique_ptr<asio::ssl::context> context_;
  std::optional<Listener> listener_;  // only on the hub, until all members have joined
  std::vector<Member> members_;       // by position; members other than the hub use only members_[0], the hub
  std::size_t connected_ = 0;
  std::string connect_error_ = "no answer";
  std::optional<asio::steady_timer> suspicion_;  // only on the hub, which waits at most once
  bool shut_ = false;                            // the destructor has begun: lost connections mean nothing
  const std::function<void()> on_failure_;
  GatherBoard board_;  // only on the hub
  GatherCalls calls_;

  mutable std::mutex mutex_;  // guards failure_, all_quiet_ and all_bye_, which other threads read
  std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
  bool all_quiet_ = false, all_bye_ = false;

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::jthread thread_;  // the last member, because it uses all others
};

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::join(Bootstrap& bootstrap, Settings settings, Deadline deadline,
                                                 std::function<void()> on_failure) {
  auto control = std::make_unique<StarControl>(bootstrap, std::move(settings), std::move(on_failure));
  control->meet(bootstrap, deadline);
  return control;
}

}  // namespace nzcl::bootstrap

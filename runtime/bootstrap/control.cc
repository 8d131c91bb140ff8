// See control.h for the protocol and runtime/bootstrap/README.md for its frames.
#include "runtime/bootstrap/control.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "runtime/base/json_text.h"
#include "runtime/base/list_text.h"
#include "runtime/base/log.h"
#include "runtime/base/start_thread.h"
#include "runtime/bootstrap/control_connection.h"
#include "runtime/bootstrap/control_reach.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/gather_board.h"
#include "runtime/bootstrap/gather_calls.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/leave_board.h"
#include "runtime/bootstrap/listener.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

// How long a connection attempt may take. After it, the next address is tried, since packets to some
// addresses may be dropped without an answer.
constexpr std::chrono::seconds kConnectTime{3};
constexpr std::chrono::milliseconds kRetryPause{50};
// The same for the connection to a hub that is to take the dead one's place. It is shorter than the time for
// which buffers wait for all members to be quiet.
constexpr std::chrono::seconds kSuccessorTime{1};
// How often a new hub looks whether the members live that have not come to it.
constexpr std::chrono::milliseconds kLookPause{100};
// How long the hub waits after a transport has reported a lost peer. A process that dies frees its memory
// before its sockets are closed, so the transport may notice the death first, often without knowing who died.
// The closed connection, a moment later, tells which member it was.
constexpr std::chrono::seconds kSuspicionTime{1};
// How long a member that has reported a failure waits for what the hub says. It is longer than the hub waits
// itself.
constexpr std::chrono::seconds kVerdictTime{3};
static_assert(kVerdictTime > kSuspicionTime);
// How often a member looks whether its operations are over that all members have joined.
constexpr std::chrono::milliseconds kSettlePause{5};
// Only the hub decides whether a gather has timed out. A member waits for this long after its deadline for
// what the hub says.
constexpr std::chrono::seconds kDecisionTime{5};

/// Whether a connection broke because nothing came from the other host any more, as opposed to a process that
/// died there.
bool is_of_a_vanished_host(const std::error_code& error) {
  return error == asio::error::timed_out || error == asio::error::host_unreachable ||
         error == asio::error::network_unreachable;
}

class StarControl final : public ControlPlane {
 public:
  StarControl(Bootstrap& bootstrap, Settings settings, std::function<void()> on_failure)
      : settings_(std::move(settings)),
        self_(bootstrap.rank()),
        members_(static_cast<std::size_t>(bootstrap.size())),
        on_failure_(std::move(on_failure)),
        board_(settings_.names),
        leaves_(settings_.names, settings_.serves),
        work_(asio::make_work_guard(io_)) {
    for (std::size_t i = 0; i < members_.size(); ++i)
      members_[i].bye = serves(i);  // a member that serves leaves last, so nobody waits for its goodbye
  }

  ~StarControl() override {
    asio::post(io_, [this] {
      shut_ = true;
      listener_.reset();
      if (suspicion_) suspicion_->cancel();
      if (verdict_) verdict_->cancel();
      if (calling_) calling_->close();
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
    if (members_.size() > 1)
      listener_.emplace(io_, settings_.one_host ? resolve(own_loopback()) : Addresses(), 0,
                        settings_.names[static_cast<std::size_t>(self_)] + ": control plane");
    const auto all = bootstrap.allgather(own_address(), deadline);
    if (members_.size() > 1) {
      take_addresses(all);
      context_ = make_psk_context(addresses_[0].key);
      is_hub() ? await_members(deadline) : await_hub(deadline);
    }
    thread_ = start_thread("nzcl-control", [this] {
      return std::jthread([this] {
        ::pthread_setname_np(::pthread_self(), "nzcl-control");
        io_.run();
      });
    });
    bootstrap.allgather("control", deadline);
  }

  void abort(Failure failure) override {
    asio::post(io_, [this, failure = std::move(failure)]() mutable {
      is_hub() ? report(std::move(failure)) : report_to_hub(std::move(failure));
    });
  }
  bool failed() const noexcept override { return failed_.load(std::memory_order_acquire); }
  std::optional<Failure> failure() const override {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }
  void quiesced() override {
    asio::post(io_, [this] { say_quiet(); });
  }
  bool wait_quiesced(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return all_quiet_; });
  }
  void has_begun(std::uint64_t operations) override {
    if (operations > limit_.load(std::memory_order_relaxed)) asio::post(io_, [this] { check_wanted(); });
  }
  bool leave(Deadline deadline) override {
    asio::post(io_, [this] { tell_hub("bye", settings_.progress().begun); });
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
      throw Error(ErrorCode::timeout, fmt::format("{}: the hub does not answer", name));
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

  bool is_hub() const { return self_ == hub_; }
  /// The connection to the hub, if this member has one that is open.
  ControlConnection* to_hub() {
    Member& hub = members_[static_cast<std::size_t>(hub_)];
    return hub.gone ? nullptr : hub.connection.get();
  }

  // --- Meeting, on the caller's thread

  /// What this member tells all others: where it listens, and, as member 0, the key of all connections. It
  /// may tell the key because the meeting is trusted, or has authenticated its members.
  std::string own_address() const {
    if (!listener_) return "{}";
    return json_text({{"port", listener_->port()},
                      {"hosts", host_addresses()},
                      {"host_id", host_id()},
                      {"key", is_hub() ? random_secret() : ""}});
  }

  void take_addresses(const std::vector<std::string>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      HubAddress address = parse_hub_address(all[i]);
      if (address.host_id == host_id()) address.hosts = {own_loopback()};
      for (const std::string& host : address.hosts) {
        asio::error_code error;
        asio::ip::make_address(host, error);
        if (error)
          throw Error(ErrorCode::mismatch,
                      fmt::format("{} says that its control plane is at \"{}\", which is "
                                  "no address",
                                  settings_.names[i], host));
      }
      addresses_.push_back(std::move(address));
    }
  }

  void await_members(Deadline deadline) {
    accept_members();
    run_until([this] { return connected_ + 1 == members_.size(); }, deadline,
              [this] { return missing_text(); });
    listener_.reset();
  }

  void await_hub(Deadline deadline) {
    asio::co_spawn(io_, call_first_hub(deadline), asio::detached);
    run_until([this] { return connected_ == 1; }, deadline,
              [this] {
                return fmt::format("the control plane of {} was not reached: {}", settings_.names[0],
                                   call_error_);
              });
  }

  void accept_members() {
    listener_->start(*context_, [this](std::shared_ptr<Stream> stream) { return greet(stream); });
  }

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
    if (shut_)
      throw Error(ErrorCode::denied, "it came when this member was leaving");  // nobody would close it
    if (index <= static_cast<std::size_t>(self_) || index >= members_.size() || members_[index].connection)
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

  asio::awaitable<void> call_first_hub(Deadline deadline) {
    const std::vector<std::string>& hosts = addresses_[0].hosts;
    for (std::size_t turn = 0; Clock::now() < deadline && !shut_; ++turn) {
      if (co_await call(0, hosts[turn % hosts.size()], kConnectTime)) break;
      asio::steady_timer pause(io_, kRetryPause);
      co_await pause.async_wait(asio::use_awaitable);
    }
  }

  /// Joins the hub at this position by one of its addresses. Returns false, and sets `call_error_`, if that
  /// fails.
  asio::awaitable<bool> call(std::size_t position, std::string host, std::chrono::seconds limit) {
    const int port = addresses_[position].port;
    try {
      const Tcp::endpoint endpoint(asio::ip::make_address(host), static_cast<unsigned short>(port));
      auto connection =
          std::make_shared<ControlConnection>(co_await connect_secure(*context_, endpoint, limit));
      if (shut_) co_return false;
      calling_ = connection;  // the destructor closes it if the hub does not answer
      co_await write_frame(*connection->stream, hello());
      co_await read_frame(*connection->stream, kHelloLimit);  // welcome
      calling_.reset();
      if (shut_) co_return false;
      members_[position].connection = connection;
      hub_ = static_cast<int>(position);
      asio::co_spawn(io_, write_loop(connection), asio::detached);
      asio::co_spawn(io_, read_loop(connection, position), asio::detached);
      connected_ = 1;
      co_return true;
    } catch (const std::exception& e) {
      call_error_ = fmt::format("{}:{}: {}", host, port, e.what());
    }
    co_return false;
  }

  // --- The communicator's life, on the control thread

  asio::awaitable<void> read_loop(std::shared_ptr<ControlConnection> connection, std::size_t index) {
    std::string why = "its connection closed";
    bool vanished = false;
    const std::uint32_t limit = kGatherHeadLimit + (self_ == 0 ? part_limit(members_.size()) : kFrameLimit);
    try {
      while (true) {
        const std::string text = co_await read_frame(*connection->stream, limit);
        if (is_gather_frame(text)) {
          gather_frame(index, parse_gather_frame(text));
          continue;
        }
        const ControlFrame frame = parse_control_frame(text);
        is_hub() ? hub_frame(index, frame) : member_frame(frame);
      }
    } catch (const std::system_error& e) {
      if (e.code() != asio::error::eof && e.code() != asio::ssl::error::stream_truncated) why = e.what();
      vanished = is_of_a_vanished_host(e.code());
    } catch (const std::exception& e) {
      why = e.what();
    }
    connection->close();
    lost(index, why, vanished);
  }

  void hub_frame(std::size_t index, const ControlFrame& frame) {
    if (frame.type == "abort") {
      report(frame.failure);
    } else if (frame.type == "quiet") {
      members_[index].quiet = true;
      check_all();
    } else if (frame.type == "bye") {
      said_bye(index, frame.operations);
    } else if (frame.type == "wants") {
      leaves_.wants(index, frame.operations);
      check_leaves();
    } else if (frame.type == "finished") {
      leaves_.finished(index, frame.operations);
      check_leaves();
    }
  }

  /// On the hub. A member that serves is in gathers until all others have left, no matter what it says.
  void said_bye(std::size_t index, std::uint64_t begun) {
    members_[index].bye = true;
    if (!serves(index)) {
      send_answers(board_.left(index));
      if (leaves_.left(index, begun)) tell_all("left", leaves_.limit());
    }
    check_all();
    check_leaves();
  }

  // --- Members that leave too early (leave_board.h), on the control thread

  /// On the hub: asks all members to finish what can complete, if one of them wants more, and fails when they
  /// have done so.
  void check_leaves() {
    if (is_failed() || is_set(all_bye_) || !leaves_.exceeded()) return;
    if (asked_ != leaves_.limit()) {
      asked_ = leaves_.limit();
      tell_all("finish", *asked_);
    }
    if (auto failure = leaves_.failure()) fail(std::move(*failure));
  }

  /// Tells the hub if this member wants an operation that a member which has left did not join.
  void check_wanted() {
    const std::uint64_t wanted = settings_.progress().wanted;
    if (wanted > limit_.load(std::memory_order_relaxed)) tell_hub("wants", wanted);
  }

  /// Tells the hub when the first `operations` operations are over.
  asio::awaitable<void> finish(std::uint64_t operations) {
    while (!shut_ && !is_failed()) {
      if (settings_.progress().finished >= operations) co_return tell_hub("finished", operations);
      asio::steady_timer pause(io_, kSettlePause);
      co_await pause.async_wait(asio::use_awaitable);
    }
  }

  /// Brings a frame of this member to the hub, which may be this member.
  void tell_hub(const char* type, std::uint64_t operations) {
    if (is_hub()) {
      hub_frame(static_cast<std::size_t>(self_), {.type = type, .failure = {}, .operations = operations});
    } else if (ControlConnection* hub = to_hub()) {
      hub->send({{"type", type}, {"operations", operations}});
    }
  }

  /// On the hub.
  void tell_all(const char* type, std::uint64_t operations) {
    broadcast({{"type", type}, {"operations", operations}});
    member_frame({.type = type, .failure = {}, .operations = operations});
  }

  // --- Gathers, on the control thread

  void gather_frame(std::size_t index, GatherFrame frame) {
    if (!is_hub()) {
      calls_.answer(std::move(frame));
    } else if (!is_failed()) {
      send_answers(board_.take(index, std::move(frame)));
    }
  }

  void send_answers(const GatherBoard::Answers& answers) {
    for (const auto& [member, frame] : answers) {
      if (member == static_cast<std::size_t>(self_)) {
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
    } else if (frame.type == "left") {
      limit_.store(frame.operations, std::memory_order_relaxed);
      check_wanted();
    } else if (frame.type == "finish") {
      asio::co_spawn(io_, finish(frame.operations), asio::detached);
    }
  }

  void lost(std::size_t index, const std::string& why, bool vanished) {
    Member& m = members_[index];
    m.gone = true;
    leaves_.gone(index);
    if (shut_) return;
    const bool left = is_set(all_bye_) || (is_hub() && m.bye && !serves(index));  // in good order
    if (!left) {
      const Failure failure{ErrorCode::peer_failed, fmt::format("{} died: {}", settings_.names[index], why)};
      is_hub() ? fail(failure) : set_failure(failure);
    }
    if (is_hub()) {
      check_all();
      return check_leaves();
    }
    if (vanished) host_vanished(addresses_[index].host_id);
    asio::co_spawn(io_, find_hub(), asio::detached);
  }

  // --- When the hub is lost, on the control thread. Nothing is left to do then but to find out when all
  // members are quiet.

  /// Nobody on such a host can be reached, and there would be nobody to refuse a connection to it.
  void host_vanished(const std::string& id) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (static_cast<int>(i) != self_ && addresses_[i].host_id == id) members_[i].gone = true;
    }
  }

  /// Joins the first member behind the lost hub that lives. If that is this member, it is the new hub.
  asio::awaitable<void> find_hub() {
    for (int next = hub_ + 1; next < self_; ++next) {
      const auto position = static_cast<std::size_t>(next);
      while (!members_[position].gone && !is_over()) {
        if (co_await call_successor(position)) co_return tell_hub_quiet();
        if (!co_await lives(position)) members_[position].gone = true;
        asio::steady_timer pause(io_, kRetryPause);
        co_await pause.async_wait(asio::use_awaitable);
      }
    }
    if (!is_over()) take_over();
  }

  asio::awaitable<bool> call_successor(std::size_t position) {
    for (const std::string& host : addresses_[position].hosts) {
      if (co_await call(position, host, kSuccessorTime)) co_return true;
      if (is_over()) break;
    }
    co_return false;
  }

  asio::awaitable<bool> lives(std::size_t position) {
    const HubAddress& address = addresses_[position];
    return is_reachable(address.hosts, address.port, [this] { return is_over(); });
  }

  /// Members before this one have died, and those behind it will come, unless they have died as well.
  void take_over() {
    for (int before = 0; before < self_; ++before) members_[static_cast<std::size_t>(before)].gone = true;
    hub_ = self_;
    accept_members();
    for (std::size_t i = static_cast<std::size_t>(self_) + 1; i < members_.size(); ++i)
      asio::co_spawn(io_, look_after(i), asio::detached);
    check_all();
  }

  /// On a new hub: until the member has come, looks from time to time whether it lives.
  asio::awaitable<void> look_after(std::size_t index) {
    const Member& member = members_[index];
    while (!member.gone) {
      asio::steady_timer pause(io_, kLookPause);
      co_await pause.async_wait(asio::use_awaitable);
      if (member.connection || is_over()) co_return;
      if (!co_await lives(index) && !member.connection) members_[index].gone = true;
    }
    check_all();
  }

  void tell_hub_quiet() {
    ControlConnection* const hub = to_hub();
    if (hub != nullptr && members_[static_cast<std::size_t>(self_)].quiet) hub->send({{"type", "quiet"}});
  }

  /// Whether nothing more is to be found out.
  bool is_over() const { return shut_ || is_set(all_quiet_); }

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

  /// On another member. A hub that is stopped keeps its connections open and answers nothing. Then this
  /// member fails by itself, as all others will do that find the failure as well.
  void report_to_hub(Failure failure) {
    ControlConnection* const hub = to_hub();
    if (hub == nullptr || is_failed()) return;
    hub->send({{"type", "abort"}, {"code", static_cast<int>(failure.code)}, {"text", failure.text}});
    if (verdict_) return;
    verdict_.emplace(io_, kVerdictTime);
    verdict_->async_wait([this, failure = std::move(failure)](const asio::error_code& error) mutable {
      if (error || shut_) return;
      failure.text += fmt::format(" (and {}, which should tell this to all, does not answer)",
                                  settings_.names[static_cast<std::size_t>(hub_)]);
      set_failure(failure);
    });
  }

  /// On the hub: tells all members of the failure, if it is the communicator's first.
  void fail(Failure failure) {
    if (is_failed()) return;
    broadcast({{"type", "failed"}, {"code", static_cast<int>(failure.code)}, {"text", failure.text}});
    set_failure(failure);
  }

  void say_quiet() {
    members_[static_cast<std::size_t>(self_)].quiet = true;
    is_hub() ? check_all() : tell_hub_quiet();
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
      const auto self = static_cast<std::size_t>(self_);
      if (is_hub()) {
        try {
          gather_frame(self, std::move(frame));
        } catch (const Error& e) {  // from another member this would end its connection
          fail({ErrorCode::internal, fmt::format("{}: {}", settings_.names[self], e.what())});
        }
      } else if (ControlConnection* hub = to_hub()) {
        hub->send_bytes(encode(frame));
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
  int hub_ = 0;
  asio::io_context io_;
  std::unique_ptr<asio::ssl::context> context_;
  /// On the hub until all members have joined, and on the others for good, though only a new hub accepts what
  /// comes. That a process listens tells the others that it lives.
  std::optional<Listener> listener_;
  std::vector<HubAddress> addresses_;           // by position; empty if there are no other members
  std::vector<Member> members_;                 // by position; only the hub has connections to all others
  std::shared_ptr<ControlConnection> calling_;  // to a hub that has not answered yet
  std::size_t connected_ = 0;
  std::string call_error_ = "no answer";
  std::optional<asio::steady_timer> suspicion_;  // only on the hub, which waits at most once
  std::optional<asio::steady_timer> verdict_;    // only on other members; of a failure that was reported
  bool shut_ = false;                            // the destructor has begun: lost connections mean nothing
  const std::function<void()> on_failure_;
  GatherBoard board_;                   // only on the hub
  LeaveBoard leaves_;                   // only on the hub
  std::optional<std::uint64_t> asked_;  // only on the hub: for how many operations it has asked last
  GatherCalls calls_;

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

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::join(Bootstrap& bootstrap, Settings settings, Deadline deadline,
                                                 std::function<void()> on_failure) {
  auto control = std::make_unique<StarControl>(bootstrap, std::move(settings), std::move(on_failure));
  control->meet(bootstrap, deadline);
  return control;
}

}  // namespace nzcl::bootstrap

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

#include "runtime/base/log.h"
#include "runtime/bootstrap/control_link.h"
#include "runtime/bootstrap/host_address.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

// A stranger may not hold a connection open for longer without proving the key.
constexpr std::chrono::seconds kStrangersTime{10};
// An address that swallows packets is given up for the next one.
constexpr std::chrono::seconds kConnectTime{3};
// A transport may notice a dead peer before its control connection closes, and then often cannot say whose
// death it met. The connection tells, a moment later: the time from a process's first freed memory to its
// closed sockets.
constexpr std::chrono::seconds kSuspicionTime{1};

class StarControl final : public ControlPlane {
 public:
  StarControl(Bootstrap& bootstrap, Settings settings, std::function<void()> on_failure)
      : settings_(std::move(settings)),
        self_(bootstrap.rank()),
        members_(static_cast<std::size_t>(bootstrap.size())),
        on_failure_(std::move(on_failure)),
        work_(asio::make_work_guard(io_)) {
    for (std::size_t i = 0; i < members_.size(); ++i)
      members_[i].bye = serves(i);  // nobody waits for their goodbye
  }

  ~StarControl() override {
    asio::post(io_, [this] {
      shut_ = true;
      if (acceptor_) acceptor_->close();
      if (suspicion_) suspicion_->cancel();
      for (Member& m : members_) {
        if (m.link) m.link->finish();
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
    // Member 0 tells where it listens and the key; the meeting is trusted, or has authenticated its members.
    std::string mine;
    std::string secret;
    if (self_ == 0) {
      secret = random_secret();
      if (members_.size() > 1) {
        acceptor_.emplace(io_, Tcp::endpoint(Tcp::v4(), 0));
        mine = json{{"port", acceptor_->local_endpoint().port()},
                    {"hosts", host_addresses()},
                    {"host_id", host_id()},
                    {"key", secret}}
                   .dump();
      } else {
        mine = "{}";
      }
    }
    const auto all = bootstrap.allgather(mine, deadline);
    if (members_.size() > 1) {
      if (self_ == 0) {
        context_ = make_psk_context(secret);
        asio::co_spawn(io_, accept_loop(), asio::detached);
        run_until([this] { return connected_ + 1 == members_.size(); }, deadline,
                  [this] { return missing_text(); });
      } else {
        const json hub = json::parse(all[0]);
        secret = hub.at("key");
        context_ = make_psk_context(secret);
        std::vector<std::string> hosts = hub.at("hosts");
        if (hub.at("host_id") == host_id()) hosts = {"127.0.0.1"};
        asio::co_spawn(io_, connect_to_hub(hosts, hub.at("port"), deadline), asio::detached);
        run_until([this] { return connected_ == 1; }, deadline,
                  [this] {
                    return fmt::format("the control plane of {} was not reached: {}", settings_.names[0],
                                       connect_error_);
                  });
      }
    }
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
      } else if (members_[0].link) {
        members_[0].link->send(
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

 private:
  struct Member {
    std::shared_ptr<Link> link;
    bool gone = false, quiet = false, bye = false;
  };

  // --- Meeting

  /// Runs the io_context on the calling thread.
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
      if (!members_[i].link) list += (list.empty() ? "" : ", ") + settings_.names[i];
    }
    return "the control plane was not joined in time by " + list;
  }

  asio::awaitable<void> accept_loop() {
    while (!shut_ && connected_ + 1 < members_.size()) {
      asio::error_code error;
      Tcp::socket socket = co_await acceptor_->async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
      asio::co_spawn(io_, greet(std::move(socket)), asio::detached);
    }
    asio::error_code ignored;
    acceptor_->close(ignored);
  }

  asio::awaitable<void> greet(Tcp::socket socket) {
    const std::string who = peer_text(socket);
    std::shared_ptr<Link> link;
    std::size_t index = 0;
    try {
      link = std::make_shared<Link>(co_await accept_secure(*context_, std::move(socket), kStrangersTime));
      index = json::parse(co_await read_frame(*link->stream, kHelloLimit)).at("member");
      if (index == 0 || index >= members_.size() || members_[index].link)
        throw Error(ErrorCode::denied, fmt::format("it claims to be member {}", index));
    } catch (const std::exception& e) {
      log().warn("control plane: refused a connection from {}: {}", who, e.what());
      co_return;
    }
    members_[index].link = link;
    link->send(welcome());
    asio::co_spawn(io_, write_loop(link), asio::detached);
    asio::co_spawn(io_, read_loop(link, index), asio::detached);
    if (++connected_ + 1 == members_.size()) {
      asio::error_code ignored;
      acceptor_->close(ignored);
    }
  }

  // gcc 12 cannot compile initialiser lists of json within coroutines.
  std::string hello() const { return json{{"member", self_}}.dump(); }
  static json welcome() { return {{"type", "welcome"}}; }

  asio::awaitable<void> connect_to_hub(std::vector<std::string> hosts, int port, Deadline deadline) {
    for (std::size_t turn = 0; Clock::now() < deadline; ++turn) {
      try {
        const Tcp::endpoint hub(asio::ip::make_address(hosts[turn % hosts.size()]),
                                static_cast<unsigned short>(port));
        auto link = std::make_shared<Link>(co_await connect_secure(*context_, hub, kConnectTime));
        co_await write_frame(*link->stream, hello());
        co_await read_frame(*link->stream, kHelloLimit);  // welcome
        members_[0].link = link;
        asio::co_spawn(io_, write_loop(link), asio::detached);
        asio::co_spawn(io_, read_loop(link, 0), asio::detached);
        connected_ = 1;
        co_return;
      } catch (const std::exception& e) {
        connect_error_ = fmt::format("{}:{}: {}", hosts[turn % hosts.size()], port, e.what());
      }
      asio::steady_timer pause(io_, std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::use_awaitable);
    }
  }

  // --- Life, on the control thread

  asio::awaitable<void> read_loop(std::shared_ptr<Link> link, std::size_t index) {
    std::string why = "its connection closed";
    try {
      while (true) {
        const json frame = json::parse(co_await read_frame(*link->stream, kFrameLimit));
        self_ == 0 ? hub_frame(index, frame) : member_frame(frame);
      }
    } catch (const std::system_error& e) {
      if (e.code() != asio::error::eof && e.code() != asio::ssl::error::stream_truncated) why = e.what();
    } catch (const std::exception& e) {
      why = e.what();
    }
    link->close();
    lost(index, why);
  }

  void hub_frame(std::size_t index, const json& frame) {
    const std::string type = frame.at("type");
    if (type == "abort") {
      report({static_cast<ErrorCode>(frame.at("code").get<int>()), frame.at("text")});
    } else if (type == "quiet") {
      members_[index].quiet = true;
      check_all();
    } else if (type == "bye") {
      members_[index].bye = true;
      check_all();
    }
  }

  void member_frame(const json& frame) {
    const std::string type = frame.at("type");
    if (type == "failed") {
      set_failure({static_cast<ErrorCode>(frame.at("code").get<int>()), frame.at("text")});
    } else if (type == "all_quiet") {
      set_flag(all_quiet_);
    } else if (type == "all_bye") {
      set_flag(all_bye_);
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

  /// Hub: a member reports a failure. A lost peer is only a suspicion until kSuspicionTime has shown that no
  /// member died: if one did, that is the failure (see lost()).
  void report(Failure failure) {
    if (failure.code != ErrorCode::peer_failed) return fail(std::move(failure));
    if (shut_ || is_failed() || suspicion_) return;
    suspicion_.emplace(io_, kSuspicionTime);
    suspicion_->async_wait([this, failure = std::move(failure)](const asio::error_code& error) mutable {
      if (!error && !shut_) fail(std::move(failure));
    });
  }

  /// Hub: the first failure is the communicator's.
  void fail(Failure failure) {
    if (is_failed()) return;
    broadcast({{"type", "failed"}, {"code", static_cast<int>(failure.code)}, {"text", failure.text}});
    set_failure(std::move(failure));
  }

  void say(const char* type, bool Member::*flag) {
    if (self_ == 0) {
      members_[0].*flag = true;
      check_all();
    } else if (members_[0].link && !members_[0].gone) {
      members_[0].link->send({{"type", type}});
    }
  }

  /// Hub: has everybody that lives said it?
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
      set_flag(all_bye_);
    }
  }

  void broadcast(const json& frame) {
    for (Member& m : members_) {
      if (m.link && !m.gone) m.link->send(frame);
    }
  }

  bool serves(std::size_t index) const { return index < settings_.serves.size() && settings_.serves[index]; }
  bool is_set(const bool& flag) const {
    const std::scoped_lock lock(mutex_);
    return flag;
  }
  bool is_failed() const { return failed_.load(std::memory_order_relaxed); }
  void set_flag(bool& flag) {
    {
      const std::scoped_lock lock(mutex_);
      flag = true;
    }
    changed_.notify_all();
  }
  void set_failure(Failure failure) {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_) return;
      failure_ = std::move(failure);
    }
    failed_.store(true, std::memory_order_release);
    changed_.notify_all();
    on_failure_();
  }

  const Settings settings_;
  const int self_;
  asio::io_context io_;
  std::unique_ptr<asio::ssl::context> context_;
  std::optional<Tcp::acceptor> acceptor_;
  std::vector<Member> members_;  // hub: by member; elsewhere only [0] is used
  std::size_t connected_ = 0;
  std::string connect_error_ = "no answer";
  std::optional<asio::steady_timer> suspicion_;  // hub: runs once
  bool shut_ = false;
  const std::function<void()> on_failure_;

  mutable std::mutex mutex_;  // guards what waiting threads look at
  std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
  bool all_quiet_ = false, all_bye_ = false;

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::jthread thread_;  // last: runs everything above
};

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::join(Bootstrap& bootstrap, Settings settings, Deadline deadline,
                                                 std::function<void()> on_failure) {
  auto control = std::make_unique<StarControl>(bootstrap, std::move(settings), std::move(on_failure));
  control->meet(bootstrap, deadline);
  return control;
}

}  // namespace nzcl::bootstrap

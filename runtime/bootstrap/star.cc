// See star.h for the protocol and README.md for its frames. After the hello, the first byte of a frame is its
// type: 'W' welcome, 'R' try again (and a text that says why), 'E' the meeting has failed (and the error as
// JSON), 'D' data of the allgather.
#include "runtime/bootstrap/star.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "nzcl/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/list_text.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/listener.h"
#include "runtime/bootstrap/secure_stream.h"
#include "runtime/bootstrap/string_list.h"
#include "runtime/bootstrap/user_key.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

// How long a connection attempt may take. After it, the next address is tried, since packets to some
// addresses may be dropped without an answer.
constexpr std::chrono::seconds kConnectTime{3};
constexpr std::chrono::milliseconds kRetryPause{50};
// The pause before something is asked for again that may take long to become known, or before somebody is
// tried again who has been denied.
constexpr std::chrono::milliseconds kLongPause{500};
// How long the hub of a failed meeting goes on listening, so that members that come a little later learn the
// reason.
constexpr std::chrono::seconds kLateTime{3};
// How long the hub may take to tell the members why the meeting has failed.
constexpr std::chrono::seconds kFarewellTime{1};
// Only the hub knows which members are missing. The others wait this much longer than their deadline for its
// answer.
constexpr std::chrono::seconds kGrace{2};

std::string error_frame(const Error& error) {
  return "E" + json_text({{"code", static_cast<int>(error.code())}, {"text", error.what()}});
}

/// The address of this host on a connection, or "" if there is none, or it leads to this host itself.
std::string own_address(Stream* stream) {
  asio::error_code none;
  if (stream == nullptr) return {};
  asio::ip::address address = stream->lowest_layer().local_endpoint(none).address();
  if (none || address.is_loopback()) return {};
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address.is_loopback() ? std::string() : address.to_string();
}

/// What the hub and the other members have in common. The io_context runs on the calling thread, inside
/// allgather().
class Star : public Bootstrap {
 public:
  explicit Star(StarSettings settings) : settings_(std::move(settings)) {
    settings_.session = valid_utf8(settings_.session);  // so that it equals what arrives in a hello
  }
  int rank() const override { return settings_.position; }
  int size() const override { return settings_.size; }

 protected:
  /// Runs the io_context until done() is true. Returns false when the deadline comes first.
  template <typename Done>
  bool run_until(Done done, Deadline deadline) {
    while (!done()) {
      if (Clock::now() >= deadline) return false;
      io_.restart();  // needed because an io_context stops whenever it has nothing to do
      if (io_.run_one_until(deadline) == 0 && !done() && Clock::now() < deadline) {
        throw Error(ErrorCode::internal,
                    "bootstrap: the meeting is not complete, but there is nothing left to wait for");
      }
    }
    return true;
  }
  /// To be called each time. Returns how long to wait before the next try.
  std::chrono::milliseconds not_yet(const NotYet& reason) {
    if (reason.for_long && reason.why != warned_)
      log().warn("{}: {}; trying again until the bootstrap timeout", settings_.who, reason.why);
    if (reason.for_long) warned_ = reason.why;
    return reason.for_long ? kLongPause : kRetryPause;
  }
  StarSettings settings_;
  std::string warned_;  // what not_yet() has logged last
  asio::io_context io_;
  std::unique_ptr<asio::ssl::context> context_;
};

/// Member 0. Every member's connection has a coroutine, read_parts(), which reads for as long as the
/// connection lives, so that a member that leaves is noticed at any time.
class Hub final : public Star {
 public:
  Hub(StarSettings settings, std::function<std::variant<HubPlace, NotYet>()> find,
      std::function<void(int)> on_listening, std::function<void()> on_met)
      : Star(std::move(settings)),
        find_(std::move(find)),
        on_listening_(std::move(on_listening)),
        on_met_(std::move(on_met)),
        members_(static_cast<std::size_t>(settings_.size)) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    try {
      if (connected_ == 0) meet(deadline);
      return gather(mine, deadline);
    } catch (const Error& error) {
      tell_all(error);
      throw;
    }
  }
  std::string local_address() const override {
    for (const Member& member : members_) {
      if (const std::string address = own_address(member.stream.get()); !address.empty()) return address;
    }
    return {};
  }

 private:
  struct Member {
    std::shared_ptr<Stream> stream;
    std::string who;
    bool welcome = false;             // has been sent the welcome frame
    std::optional<std::string> part;  // of this round, once it is here
  };
  bool complete() const { return connected_ + 1 == members_.size(); }

  void meet(Deadline deadline) {
    listen(deadline);
    listener_->start(*context_, [this](std::shared_ptr<Stream> stream) { return greet(stream); });
    const bool all = run_until([this] { return complete() || failure_; }, deadline);
    if (failure_) {  // members that come a little later should learn the reason too
      run_until([this] { return connected_ + told_ + 1 >= members_.size(); },
                std::min(deadline, Clock::now() + kLateTime));
    }
    const std::string refused = last_refusal();
    desk_.reset();
    listener_.reset();
    if (failure_) throw *failure_;
    if (!all) {
      throw Error(
          ErrorCode::timeout,
          fmt::format("{} did not come to the meeting at {}{} within the bootstrap timeout{}", missing(),
                      settings_.point_name, only_here_ ? ", which only this host can reach," : "",
                      refused.empty() ? "" : "; refused: " + refused));
    }
    if (on_met_) on_met_();
  }

  /// Tries until the deadline.
  void listen(Deadline deadline) {
    while (const std::optional<NotYet> reason = try_to_listen()) {
      if (Clock::now() >= deadline) throw cannot_listen(reason->why);
      asio::steady_timer(io_, not_yet(*reason)).wait();
    }
    if (on_listening_) on_listening_(listener_->port());
  }

  Error cannot_listen(const std::string& why) const {
    return Error(ErrorCode::unavailable,
                 fmt::format("{}: cannot listen at {}: {}", settings_.who, settings_.point_name, why));
  }

  /// Returns why it should be tried again: the meeting of another session may still use the port.
  std::optional<NotYet> try_to_listen() {
    const auto found = find_();
    if (const auto* reason = std::get_if<NotYet>(&found)) return *reason;
    try {
      open(std::get<HubPlace>(found));
    } catch (const std::system_error& e) {
      desk_.reset();
      listener_.reset();
      if (e.code() != asio::error::address_in_use) throw cannot_listen(e.what());
      return NotYet{.why = e.what()};
    }
    return std::nullopt;
  }

  void open(const HubPlace& place) {
    const std::string name = "rank 0: bootstrap at " + settings_.point_name;
    only_here_ = !place.addresses.empty() && are_loopback(place.addresses);
    context_ = make_psk_context(place.secret);
    listener_.emplace(io_, place.addresses, place.port, name);
    if (!place.for_this_user) return;
    desk_.emplace(io_, KeyDesk::Settings{
                           .port = listener_->port(), .key = place.secret, .name = name, .make_room = [this] {
                             return listener_->make_room();
                           }});
  }

  std::string last_refusal() const {
    return desk_ && !desk_->last_refusal().empty() ? desk_->last_refusal() : listener_->last_refusal();
  }

  asio::awaitable<void> greet(std::shared_ptr<Stream> stream) {
    const auto [who, session, position, size] = parse_star_hello(co_await read_frame(*stream, kHelloLimit));
    if (session != settings_.session) {
      co_await write_frame(*stream, fmt::format("Rsession \"{}\" meets here now", settings_.session));
      co_return;
    }
    // The member knows the secret, so it belongs to the job. If it does not fit, the job has been started
    // wrongly, and all members have to be told.
    if (const std::optional<Error> wrong = failure_ ? failure_ : check(who, position, size)) {
      co_await write_frame(*stream, error_frame(*wrong));
      if (!failure_) failure_ = wrong;
      ++told_;
      co_return;
    }
    Member& member = members_[static_cast<std::size_t>(position)];
    member.stream = stream;
    member.who = who;
    co_await write_frame(*stream, "W");
    member.welcome = true;
    ++connected_;
    asio::co_spawn(io_, read_parts(member), asio::detached);
  }

  std::optional<Error> check(const std::string& who, int position, int size) const {
    if (size != settings_.size) {
      return Error(ErrorCode::mismatch, fmt::format("{} expects {} members, but {} expects {}", who, size,
                                                    settings_.who, settings_.size));
    }
    if (position < 1 || position >= settings_.size)
      return Error(ErrorCode::mismatch, fmt::format("{} claims position {} of {}", who, position, size));
    const Member& member = members_[static_cast<std::size_t>(position)];
    if (member.stream)
      return Error(ErrorCode::mismatch,
                   fmt::format("{} and {} both claim to be {}", member.who, who, settings_.name(position)));
    return std::nullopt;
  }

  asio::awaitable<void> read_parts(Member& member) {
    ++readers_;
    try {
      while (true) {
        std::string frame = co_await read_frame(*member.stream, part_limit(members_.size()));
        if (frame.empty() || frame[0] != 'D' || member.part)
          throw Error(ErrorCode::denied, "it sent a frame that the protocol does not allow here");
        member.part = std::move(frame.erase(0, 1));
      }
    } catch (const std::exception& e) {
      if (!failure_)
        failure_ = Error(ErrorCode::peer_failed, fmt::format("{} left the meeting at {}: {}", member.who,
                                                             settings_.point_name, e.what()));
    }
    --readers_;
  }

  std::vector<std::string> gather(std::string_view mine, Deadline deadline) {
    members_[0].part = std::string(mine);
    const auto all_here = [this] {
      return std::all_of(members_.begin(), members_.end(),
                         [](const Member& m) { return m.part.has_value(); });
    };
    const bool all = run_until([&] { return all_here() || failure_; }, deadline);
    if (!all_here() && failure_) throw *failure_;
    if (!all)
      throw Error(
          ErrorCode::timeout,
          fmt::format("{} came to the meeting at {}, but did not continue it within the bootstrap timeout",
                      missing(), settings_.point_name));
    std::vector<std::string> parts;
    for (Member& m : members_) parts.push_back(std::move(*std::exchange(m.part, std::nullopt)));
    send_all("D" + encode_strings(parts), deadline);
    return parts;
  }

  std::string missing() const {
    std::string list;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      if (!members_[i].stream || (complete() && !members_[i].part))
        append_item(list, settings_.name(static_cast<int>(i)));
    }
    return list;
  }

  void send_all(const std::string& frame, Deadline deadline) {
    std::size_t open = 0;
    for (Member& m : members_) {
      if (!m.welcome) continue;
      ++open;
      // An error is ignored here, because read_parts() reports a connection that is broken.
      asio::co_spawn(io_, write_frame(*m.stream, frame), [&open](std::exception_ptr) { --open; });
    }
    if (!run_until([&] { return open == 0; }, deadline)) {
      for (Member& m : members_) {
        asio::error_code ignored;
        if (m.stream) m.stream->lowest_layer().close(ignored);
      }
      // The writes refer to the local `open`, so all have to end before this function returns.
      run_until([&] { return open == 0; }, Deadline::max());
    }
  }
  void tell_all(const Error& error) {
    const auto limit = Clock::now() + kFarewellTime;
    send_all(error_frame(error), limit);
    // A connection that is closed while data is unread is reset, and then the peer may never read what was
    // sent last. So the members are given time to close first.
    asio::error_code ignored;
    for (Member& m : members_) {
      if (m.welcome) m.stream->lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
    }
    run_until([this] { return readers_ == 0; }, limit);
  }

  const std::function<std::variant<HubPlace, NotYet>()> find_;
  const std::function<void(int)> on_listening_;
  const std::function<void()> on_met_;
  std::optional<Listener> listener_;  // until all members have come
  std::optional<KeyDesk> desk_;       // uses the listener; only in a meeting for this user
  bool only_here_ = false;            // listens on loopback addresses only
  std::vector<Member> members_;
  std::size_t connected_ = 0;  // members that were welcomed
  std::size_t told_ = 0;       // members that were refused with the error
  std::optional<Error> failure_;
  int readers_ = 0;  // coroutines that are reading from a member
};

/// Any other member.
class Spoke final : public Star {
 public:
  Spoke(StarSettings settings, std::function<std::variant<MeetingPoint, NotYet>()> find, bool secret_is_sure)
      : Star(std::move(settings)), find_(std::move(find)), secret_is_sure_(secret_is_sure) {}

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    std::vector<std::string> parts;
    std::exception_ptr failure;
    bool over = false;
    asio::co_spawn(io_, take_part(mine, deadline, parts), [&](std::exception_ptr e) {
      failure = e;
      over = true;
    });
    if (!run_until([&] { return over; }, deadline + kGrace)) {
      const std::string why = why_not_;  // copied, because closing the connection changes it
      asio::error_code ignored;
      for (const auto& stream : {stream_, candidate_}) {
        if (stream) stream->lowest_layer().close(ignored);
      }
      run_until([&] { return over; }, Deadline::max());  // take_part() uses the locals above until then
      throw Error(ErrorCode::timeout,
                  stream_ ? fmt::format("{} at {} did not answer within the bootstrap timeout",
                                        settings_.name(0), settings_.point_name)
                          : fmt::format("{} was not reached at {} within the bootstrap timeout: {}",
                                        settings_.name(0), settings_.point_name, why));
    }
    if (failure) std::rethrow_exception(failure);
    return parts;
  }
  std::string local_address() const override { return own_address(stream_.get()); }

 private:
  asio::awaitable<void> take_part(std::string_view mine, Deadline deadline, std::vector<std::string>& parts) {
    if (!stream_) co_await meet(deadline);
    std::string frame;
    try {
      co_await write_frame(*stream_, "D" + std::string(mine));
    } catch (const std::system_error&) {
      // The hub may have sent the reason before it closed the connection, so the frame below is read anyway.
    }
    try {
      frame = co_await read_frame(*stream_, kFrameLimit);
    } catch (const std::system_error& e) {
      throw Error(ErrorCode::peer_failed, fmt::format("{} left the meeting at {}: {}", settings_.name(0),
                                                      settings_.point_name, e.code().message()));
    }
    if (frame.starts_with('E')) throw parse_error(std::string_view(frame).substr(1));
    if (!frame.starts_with('D'))
      throw Error(ErrorCode::denied,
                  fmt::format("{} sent a frame that this version does not understand", settings_.name(0)));
    parts = decode_strings(std::string_view(frame).substr(1));
    if (parts.size() != static_cast<std::size_t>(settings_.size))
      throw Error(ErrorCode::mismatch,
                  "the meeting returned a list that does not have one part for each member");
  }

  /// Tries to connect until the hub has welcomed this member. Throws Error{timeout} at the deadline.
  asio::awaitable<void> meet(Deadline deadline) {
    while (Clock::now() < deadline) {
      auto wait = kRetryPause;
      const auto found = find_();
      if (const auto* reason = std::get_if<NotYet>(&found)) {
        why_not_ = reason->why;
        wait = not_yet(*reason);
      } else if (co_await try_all(std::get<MeetingPoint>(found), deadline)) {
        co_return;
      } else if (std::exchange(denied_, false)) {
        wait = kLongPause;
      }
      asio::steady_timer pause(io_, wait);
      co_await pause.async_wait(asio::use_awaitable);
    }
    throw Error(ErrorCode::timeout, fmt::format("{} was not reached at {} within the bootstrap timeout: {}",
                                                settings_.name(0), settings_.point_name, why_not_));
  }

  /// A function of its own, because gcc 12 cannot compile initialiser lists of json within coroutines.
  std::string hello() const {
    return json_text({{"session", settings_.session},
                      {"index", settings_.position},
                      {"size", settings_.size},
                      {"who", settings_.who}});
  }

  /// Tries each address once. Returns false if that should be repeated. If somebody denies the secret at one
  /// address, the hub may still be at another one.
  asio::awaitable<bool> try_all(const MeetingPoint& point, Deadline deadline) {
    candidate_.reset();
    context_ = make_psk_context(point.secret);
    std::optional<Error> denial;
    for (const auto& address : point.addresses) {
      if (Clock::now() >= deadline) break;
      const Tcp::endpoint endpoint(address, static_cast<unsigned short>(point.port));
      try {
        candidate_ = co_await connect_secure(*context_, endpoint, kConnectTime);
        if (co_await introduce()) co_return true;
      } catch (const Error& e) {
        if (candidate_) throw;  // the hub has said why the meeting has failed
        denial =
            Error(e.code(), fmt::format("{} at {}: {}", settings_.name(0), settings_.point_name, e.what()));
        why_not_ = denial->what();
      } catch (const std::system_error& e) {
        why_not_ = fmt::format("{}: {}", text_of(endpoint), e.code().message());
      }
      candidate_.reset();
    }
    if (denial && secret_is_sure_) throw *denial;
    denied_ = denial.has_value();
    co_return false;
  }

  /// Says hello to the candidate. Returns whether this member has been welcomed.
  asio::awaitable<bool> introduce() {
    why_not_ = "it did not answer";
    co_await write_frame(*candidate_, hello());
    const std::string answer = co_await read_frame(*candidate_, kAnswerLimit);
    if (answer.starts_with('E')) throw parse_error(std::string_view(answer).substr(1));
    if (answer.starts_with('R')) why_not_ = answer.substr(1);
    if (!answer.starts_with('W')) co_return false;
    stream_ = std::exchange(candidate_, nullptr);
    co_return true;
  }

  const std::function<std::variant<MeetingPoint, NotYet>()> find_;
  const bool secret_is_sure_;
  bool denied_ = false;                // the last try of all addresses ended so
  std::shared_ptr<Stream> candidate_;  // the hub has proved the key, but has not welcomed this member yet
  std::shared_ptr<Stream> stream_;     // the hub has welcomed this member
  std::string why_not_ = "nobody listens there yet";
};

}  // namespace

std::unique_ptr<Bootstrap> make_star_hub(StarSettings settings,
                                         std::function<std::variant<HubPlace, NotYet>()> find,
                                         std::function<void(int)> on_listening,
                                         std::function<void()> on_met) {
  return std::make_unique<Hub>(std::move(settings), std::move(find), std::move(on_listening),
                               std::move(on_met));
}
std::unique_ptr<Bootstrap> make_star_member(StarSettings settings,
                                            std::function<std::variant<MeetingPoint, NotYet>()> find,
                                            bool secret_is_sure) {
  return std::make_unique<Spoke>(std::move(settings), std::move(find), secret_is_sure);
}

}  // namespace nzcl::bootstrap

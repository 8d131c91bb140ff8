// Frames (see README.md): hello {json}; then 'W' welcome, 'R' + text: not now, try again, 'E' + {json}: the
// meeting failed, 'D' + bytes: data.
#include "runtime/bootstrap/star.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/pack_strings.h"
#include "runtime/bootstrap/secure_stream.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;
using Failure = std::optional<Error>;

// A stranger may not hold a connection open for longer without proving the key.
constexpr std::chrono::seconds kStrangersTime{10};
constexpr std::chrono::seconds kConnectTime{
    3};  // an address that swallows packets is given up for the next one
constexpr std::chrono::milliseconds kRetryPause{50};
constexpr std::chrono::seconds kLateTime{3};      // how long late members still find somebody who tells them
constexpr std::chrono::seconds kFarewellTime{1};  // for telling the others why the meeting failed
constexpr int kLoudRefusals = 10;                 // further ones do not fill the log
// Member 0 knows best who is missing: the others give it this much longer to say so.
constexpr std::chrono::seconds kGrace{2};

std::string error_frame(const Error& error) {
  return "E" + json{{"code", static_cast<int>(error.code())}, {"text", error.what()}}.dump();
}

[[noreturn]] void throw_error_frame(const std::string& frame) {
  const json j = json::parse(frame.substr(1));
  throw Error(static_cast<ErrorCode>(j.at("code").get<int>()), j.at("text").get<std::string>());
}

/// The io_context runs on the calling thread, inside allgather.
class Star : public Bootstrap {
 public:
  explicit Star(StarSettings settings) : settings_(std::move(settings)) {}
  int rank() const override { return settings_.index; }
  int size() const override { return settings_.size; }

 protected:
  /// True when `done`; false at the deadline.
  template <typename Done>
  bool run_until(Done done, Deadline deadline) {
    while (!done()) {
      if (Clock::now() >= deadline) return false;
      io_.restart();  // it stops whenever it runs dry
      if (io_.run_one_until(deadline) == 0 && !done() && Clock::now() < deadline) {
        throw Error(ErrorCode::internal, "bootstrap: nothing left to wait for");
      }
    }
    return true;
  }
  const StarSettings settings_;
  asio::io_context io_;
  std::unique_ptr<asio::ssl::context> context_;
};

class Hub final : public Star {
 public:
  Hub(StarSettings settings, MeetingPlace place, std::function<void(int)> on_listening,
      std::function<void()> on_met)
      : Star(std::move(settings)),
        place_(std::move(place)),
        on_listening_(std::move(on_listening)),
        on_met_(std::move(on_met)),
        members_(static_cast<std::size_t>(settings_.size)) {
    context_ = make_psk_context(place_.secret);
  }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    try {
      if (connected_ == 0) meet(deadline);
      return gather(mine, deadline);
    } catch (const Error& error) {
      tell_all(error);
      throw;
    }
  }

 private:
  struct Member {
    std::shared_ptr<Stream> stream;
    std::string who;
    bool welcome = false;
    std::optional<std::string> part;  // of this round
  };
  bool complete() const { return connected_ + 1 == members_.size(); }

  void meet(Deadline deadline) {
    listen(deadline);
    asio::co_spawn(io_, accept_loop(), asio::detached);
    const bool all = run_until([this] { return complete() || failure_; }, deadline);
    if (failure_) {  // those who come a little later are told too, instead of finding nobody
      run_until([this] { return connected_ + told_ + 1 >= members_.size(); },
                std::min(deadline, Clock::now() + kLateTime));
    }
    asio::error_code ignored;
    acceptor_->close(ignored);
    if (failure_) throw *failure_;
    if (!all) {
      throw Error(ErrorCode::timeout,
                  fmt::format("{} did not come to the meeting at {} within the bootstrap timeout{}",
                              missing(), settings_.place, refused_.empty() ? "" : "; refused: " + refused_));
    }
    if (on_met_) on_met_();
  }

  /// The port may still be held by the meeting of another session.
  void listen(Deadline deadline) {
    const std::string host = place_.hosts.empty() ? "" : place_.hosts.front();
    while (true) {
      try {
        Tcp::endpoint endpoint(Tcp::v4(), static_cast<unsigned short>(place_.port));
        if (!host.empty()) endpoint = *Tcp::resolver(io_).resolve(host, std::to_string(place_.port)).begin();
        acceptor_.emplace(io_, endpoint);
        if (on_listening_) on_listening_(acceptor_->local_endpoint().port());
        return;
      } catch (const std::system_error& e) {
        acceptor_.reset();
        if (e.code() != asio::error::address_in_use || Clock::now() >= deadline) {
          throw Error(ErrorCode::unavailable, fmt::format("{}: cannot listen on {}:{}: {}", settings_.who,
                                                          host, place_.port, e.code().message()));
        }
      }
      asio::steady_timer(io_, kRetryPause).wait();
    }
  }

  asio::awaitable<void> accept_loop() {
    while (!complete()) {
      asio::error_code error;
      Tcp::socket socket = co_await acceptor_->async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return;
      asio::co_spawn(io_, greet(std::move(socket)), asio::detached);
    }
  }

  asio::awaitable<void> greet(Tcp::socket socket) {
    const std::string from = peer_text(socket);
    try {
      auto stream = co_await accept_secure(*context_, std::move(socket), kStrangersTime);
      const json hello = json::parse(co_await read_frame(*stream, kHelloLimit));
      const std::string who = hello.at("who"), session = hello.at("session");
      const int index = hello.at("index"), size = hello.at("size");
      if (session != settings_.session) {
        co_await write_frame(*stream, fmt::format("Rsession \"{}\" meets here now", settings_.session));
        co_return;
      }
      // It knows the secret, so it belongs to the job: if it does not fit, the job has made a mistake, for
      // all to see.
      if (const Failure wrong = failure_ ? failure_ : check(who, index, size)) {
        co_await write_frame(*stream, error_frame(*wrong));
        if (!failure_) failure_ = wrong;
        ++told_;
        co_return;
      }
      Member& member = members_[static_cast<std::size_t>(index)];
      member.stream = stream;
      member.who = who;
      co_await write_frame(*stream, "W");
      member.welcome = true;
      ++connected_;
      asio::co_spawn(io_, read_parts(member), asio::detached);
    } catch (const std::exception& e) {
      refused_ = fmt::format("{}: {}", from, e.what());
      const auto level = refusals_++ < kLoudRefusals ? spdlog::level::warn : spdlog::level::debug;
      log().log(level, "bootstrap at {}: refused a connection from {}", settings_.place, refused_);
    }
  }

  Failure check(const std::string& who, int index, int size) const {
    if (size != settings_.size) {
      return Error(ErrorCode::mismatch, fmt::format("{} expects {} members, {} expects {}", who, size,
                                                    settings_.who, settings_.size));
    }
    if (index < 1 || index >= settings_.size)
      return Error(ErrorCode::mismatch, fmt::format("{} claims place {} of {}", who, index, size));
    const Member& member = members_[static_cast<std::size_t>(index)];
    if (member.stream)
      return Error(ErrorCode::mismatch,
                   fmt::format("{} and {} both claim to be {}", member.who, who, settings_.name(index)));
    return std::nullopt;
  }

  asio::awaitable<void> read_parts(Member& member) {
    ++readers_;
    try {
      while (true) {
        std::string frame = co_await read_frame(*member.stream, kFrameLimit);
        if (frame.empty() || frame[0] != 'D' || member.part)
          throw Error(ErrorCode::denied, "it sent what nobody asked for");
        member.part = frame.substr(1);
      }
    } catch (const std::exception& e) {
      if (!failure_)
        failure_ = Error(ErrorCode::peer_failed,
                         fmt::format("{} left the meeting at {}: {}", member.who, settings_.place, e.what()));
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
      throw Error(ErrorCode::timeout,
                  fmt::format("{} did not go on with the meeting at {} within the bootstrap timeout",
                              missing(), settings_.place));
    std::vector<std::string> parts;
    for (Member& m : members_) parts.push_back(std::move(*std::exchange(m.part, std::nullopt)));
    send_all("D" + pack_strings(parts), deadline);
    return parts;
  }

  std::string missing() const {
    std::string list;
    for (std::size_t i = 1; i < members_.size(); ++i) {
      if (!members_[i].stream || (complete() && !members_[i].part))
        list += (list.empty() ? "" : ", ") + settings_.name(static_cast<int>(i));
    }
    return list;
  }

  void send_all(const std::string& frame, Deadline deadline) {
    std::size_t open = 0;
    for (Member& m : members_) {
      if (!m.welcome) continue;
      ++open;
      asio::co_spawn(io_, write_frame(*m.stream, frame),
                     [&open](std::exception_ptr) { --open; });  // who is gone is found by its reader
    }
    if (!run_until([&] { return open == 0; }, deadline)) {
      for (Member& m : members_) {
        asio::error_code ignored;
        if (m.stream) m.stream->lowest_layer().close(ignored);
      }
      run_until([&] { return open == 0; }, Deadline::max());  // `open` is ours: all have to be over
    }
  }
  void tell_all(const Error& error) {
    const auto limit = Clock::now() + kFarewellTime;
    send_all(error_frame(error), limit);
    // A connection that is closed with unread data is reset, which can destroy what was sent last: let the
    // others close first.
    asio::error_code ignored;
    for (Member& m : members_) {
      if (m.welcome) m.stream->lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
    }
    run_until([this] { return readers_ == 0; }, limit);
  }

  const MeetingPlace place_;
  const std::function<void(int)> on_listening_;
  const std::function<void()> on_met_;
  std::optional<Tcp::acceptor> acceptor_;
  std::vector<Member> members_;
  std::size_t connected_ = 0, told_ = 0;  // who were let in, and who were told why not
  Failure failure_;
  std::string refused_;
  int refusals_ = 0;
  int readers_ = 0;  // connections being read
};

class Spoke final : public Star {
 public:
  Spoke(StarSettings settings, std::function<std::optional<MeetingPlace>()> find, bool secret_is_sure)
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
      asio::error_code ignored;
      if (stream_) stream_->lowest_layer().close(ignored);
      run_until([&] { return over; }, Deadline::max());  // the locals above are in use until then
      throw Error(ErrorCode::timeout,
                  stream_ ? fmt::format("{} at {} did not answer within the bootstrap timeout",
                                        settings_.name(0), settings_.place)
                          : fmt::format("{} was not reached at {} within the bootstrap timeout: {}",
                                        settings_.name(0), settings_.place, why_not_));
    }
    if (failure) std::rethrow_exception(failure);
    return parts;
  }

 private:
  asio::awaitable<void> take_part(std::string_view mine, Deadline deadline, std::vector<std::string>& parts) {
    if (!stream_) co_await meet(deadline);
    std::string frame;
    try {
      co_await write_frame(*stream_, "D" + std::string(mine));
    } catch (const std::system_error&) {
      // It may have said why before it closed.
    }
    try {
      frame = co_await read_frame(*stream_, kFrameLimit);
    } catch (const std::system_error& e) {
      throw Error(ErrorCode::peer_failed, fmt::format("{} left the meeting at {}: {}", settings_.name(0),
                                                      settings_.place, e.code().message()));
    }
    if (frame.starts_with('E')) throw_error_frame(frame);
    if (!frame.starts_with('D'))
      throw Error(ErrorCode::denied,
                  fmt::format("{} sent what this version does not understand", settings_.name(0)));
    parts = unpack_strings(std::string_view(frame).substr(1));
    if (parts.size() != static_cast<std::size_t>(settings_.size))
      throw Error(ErrorCode::mismatch, "the meeting returned another number of parts than members");
  }

  /// Tries until member 0 has welcomed this one.
  asio::awaitable<void> meet(Deadline deadline) {
    for (std::size_t turn = 0; Clock::now() < deadline; ++turn) {
      bool denied = false;
      try {
        if (co_await attempt(turn)) co_return;
      } catch (const Error& e) {
        if (e.code() != ErrorCode::denied || secret_is_sure_) throw;
        denied = true;
        why_not_ = e.what();
      } catch (const std::system_error& e) {
        why_not_ = e.code().message();
      }
      asio::steady_timer pause(io_, denied ? 10 * kRetryPause : kRetryPause);
      co_await pause.async_wait(asio::use_awaitable);
    }
    throw Error(ErrorCode::timeout, fmt::format("{} was not reached at {} within the bootstrap timeout: {}",
                                                settings_.name(0), settings_.place, why_not_));
  }

  std::string hello() const {  // here, as gcc 12 cannot compile initialiser lists of json within coroutines
    return json{{"session", settings_.session},
                {"index", settings_.index},
                {"size", settings_.size},
                {"who", settings_.who}}
        .dump();
  }

  asio::awaitable<bool> attempt(std::size_t turn) {
    const auto place = find_();
    if (!place) co_return false;
    const std::string& host = place->hosts[turn % place->hosts.size()];
    const auto endpoint = *Tcp::resolver(io_).resolve(host, std::to_string(place->port)).begin();
    context_ = make_psk_context(place->secret);
    std::shared_ptr<Stream> stream;
    try {
      stream = co_await connect_secure(*context_, endpoint, kConnectTime);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} at {}: {}", settings_.name(0), settings_.place, e.what()));
    }
    co_await write_frame(*stream, hello());
    const std::string answer = co_await read_frame(*stream, kFrameLimit);
    if (answer.starts_with('E')) throw_error_frame(answer);
    if (answer.starts_with('R')) why_not_ = answer.substr(1);
    if (!answer.starts_with('W')) co_return false;
    stream_ = stream;
    co_return true;
  }

  const std::function<std::optional<MeetingPlace>()> find_;
  const bool secret_is_sure_;
  std::shared_ptr<Stream> stream_;
  std::string why_not_ = "nobody listens there yet";
};

}  // namespace

std::unique_ptr<Bootstrap> make_star_hub(StarSettings settings, MeetingPlace place,
                                         std::function<void(int)> on_listening,
                                         std::function<void()> on_met) {
  return std::make_unique<Hub>(std::move(settings), std::move(place), std::move(on_listening),
                               std::move(on_met));
}
std::unique_ptr<Bootstrap> make_star_member(StarSettings settings,
                                            std::function<std::optional<MeetingPlace>()> find,
                                            bool secret_is_sure) {
  return std::make_unique<Spoke>(std::move(settings), std::move(find), secret_is_sure);
}

}  // namespace nzcl::bootstrap

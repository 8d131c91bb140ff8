#include "runtime/bootstrap/reception.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>
#include <variant>

#include "runtime/base/list_text.h"

namespace nzcl::bootstrap {
namespace {

asio::awaitable<MemberHello> read_hello(Stream& stream) {
  co_return parse_member_hello(co_await read_frame(stream, kHelloLimit));
}

}  // namespace

Reception::Reception(asio::io_context& io, Meeting& meeting, StreamThreads& threads, Admit admit)
    : io_(io),
      meeting_(meeting),
      threads_(threads),
      settings_(meeting.settings()),
      admit_(std::move(admit)),
      who_(static_cast<std::size_t>(meeting.size())) {}

void Reception::open(Deadline deadline) {
  NotYetLog log;
  while (const std::optional<NotYet> reason = try_to_listen(deadline)) {
    if (Clock::now() >= deadline) throw cannot_listen(reason->why);
    asio::steady_timer(io_, log.note(settings_.who, *reason)).wait();
  }
  meeting_.publish(listener_->port(), deadline);
  listener_->start(
      *context_, [this](std::shared_ptr<Stream> stream) { return greet(std::move(stream)); },
      [this] { return threads_.next(); });
}

/// Returns why it should be tried again.
std::optional<NotYet> Reception::try_to_listen(Deadline deadline) {
  const auto found = meeting_.place(deadline);
  if (const auto* reason = std::get_if<NotYet>(&found)) return *reason;
  try {
    listen_at(std::get<HubPlace>(found));
  } catch (const std::system_error& e) {
    desk_.reset();
    listener_.reset();
    if (e.code() != asio::error::address_in_use) throw cannot_listen(e.what());
    return NotYet{.why = e.what()};
  }
  return std::nullopt;
}

void Reception::listen_at(const HubPlace& place) {
  const std::string name = "rank 0: bootstrap at " + settings_.point_name;
  only_here_ = !place.addresses.empty() && are_loopback(place.addresses);
  context_ = make_psk_context(place.secret);
  listener_.emplace(io_, place.addresses, place.port, name);
  if (!place.for_this_user) return;
  desk_.emplace(io_, KeyDesk::Settings{
                         .port = listener_->port(), .key = place.secret, .name = name, .make_room = [this] {
                           return listener_ && listener_->make_room();
                         }});
}

Error Reception::cannot_listen(const std::string& why) const {
  return Error(ErrorCode::unavailable,
               fmt::format("{}: cannot listen at {}: {}", settings_.who, settings_.point_name, why));
}

void Reception::close() {
  closed_ = true;
  desk_.reset();
  listener_.reset();
}

void Reception::fail(const Error& error) {
  if (!failure_) failure_ = error;
}

Error Reception::late() const {
  std::string missing;
  for (std::size_t i = 1; i < who_.size(); ++i) {
    if (who_[i].empty()) append_item(missing, settings_.name(static_cast<int>(i)));
  }
  const std::string& refused =
      desk_ && !desk_->last_refusal().empty() ? desk_->last_refusal() : listener_->last_refusal();
  return Error(ErrorCode::timeout,
               fmt::format("{} did not come to the meeting at {}{} within the bootstrap timeout{}", missing,
                           settings_.point_name, only_here_ ? ", which only this host can reach," : "",
                           refused.empty() ? "" : "; refused: " + refused));
}

asio::awaitable<void> Reception::greet(std::shared_ptr<Stream> stream) {
  const auto executor = stream->get_executor();
  MemberHello hello = co_await run_on(executor, io_.get_executor(), read_hello(*stream));
  if (closed_) throw Error(ErrorCode::denied, "it came when the meeting was over");  // nobody would close it
  if (hello.session != settings_.session) {
    co_await run_on(executor, io_.get_executor(), write_frame(*stream, encode_retry(settings_.session)));
    co_return;
  }
  if (!failure_) failure_ = check(hello);
  if (failure_) {
    co_await run_on(executor, io_.get_executor(), write_frame(*stream, encode_refusal(*failure_)));
    ++told_;
    co_return;
  }
  const auto position = static_cast<std::size_t>(hello.position);
  if (hello.who.empty()) hello.who = settings_.name(hello.position);
  who_[position] = hello.who;
  ++come_;
  admit_(std::move(hello), std::move(stream));
}

std::optional<Error> Reception::check(const MemberHello& hello) const {
  const auto mismatch = [](std::string text) { return Error(ErrorCode::mismatch, std::move(text)); };
  if (hello.version != kMeetingVersion) return mismatch(other_version(hello.who, hello.version));
  if (hello.size != settings_.size)
    return mismatch(fmt::format("{} expects {} members, but {} expects {}", hello.who, hello.size,
                                settings_.who, settings_.size));
  if (hello.position < 1 || hello.position >= settings_.size)
    return mismatch(fmt::format("{} claims position {} of {}", hello.who, hello.position, hello.size));
  const std::string& other = who_[static_cast<std::size_t>(hello.position)];
  if (!other.empty())
    return mismatch(
        fmt::format("{} and {} both claim to be {}", other, hello.who, settings_.name(hello.position)));
  return std::nullopt;
}

}  // namespace nzcl::bootstrap

// How the control plane goes on when its hub has died, or does not answer: the first living member behind it
// takes its place.
#include <fmt/format.h>

#include <utility>

#include "runtime/bootstrap/control_reach.h"
#include "runtime/bootstrap/hub_search.h"
#include "runtime/bootstrap/star_control.h"

namespace nzcl::bootstrap {
namespace {

// How long the connection to a hub that is to take the dead one's place may take. It is shorter than the time
// for which buffers wait for all members to be quiet.
constexpr std::chrono::seconds kSuccessorTime{1};
// How often a new hub looks whether the members live that have not come to it.
constexpr std::chrono::milliseconds kLookPause{100};
// How many of these pauses pass until it calls them again, if they may still wait for a silent hub.
constexpr int kLooksPerCall = 10;
// How long a hub may take to say that it is there, or a member that is to take its place to answer, before it
// is taken for one that is stopped.
constexpr std::chrono::seconds kPresenceTime{5};
// How long a member that is called leaves its hub alone before it asks whether that is there. If the hub's
// host has vanished, the connections of all members end in about the same second, but not one that has just
// been given something to send. It is longer than the time for which buffers wait for all members to be
// quiet.
constexpr std::chrono::seconds kDoubtTime{3};
// How long a new hub waits for members that live and have not come to it, before it decides without them who
// is left.
constexpr std::chrono::seconds kPatience{3};
// The same if a hub before it was silent, which each member has to find out.
constexpr std::chrono::seconds kPatienceAfterSilence{15};
static_assert(kPatienceAfterSilence > kDoubtTime + kPresenceTime + kFlushTime + kSuccessorTime);
// Going on without one silent hub takes kPresenceTime and this patience, and some seconds more. Whoever makes
// one of them longer has to look at kDecisionTime (regrouping.cc), which is meant for two such hubs.
// How long a member that is called as the next hub keeps the caller waiting until it knows whether it is.
constexpr std::chrono::seconds kHubshipTime{3};
static_assert(kHubshipTime < kPresenceTime);

}  // namespace

/// Once the members know each other's addresses.
void StarControl::look_for_hub() {
  if (!settled_ || looking_for_hub_ || is_hub() || to_hub() != nullptr) return;
  looking_for_hub_ = true;
  asio::co_spawn(io_, find_hub(), [this](std::exception_ptr) {
    looking_for_hub_ = false;
    if (!is_over()) look_for_hub();  // the one that was found may have died meanwhile
  });
}

/// Nobody on such a host can be reached, and there would be nobody to refuse a connection to it.
void StarControl::host_vanished(const std::string& id) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (static_cast<int>(i) != self_ && addresses_[i].host_id == id) mark_gone(i, false);
  }
}

/// Joins the first member behind the lost hub that lives. If that is this member, it is the new hub.
asio::awaitable<void> StarControl::find_hub() {
  for (int next = hub_ + 1; next < self_; ++next) {
    const auto position = static_cast<std::size_t>(next);
    heard_ = Clock::now();
    while (!members_[position].gone && !is_over()) {
      if (co_await call_member(position)) {
        tell_hub_quiet();
        co_return say_regroup_state();
      }
      co_await look(position);
      if (somebody_is_late() && Clock::now() - heard_ > kPresenceTime) mark_gone(position, false);
      asio::steady_timer pause(io_, kRetryPause);
      co_await pause.async_wait(asio::use_awaitable);
    }
  }
  if (!is_over()) take_over();
}

/// Whether those who are silent are not to be waited for any more.
bool StarControl::somebody_is_late() const { return hub_is_doubted_ || regrouping_.state().late; }

asio::awaitable<bool> StarControl::call_member(std::size_t position) {
  for (const std::string& host : addresses_[position].hosts) {
    if (co_await call(position, host)) co_return true;
    if (is_over()) break;
  }
  co_return false;
}

/// Marks the member as gone if it does not live, unless it comes meanwhile.
asio::awaitable<void> StarControl::look(std::size_t position) {
  const HubAddress& address = addresses_[position];
  const Reach reached = co_await reach(address.hosts, address.port, [this] { return is_over(); });
  if (reached != Reach::accepts && !members_[position].connection)
    mark_gone(position, reached == Reach::refuses);
}

/// Members before this one have died, and those behind it will come, unless they have died as well.
void StarControl::take_over() {
  bool silent = false;
  for (int before = 0; before < self_; ++before) {
    const auto i = static_cast<std::size_t>(before);
    mark_gone(i, members_[i].dead);
    silent |= !members_[i].dead;
  }
  hub_ = self_;
  regroup_board_.took_over();
  for (std::size_t i = static_cast<std::size_t>(self_) + 1; i < members_.size(); ++i)
    asio::co_spawn(io_, look_after(i, silent), asio::detached);
  check_all();
  patience_time_.emplace(io_, silent ? kPatienceAfterSilence : kPatience);
  patience_time_->async_wait([this](const asio::error_code& error) {
    if (error || shut_) return;
    regroup_board_.patience_is_over();
    decide_regrouping();
  });
  say_regroup_state();
}

/// On a new hub: until the member has come, looks from time to time whether it lives. With `call_it` it may
/// not have noticed yet that a hub before was silent.
asio::awaitable<void> StarControl::look_after(std::size_t index, bool call_it) {
  const Member& member = members_[index];
  for (int looks = 0; !member.gone; ++looks) {
    asio::steady_timer pause(io_, kLookPause);
    co_await pause.async_wait(asio::use_awaitable);
    if (member.connection || is_over()) co_return;
    if (call_it && looks % kLooksPerCall == 0) co_await call_member(index);
    co_await look(index);
  }
  check_all();
  decide_regrouping();
}

void StarControl::tell_hub_quiet() {
  ControlConnection* const hub = to_hub();
  if (hub != nullptr && members_[static_cast<std::size_t>(self_)].quiet) hub->send({{"type", "quiet"}});
}

/// Somebody calls this member, either as a hub, or to become one.
asio::awaitable<void> StarControl::greet(std::shared_ptr<Stream> stream) {
  const MemberHello hello = parse_member_hello(co_await read_frame(*stream, kHelloLimit));
  if (!is_hub() && !shut_) {
    hub_is_doubted_ = true;
    doubt_hub();
    if (hello.position < self_)
      co_return;  // it is the hub now, and if the one before is silent, it is called
    co_await await_hubship();
  }
  if (shut_) throw Error(ErrorCode::denied, "it came when this member was leaving");  // nobody would close it
  if (!is_hub()) co_return;
  const auto index = static_cast<std::size_t>(hello.position);
  if (hello.position <= self_ || index >= members_.size() || members_[index].connection)
    throw Error(ErrorCode::denied,
                fmt::format("it claims to be member {}, but no such member is awaited", hello.position));
  connect(index, std::move(stream))->send_bytes(encode_welcome());
}

/// Ends early if this member becomes the hub.
asio::awaitable<void> StarControl::await_hubship() {
  const auto end = Clock::now() + kHubshipTime;
  while (!is_hub() && !shut_ && Clock::now() < end) {
    asio::steady_timer pause(io_, kLookPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

/// Calls the member at this position by one of its addresses. If it is the hub and lets this member in, it is
/// this member's hub from then on. Returns false otherwise.
asio::awaitable<bool> StarControl::call(std::size_t position, std::string host) {
  try {
    const Tcp::endpoint endpoint(asio::ip::make_address(host),
                                 static_cast<unsigned short>(addresses_[position].port));
    const auto stream = co_await connect_secure(*context_, endpoint, kSuccessorTime);
    heard_ = Clock::now();
    if (shut_) co_return false;
    calling_.insert(stream);  // the destructor closes it if there is no answer
    const auto over = std::shared_ptr<void>(nullptr, [&](void*) { calling_.erase(stream); });
    asio::steady_timer limit(io_, kPresenceTime);
    limit.async_wait([stream](const asio::error_code& error) {
      asio::error_code ignored;
      if (!error) stream->lowest_layer().close(ignored);
    });
    const std::string why_not = co_await introduce(*stream, me_, "");
    if (shut_ || is_hub() || !why_not.empty()) co_return false;
    hub_ = static_cast<int>(position);
    connect(position, stream);
    co_return true;
  } catch (const std::exception&) {  // it is tried again for as long as the member lives
  }
  co_return false;
}

/// Asks the hub in a moment, if the connection with it has not ended by then.
void StarControl::doubt_hub() {
  if (to_hub() == nullptr) return look_for_hub();
  if (doubt_time_) return;
  doubt_time_.emplace(io_, kDoubtTime);
  doubt_time_->async_wait([this](const asio::error_code& error) {
    if (error) return;
    doubt_time_.reset();
    ask_hub();
  });
}

/// On another member than the hub. A hub that does not answer, perhaps because it is stopped, is replaced.
void StarControl::ask_hub() {
  if (shut_ || is_hub()) return;
  ControlConnection* const hub = to_hub();
  if (hub == nullptr) return look_for_hub();
  if (presence_time_ && !hub_is_there_) return;  // it has been asked
  hub_is_there_ = false;
  hub->send({{"type", "there?"}});
  presence_time_.emplace(io_, kPresenceTime);
  presence_time_->async_wait([this, asked = hub_](const asio::error_code& error) {
    if (error) return;
    presence_time_.reset();
    if (!shut_ && !hub_is_there_ && hub_ == asked) drop_hub();
  });
}

/// When the hub goes on, it finds that it has been left out.
void StarControl::drop_hub() {
  ControlConnection* const hub = to_hub();
  if (hub == nullptr) return;
  const auto position = static_cast<std::size_t>(hub_);
  hub->send_bytes(encode(RegroupFrame::of(RegroupVerdict{
      .kind = RegroupVerdict::Kind::leave_out,
      .attempt = 0,
      .members = {},
      .failure = {ErrorCode::aborted,
                  fmt::format("shrink: {} was left out, because it did not answer", names_[position])}})));
  hub->finish();
  mark_gone(position, false);
}

/// A hub that one member has left out sends the others to the next one, so that they all have the same.
void StarControl::resign() {
  if (regrouping_.state().stage == RegroupState::Stage::committed) return;
  listener_.reset();
  for (const Member& m : members_) {
    if (m.connection) m.connection->finish();
  }
}

}  // namespace nzcl::bootstrap

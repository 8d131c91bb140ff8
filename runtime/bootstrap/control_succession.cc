// How the control plane goes on when its hub has died: the first living member behind it takes its place.
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
// How long a new hub waits for members that live and have not come to it, before it decides without them who
// is left.
constexpr std::chrono::seconds kPatience{3};
// The same if a hub before it was silent: each member waits for that until its own deadline, which comes as
// much later as its call did, for instance after closing another communicator (close_timeout_s).
constexpr std::chrono::seconds kPatienceAfterSilence{15};

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
    candidate_ = position;
    while (!members_[position].gone && !is_over()) {
      if (co_await call_successor(position)) {
        tell_hub_quiet();
        co_return say_regroup_state();
      }
      co_await look(position);
      asio::steady_timer pause(io_, kRetryPause);
      co_await pause.async_wait(asio::use_awaitable);
    }
  }
  if (!is_over()) take_over();
}

asio::awaitable<bool> StarControl::call_successor(std::size_t position) {
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
  listener_->start(*context_, [this](std::shared_ptr<Stream> stream) { return greet(std::move(stream)); });
  for (std::size_t i = static_cast<std::size_t>(self_) + 1; i < members_.size(); ++i)
    asio::co_spawn(io_, look_after(i), asio::detached);
  check_all();
  patience_time_.emplace(io_, silent ? kPatienceAfterSilence : kPatience);
  patience_time_->async_wait([this](const asio::error_code& error) {
    if (error || shut_) return;
    regroup_board_.patience_is_over();
    decide_regrouping();
  });
  say_regroup_state();
}

/// On a new hub: until the member has come, looks from time to time whether it lives.
asio::awaitable<void> StarControl::look_after(std::size_t index) {
  const Member& member = members_[index];
  while (!member.gone) {
    asio::steady_timer pause(io_, kLookPause);
    co_await pause.async_wait(asio::use_awaitable);
    if (member.connection || is_over()) co_return;
    co_await look(index);
  }
  check_all();
  decide_regrouping();
}

void StarControl::tell_hub_quiet() {
  ControlConnection* const hub = to_hub();
  if (hub != nullptr && members_[static_cast<std::size_t>(self_)].quiet) hub->send({{"type", "quiet"}});
}

asio::awaitable<void> StarControl::greet(std::shared_ptr<Stream> stream) {
  const MemberHello hello = parse_member_hello(co_await read_frame(*stream, kHelloLimit));
  if (shut_) throw Error(ErrorCode::denied, "it came when this member was leaving");  // nobody would close it
  const auto index = static_cast<std::size_t>(hello.position);
  if (hello.position <= self_ || index >= members_.size() || members_[index].connection)
    throw Error(ErrorCode::denied,
                fmt::format("it claims to be member {}, but no such member is awaited", hello.position));
  connect(index, std::move(stream))->send_bytes(encode_welcome());
}

/// Joins the hub at this position by one of its addresses. Returns false if that fails.
asio::awaitable<bool> StarControl::call(std::size_t position, std::string host) {
  try {
    const Tcp::endpoint endpoint(asio::ip::make_address(host),
                                 static_cast<unsigned short>(addresses_[position].port));
    const auto stream = co_await connect_secure(*context_, endpoint, kSuccessorTime);
    if (shut_) co_return false;
    calling_ = stream;  // the destructor closes it if the hub does not answer
    const std::string why_not = co_await introduce(*stream, me_);
    calling_.reset();
    if (shut_ || !why_not.empty()) co_return false;
    hub_ = static_cast<int>(position);
    connect(position, stream);
    co_return true;
  } catch (const std::exception&) {  // it is tried again for as long as the member lives
  }
  co_return false;
}

}  // namespace nzcl::bootstrap

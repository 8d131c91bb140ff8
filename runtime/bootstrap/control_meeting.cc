// How the control plane comes to life.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <future>

#include "runtime/base/start_thread.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/hub_search.h"
#include "runtime/bootstrap/random_secret.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/bootstrap/star_control.h"

namespace nzcl::bootstrap {
namespace {

// How long the hub of a failed meeting goes on listening, so that members that come a little later learn the
// reason.
constexpr std::chrono::seconds kLateTime{3};
// Only the hub knows which members are missing. The others wait this much longer than their deadline for its
// answer.
constexpr std::chrono::seconds kGrace{2};
// How often a member that waits looks whether the meeting is over.
constexpr std::chrono::milliseconds kMeetingPause{20};

std::vector<std::string> names_of(const MeetingSettings& settings) {
  std::vector<std::string> names;
  for (int i = 0; i < settings.size; ++i) names.push_back(settings.name(i));
  return names;
}

/// The address of this host on a connection, or "" if it leads to this host itself.
std::string address_on(Stream& stream) {
  asio::error_code none;
  asio::ip::address address = stream.lowest_layer().local_endpoint(none).address();
  if (none || is_loopback(address)) return {};
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return address.to_string();
}

// A function of its own, because gcc 12 cannot compile initialiser lists of json within lambdas of
// coroutines.
nlohmann::json met(const std::string& key) { return {{"type", "met"}, {"key", key}}; }

}  // namespace

StarControl::StarControl(MeetingSettings self, std::string introduction)
    : me_(std::move(self)),
      self_(me_.position),
      members_(static_cast<std::size_t>(me_.size)),
      introductions_(members_.size()),
      names_(names_of(me_)),
      board_(names_),
      leaves_(names_, {}),
      regrouping_({.tell_hub = [this] { asio::post(io_, [this] { say_regroup_state(); }); },
                   .ask_hub = [this] { asio::post(io_, [this] { ask_hub(); }); }}),
      regroup_board_(names_, {}),
      work_(asio::make_work_guard(io_)) {
  introductions_[static_cast<std::size_t>(self_)] = std::move(introduction);
}

void StarControl::meet(Meeting& meeting, Deadline deadline) {
  try {
    if (members_.size() > 1) is_hub() ? receive_members(meeting, deadline) : join_hub(meeting, deadline);
  } catch (const std::exception& e) {
    if (is_hub()) fail(failure_of(e));  // the destructor sends it before it closes the connections
    meeting.give_up(failure_of(e), deadline);
    throw;
  }
  thread_ = start_thread("nzcl-control", [this] {
    return std::jthread([this] {
      ::pthread_setname_np(::pthread_self(), "nzcl-control");
      io_.run();
    });
  });
}

/// Runs the io_context until done() is true, which may also become so by itself. Returns false when the
/// deadline comes first.
template <typename Done>
bool StarControl::run_until(Done done, Deadline deadline) {
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    io_.run_one_until(std::min(deadline, Clock::now() + kMeetingPause));
  }
  return true;
}

void StarControl::throw_failure() const {
  if (const auto failed = failure()) throw Error(failed->code, failed->text);
}

void StarControl::receive_members(Meeting& meeting, Deadline deadline) {
  stream_threads_.emplace(io_, members_.size());
  reception_.emplace(io_, meeting, *stream_threads_,
                     [this](MemberHello hello, std::shared_ptr<Stream> stream) {
                       admit(std::move(hello), std::move(stream));
                     });
  Reception& reception = *reception_;
  reception.open(deadline);
  const auto is_decided = [&] {
    return reception.all_have_come() || reception.failure() || is_failed() || meeting.ended_by();
  };
  const bool over = run_until(is_decided, deadline);
  meeting.throw_if_ended();
  if (const auto lost = failure()) reception.fail(Error(lost->code, lost->text));
  if (reception.failure()) {  // members that come a little later should learn the reason too
    fail({reception.failure()->code(), reception.failure()->what()});
    run_until([&] { return reception.all_have_come_or_been_told(); },
              std::min(deadline, Clock::now() + kLateTime));
  }
  const std::optional<Error> error = !over ? reception.late() : reception.failure();
  reception.close();
  if (error) throw Error(*error);
  meeting.all_have_come();
  broadcast(met(random_secret()));
  const FrameBytes frame = FrameBytes::of(encode(GatherFrame{.kind = GatherFrame::Kind::parts,
                                                             .name = kIntroductions,
                                                             .members = {},
                                                             .parts = introductions_,
                                                             .failure = {}}));
  for (const Member& m : members_) {
    if (m.connection) m.connection->send_frame(frame);
  }
}

void StarControl::admit(MemberHello hello, std::shared_ptr<Stream> stream) {
  const auto position = static_cast<std::size_t>(hello.position);
  names_[position] = std::move(hello.who);
  introduced_bytes_ += hello.introduction.size();
  introductions_[position] = std::move(hello.introduction);
  if (introduced_bytes_ > kGatherLimit)
    reception_->fail(Error(ErrorCode::unsupported,
                           fmt::format("the members say more than {} bytes of themselves", kGatherLimit)));
  if (local_address_.empty()) local_address_ = address_on(*stream);
  connect(position, std::move(stream))->send_bytes(encode_welcome());
}

void StarControl::join_hub(Meeting& meeting, Deadline deadline) {
  HubSearch search(io_, meeting, introductions_[static_cast<std::size_t>(self_)]);
  std::shared_ptr<Stream> stream;
  std::exception_ptr error;
  bool over = false;
  asio::co_spawn(io_, search.find(deadline), [&](std::exception_ptr e, std::shared_ptr<Stream> found) {
    error = e;
    stream = std::move(found);
    over = true;
  });
  run_until([&] { return over || meeting.ended_by(); }, deadline + kGrace);
  if (!over) {
    const Error late = search.late();  // before the connection is closed, which changes it
    search.stop();
    run_until([&] { return over; }, Deadline::max());  // the coroutine uses the locals above until then
    meeting.throw_if_ended();
    throw Error(late);
  }
  if (error) std::rethrow_exception(error);
  local_address_ = address_on(*stream);
  calls_.begin(kIntroductions);
  connect(0, std::move(stream));
  const auto all_have_met = [&] {
    return context_ && calls_.wait(kIntroductions, Clock::now()) == GatherCalls::State::answered;
  };
  const bool answered =
      run_until([&] { return all_have_met() || is_failed() || meeting.ended_by(); }, deadline + kGrace);
  throw_failure();
  meeting.throw_if_ended();
  if (!answered)
    throw Error(ErrorCode::timeout, fmt::format("{} at {} did not answer within the bootstrap timeout",
                                                names_[0], me_.point_name));
  take_introductions();
}

void StarControl::take_introductions() {
  auto answer = calls_.end(kIntroductions);
  if (!answer || answer->kind != GatherFrame::Kind::parts || answer->parts.size() != members_.size())
    throw Error(ErrorCode::mismatch, names_[0] + " did not tell what each member says of itself");
  introductions_ = std::move(answer->parts);
}

void StarControl::settle(Settings settings, Deadline deadline) {
  const std::string own = open_port(std::move(settings));
  if (members_.size() == 1) return settle({own});
  settle(Rounds(*this, "control plane", me_.size, self_).allgather(own, deadline));
}

std::string StarControl::open_port(Settings settings) {
  const std::shared_ptr<Listener> listener = listen(settings);
  std::string own = own_address(listener.get());
  asio::post(io_, [this, listener, settings = std::move(settings)]() mutable {
    listener_ = listener;
    take_settings(std::move(settings));
  });
  return own;
}

void StarControl::settle(const std::vector<std::string>& told) {
  asio::post(io_, [this, addresses = addresses_of(told)]() mutable { take_addresses(std::move(addresses)); });
}

std::unique_ptr<Listener> StarControl::listen(const Settings& settings) {
  if (self_ == 0) return nullptr;
  return std::make_unique<Listener>(io_, settings.one_host ? resolve(own_loopback()) : Addresses(), 0,
                                    settings.names[static_cast<std::size_t>(self_)] + ": control plane");
}

std::string StarControl::own_address(const Listener* listener) const {
  return json_text({{"port", listener != nullptr ? listener->port() : 0},
                    {"hosts", host_addresses()},
                    {"host_id", host_id()}});
}

std::vector<HubAddress> StarControl::addresses_of(const std::vector<std::string>& told) const {
  std::vector<HubAddress> all;
  const std::string here = host_id(), loopback = own_loopback();  // asked once: they take system calls
  for (const std::string& text : told) {
    HubAddress address = parse_hub_address(text);
    if (address.host_id == here) address.hosts = {loopback};
    for (const std::string& host : address.hosts) {
      asio::error_code error;
      asio::ip::make_address(host, error);
      if (error)
        throw Error(ErrorCode::mismatch,
                    fmt::format("{} says that its control plane is at \"{}\", which is no address",
                                me_.name(static_cast<int>(all.size())), host));
    }
    all.push_back(std::move(address));
  }
  return all;
}

void StarControl::take_settings(Settings settings) {
  names_ = std::move(settings.names);
  serves_ = std::move(settings.serves);
  board_.rename(names_);
  leaves_ = LeaveBoard(names_, serves_);
  regroup_board_ = RegroupBoard(names_, serves_);
  if (const auto why = failure()) regroup_board_.failed(*why);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    members_[i].bye = serves(i);  // a member that serves leaves last, so nobody waits for its goodbye
    if (!members_[i].gone) continue;
    leaves_.gone(i);
    regroup_board_.gone(i, members_[i].dead);
  }
  named_ = true;
}

void StarControl::take_addresses(std::vector<HubAddress> addresses) {
  addresses_ = std::move(addresses);
  settled_ = true;
  if (listener_)
    listener_->start(*context_, [this](std::shared_ptr<Stream> stream) { return greet(std::move(stream)); });
  if (!is_hub() && members_[0].gone) look_for_hub();
}

void StarControl::watch(std::function<Progress()> progress, std::function<void()> on_failure) {
  asio::post(io_, [this, progress = std::move(progress), on_failure = std::move(on_failure)]() mutable {
    progress_ = std::move(progress);
    on_failure_ = std::move(on_failure);
    if (is_failed()) on_failure_();
  });
}

void StarControl::unwatch() {
  std::promise<void> done;
  asio::post(io_, [this, &done] {
    progress_ = [] { return Progress{}; };
    on_failure_ = [] {};
    done.set_value();
  });
  done.get_future().wait();
}

std::unique_ptr<ControlPlane> ControlPlane::join(Meeting& meeting, Deadline deadline,
                                                 std::string introduction) {
  auto control = std::make_unique<StarControl>(meeting.settings(), std::move(introduction));
  control->meet(meeting, deadline);
  return control;
}

}  // namespace nzcl::bootstrap

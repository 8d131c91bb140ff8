#include "runtime/lane/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "runtime/base/plain_floats.h"
#include "runtime/exchange/contributions/agreement.h"
#include "runtime/lane/make_exchange.h"
#include "runtime/plan/tuning.h"
#include "runtime/trace/trace.h"
#include "verbs/random.h"

namespace nzcl::engine {

using verbs::Clock;
using wire::Direction;
using wire::Immediate;
using wire::Priority;

namespace {

// Small operations come first, so that they overtake large ones.
constexpr std::array kPrioritiesInOrder{Priority::express, Priority::doubling, Priority::merging,
                                        Priority::bulk};

/// What a member tells the others about a lane: where its memory is, how its messages are sealed, the
/// addresses of the exchanges that have a port of their own, and the endpoint's.
struct LaneAddress {
  verbs::RemoteMemory memory;
  wire::Sealing sealing;
  std::array<std::string, wire::kPriorities> exchanges;  // each shorter than 256 bytes
  std::string endpoint;

  static constexpr std::size_t kFixed = sizeof memory + sizeof sealing.secret + 1;

  std::string encode() const {
    std::string text(kFixed, '\0');
    std::memcpy(text.data(), &memory, sizeof memory);
    std::memcpy(text.data() + sizeof memory, &sealing.secret, sizeof sealing.secret);
    text.back() = sealing.checksum ? 1 : 0;
    for (const std::string& exchange : exchanges) text += static_cast<char>(exchange.size()) + exchange;
    return text + endpoint;
  }
  /// Returns nothing for a text that is too short.
  static std::optional<LaneAddress> decode(std::string_view text) {
    LaneAddress address;
    if (text.size() < kFixed) return std::nullopt;
    std::memcpy(&address.memory, text.data(), sizeof address.memory);
    std::memcpy(&address.sealing.secret, text.data() + sizeof address.memory, sizeof address.sealing.secret);
    address.sealing.checksum = text[kFixed - 1] != 0;
    text.remove_prefix(kFixed);
    for (std::string& exchange : address.exchanges) {
      const std::size_t bytes = text.empty() ? 0 : static_cast<unsigned char>(text.front());
      if (text.size() < 1 + bytes) return std::nullopt;
      exchange = text.substr(1, bytes);
      text.remove_prefix(1 + bytes);
    }
    address.endpoint = text;
    return text.empty() ? std::nullopt : std::optional(address);
  }
};

/// How long drain() waits for a round that another thread makes.
constexpr std::chrono::milliseconds kLongestDrainWait{100};

/// The lock, or none if it is not free within `limit`.
std::unique_lock<TryLock> lock_within(TryLock& free, std::chrono::nanoseconds limit) {
  constexpr std::chrono::microseconds kBetweenLooks{100};
  const auto deadline = Clock::now() + limit;
  std::unique_lock lock(free, std::try_to_lock);
  while (!lock && Clock::now() < deadline) {
    std::this_thread::sleep_for(kBetweenLooks);
    static_cast<void>(lock.try_lock());
  }
  return lock;
}

/// Where each member is.
std::vector<verbs::Level> levels_of(const EngineConfig& config) {
  std::vector<verbs::Level> levels;
  for (const LinkConfig& link : config.links) levels.push_back(link.level);
  return levels;
}

/// The configuration is kept once, in the context: what it says of each member adds up.
LaneOptions without_config(LaneOptions options) {
  options.config = {};
  return options;
}

bool lends_any(const EngineConfig& config, int member) {
  return std::any_of(kPrioritiesInOrder.begin(), kPrioritiesInOrder.end(),
                     [&](Priority p) { return config.lends(p, config.members.self, member); });
}

}  // namespace

Lane::Lane(const LaneOptions& options, std::shared_ptr<verbs::Device> device)
    : options_(without_config(options)),
      device_(std::move(device)),
      context_(options.config),
      memory_(context_.config, *device_),
      endpoint_(device_->open_endpoint({.self = static_cast<verbs::PeerId>(options.config.members.self),
                                        .peers = static_cast<std::size_t>(options.config.members.count()),
                                        .arrivals = immediates_bound(options.config),
                                        .allocated = memory_.bytes(),
                                        .peer_descriptors = options.peer_descriptors,
                                        .halted = &halted_,
                                        .levels = levels_of(options.config)})) {
  context_.seal_secret = verbs::random_number();
  memory_.attach(context_);
  for (const Priority p : kPrioritiesInOrder) {
    auto& exchange = exchanges_[static_cast<std::size_t>(p)];
    exchange = make_exchange(context_, p);
    if (exchange) existing_ |= bit_of(p);
  }
  awake_ = existing_;
  // An exchange that has a port of its own leaves the endpoint alone.
  const bool endpoint_is_used = std::ranges::any_of(
      exchanges_, [](const auto& exchange) { return exchange && exchange->wait_fd() < 0; });
  has_fd_ = endpoint_->wait_fd() >= 0 && endpoint_is_used;
}

Lane::~Lane() = default;

std::string Lane::address_for(int peer) {
  LaneAddress address{memory_.remote(context_.config.link(peer).level),
                      {.secret = context_.seal_secret, .checksum = context_.config.checksum},
                      {},
                      endpoint_->address_for(static_cast<verbs::PeerId>(peer))};
  for (std::size_t p = 0; p < exchanges_.size(); ++p) {
    if (exchanges_[p]) address.exchanges[p] = exchanges_[p]->address();
  }
  return address.encode();
}

void Lane::connect(std::span<const std::string> addresses, verbs::Deadline deadline) {
  const Members& members = context_.config.members;
  std::vector<std::string> endpoints(addresses.size());
  std::array<std::vector<std::string>, wire::kPriorities> ports;
  std::vector<std::pair<int, verbs::RemoteMemory>> lenders;
  for (int member = 0; member < members.count(); ++member) {
    if (member == members.self) {  // an endpoint does not connect to itself
      for (std::size_t p = 0; p < ports.size(); ++p)
        ports[p].push_back(exchanges_[p] ? exchanges_[p]->address() : std::string());
      continue;
    }
    const auto address = LaneAddress::decode(addresses[static_cast<std::size_t>(member)]);
    if (!address)
      throw Error(ErrorCode::transport, fmt::format("{} gave no usable address", members.name(member)));
    for (std::size_t p = 0; p < ports.size(); ++p) ports[p].push_back(address->exchanges[p]);
    const bool needed = members.is_worker(member)
                            ? members.is_aggregator(members.self) || members.dedicated == 0
                            : members.is_worker(members.self);
    if (!needed) continue;
    memory_.attach_peer(context_, member, address->memory);
    context_.sealings[static_cast<std::size_t>(member)] = address->sealing;
    lenders.emplace_back(member, address->memory);
    endpoints[static_cast<std::size_t>(member)] = address->endpoint;
  }
  for (std::size_t p = 0; p < ports.size(); ++p) {
    if (exchanges_[p]) exchanges_[p]->connect(ports[p]);
  }
  endpoint_->connect(endpoints, deadline);
  for (const auto& [member, memory] : lenders) {
    if (!lends_any(context_.config, member)) continue;
    const std::byte* base =
        endpoint_->view(static_cast<verbs::PeerId>(member), memory, memory_.layout().bytes(member));
    if (base == nullptr)
      throw Error(ErrorCode::transport, fmt::format("the memory of {} cannot be read", members.name(member)));
    memory_.attach_lender(context_, member, base);
  }
}

void Lane::submit(Operation* operation) {
  submissions_.push(operation);
  wake();
}

void Lane::ring() noexcept {
  rung_.store(true, std::memory_order_seq_cst);
  wake();
}

/// Only the first of those that find the lane asleep makes the system call.
void Lane::wake() noexcept {
  if (sleeping_.load(std::memory_order_seq_cst) && sleeping_.exchange(false)) doorbell_.ring();
}

void Lane::take_submissions() {
  while (Operation* const operation = submissions_.pop()) {
    operations_[operation->table_index] = operation;
    const Priority p = operation->layout.priority();
    // What is staged may yet be refused, by another thread.
    agree(context_, context_.config.members.self, operation->epoch, operation->record,
          operation->staged ? nullptr : operation->refusal.get());
    exchange(p).submit(*operation);
    look_at(p);
  }
}

bool Lane::drive() {
  const std::unique_lock lock(drive_, std::try_to_lock);
  if (!lock) return false;
  caller_rounds_.store(caller_rounds_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  const bool moved = round();
  if (moved) disturbed_.store(true, std::memory_order_relaxed);
  return moved;
}

bool Lane::round() {
  // The exchange comes before the looks at what may be ready, so that a ring behind it is not lost.
  const bool rung = rung_.load(std::memory_order_relaxed) && rung_.exchange(false, std::memory_order_seq_cst);
  moved_ = unprompted_ = false;
  if (!endpoint_ || context_.failure || halted_.load(std::memory_order_acquire)) return false;
  const PlainFloats floats;  // the thread may be the caller's
  // What this member has to send leaves before it looks at what has come, because others may wait for it, and
  // what has come must first be fetched from their cores.
  const bool submitted = !submissions_.empty();
  if (submitted) {
    take_submissions();
    work();
  }
  const std::size_t n = endpoint_->poll(completions_);
  // The lane may have been halted while this thread was stuck in the transport; its operations may be gone
  // then. Nothing of them is read before this load.
  if (halted_.load(std::memory_order_acquire)) return false;
  for (std::size_t i = 0; i < n; ++i) prefetch(completions_[i]);
  for (std::size_t i = 0; i < n; ++i) dispatch(completions_[i]);
  if (n == 0 && busy_ != 0) expect_messages();
  bool moved = submitted || n > 0;
  const bool prompted = moved || rung;
  if (rung) awake_ = existing_;  // a small operation may have waited for what is ready now
  if (awake_ != 0 || !context_.outbox.empty()) moved |= work();
  moved_ = moved;
  unprompted_ = moved && !prompted;
  check_timeout(moved);
  if (context_.failure && !failure_told_) {
    failure_told_ = true;
    options_.on_failure(*context_.failure);
  }
  return moved;
}

/// Lets the exchanges work, and posts what they want to be written. Returns true if anything moved.
bool Lane::work() {
  const bool moved = step_exchanges();
  // An exchange may have stopped only for lack of room.
  const bool was_full = context_.outbox.room() == 0;
  post();
  if (was_full || !context_.outbox.empty()) awake_ = existing_;
  is_active_.store(busy_ != 0 || !context_.outbox.empty(), std::memory_order_relaxed);
  return moved;
}

/// Called when nothing has arrived although exchanges have something under way.
void Lane::expect_messages() {
  for (const Priority p : kPrioritiesInOrder) {
    if ((busy_ & bit_of(p)) != 0) exchange(p).expect_messages();
  }
}

bool Lane::step_exchanges() {
  bool moved = false;
  for (const Priority p : kPrioritiesInOrder) {
    const std::uint8_t bit = bit_of(p);
    if ((awake_ & bit) == 0) continue;
    const bool any = exchange(p).step();
    const bool idle = exchange(p).idle();
    busy_ = static_cast<std::uint8_t>(idle ? busy_ & ~bit : busy_ | bit);
    const bool may_rest = idle || p == Priority::express || p == Priority::doubling;
    // What arrives at an exchange's own port is no completion.
    if (!any && may_rest && exchange(p).wait_fd() < 0) awake_ &= static_cast<std::uint8_t>(~bit);
    moved |= any;
  }
  return moved;
}

void Lane::dispatch(const verbs::Completion& completion) {
  switch (completion.kind) {
    case verbs::Completion::Kind::written:
      written(completion.context);
      break;
    case verbs::Completion::Kind::arrived:
      arrived(completion.immediate);
      break;
    case verbs::Completion::Kind::failed:
      context_.fail(ErrorCode::peer_failed,
                    fmt::format("{} lost {}: {}", context_.config.members.name(context_.config.members.self),
                                completion.peer == verbs::Completion::kNoPeer
                                    ? std::string("its connection")
                                    : context_.config.members.name(static_cast<int>(completion.peer)),
                                endpoint_->failure()));
      break;
  }
}

void Lane::written(std::uint64_t bits) {
  const WriteContext context = WriteContext::decode(bits);
  look_at(context.priority);
  if (context.staging) context_.pool(context.priority).release(*context.staging);
  // This comes last, because the operation may be deleted from here on.
  if (context.operation) operations_[*context.operation]->local_write_done();
}

void Lane::arrived(std::uint32_t bits) {
  const Immediate immediate = wire::decode(bits);
  if (const char* wrong = take(immediate)) {
    context_.fail(ErrorCode::transport,
                  fmt::format("{} {} (immediate {:#010x})",
                              context_.config.members.name(immediate.channel.member), wrong, bits));
  }
}

/// Acts on an immediate. Returns what is wrong with it, as a part of a sentence, or nullptr.
const char* Lane::take(const Immediate& immediate) {
  const wire::ChannelId channel = immediate.channel;
  const Members& members = context_.config.members;
  if (channel.member >= members.count()) return "does not exist, and something came from it";
  if (channel.member == members.self) return "is this one, and something came from it";
  look_at(channel.priority);
  switch (immediate.kind) {
    case Immediate::Kind::message:
      return context_.message_announced(channel, immediate.value);
    case Immediate::Kind::credit:
      return context_.credit_announced(channel, immediate.value);
    case Immediate::Kind::direct:
      if (channel.direction == Direction::up) return "announced a direct write upwards, where there are none";
      if (context_.config.link(channel.member).ordered)
        return "announced a direct write, although its writes arrive in order";
      if ((existing_ & bit_of(channel.priority)) == 0)
        return "announced a direct write at a priority that nothing is exchanged at";
      exchange(channel.priority).direct_arrived(channel.member, immediate.value);
      return nullptr;
  }
  return "sent an immediate of a kind that does not exist";  // decode() returns no other kind
}

/// Fetches the beginning of an announced message into the cache, so that several are on their way at once.
void Lane::prefetch(const verbs::Completion& completion) {
  if (completion.kind != verbs::Completion::Kind::arrived) return;
  const Immediate immediate = wire::decode(completion.immediate);
  const wire::ChannelId& from = immediate.channel;
  if (immediate.kind != Immediate::Kind::message || from.member >= context_.config.members.count()) return;
  context_.channels(from.priority, from.member).receive(from.direction).prefetch(immediate.value);
}

void Lane::post() {
  if (context_.outbox.empty()) return;
  const trace::Span span(trace::What::post, 0, 0);
  post_at(verbs::Level::between);
  post_at(verbs::Level::within);
}

void Lane::post_at(verbs::Level level) {
  while (true) {
    const auto pending = context_.outbox.pending(level);
    if (pending.empty()) return;
    const std::size_t accepted = endpoint_->post(pending);
    context_.outbox.pop(accepted, level);
    if (accepted < pending.size()) return;
  }
}

void Lane::check_timeout(bool moved) {
  if (moved) {
    moved_since_check_ = true;
    return;
  }
  if (++quiet_rounds_ < kRoundsPerCheck) return;
  quiet_rounds_ = 0;
  const auto now = Clock::now();
  if (moved_since_check_ || !is_active_.load(std::memory_order_relaxed)) {
    last_moved_ = now;
    moved_since_check_ = false;
    return;
  }
  report_stall(now);
}

/// Fails the lane when its patience is over, and names those that keep it waiting. Members that are known to
/// be missing come first. A member that only does not answer is named later, because it may itself be waiting
/// for somebody who is known to be missing elsewhere; and all ranks at once are named last.
void Lane::report_stall(Clock::time_point now) {
  if (now - last_moved_ < kShortestTimeout) return;
  const auto patience = options_.patience(context_.config.lane, {last_moved_, options_.timeout});
  if (!patience || now <= patience->end()) return;
  const double seconds = std::chrono::duration<double>(patience->timeout).count();
  const auto late = now - patience->end();
  for (const auto& exchange : exchanges_) {
    if (!exchange) continue;
    const Stall stall = exchange->waiting_for();
    std::string whom = stall.known;
    if (whom.empty() && late > kWorkerGrace && !stall.suspected.empty())
      whom = "no answer from " + stall.suspected;
    if (whom.empty() && late > 2 * kWorkerGrace) whom = stall.all;
    if (!whom.empty())
      context_.fail(ErrorCode::timeout, fmt::format("no progress for {:g} s: {}", seconds, whom));
  }
}

// --- Sleep

/// Prepares the descriptors for a sleep. Returns them, or nothing if there is something to poll already.
/// Precondition: `drive_` is locked.
std::optional<Descriptors> Lane::prepare_descriptors() {
  if (!endpoint_) return Descriptors{-1, -1, -1, -1};
  const auto port = [this](std::size_t p) { return exchanges_[p] ? exchanges_[p]->wait_fd() : -1; };
  const Descriptors fds{endpoint_->wait_fd(), port(0), port(1), -1};
  return fds[0] >= 0 && !endpoint_->prepare_wait() ? std::nullopt : std::optional(fds);
}

void Lane::sleep(std::chrono::nanoseconds at_most) {
  std::optional<Descriptors> descriptors(Descriptors{-1, -1, -1, -1});
  if (const std::unique_lock lock(drive_, std::try_to_lock); lock) {
    descriptors = prepare_descriptors();
    // The lane's thread may sleep on the same descriptors, and an event that was for it is gone now.
    disturbed_.store(true, std::memory_order_relaxed);
  } else {  // another thread drives, and what arrives is its business
    at_most = std::min<std::chrono::nanoseconds>(at_most, kStandBack);
  }
  if (descriptors) sleep_on(*descriptors, at_most);
}

/// Called by the lane's thread, which has found nothing to do for `quiet`. Sleeps until there may be
/// something.
Lane::Slept Lane::rest(const std::stop_token& stop, std::chrono::nanoseconds quiet) {
  sleeping_.store(true, std::memory_order_seq_cst);  // before plan_nap() looks whether there is anything new
  Slept slept = Slept::no;
  if (const auto nap = plan_nap(quiet); nap && !stop.stop_requested()) {
    slept = sleep_on(nap->descriptors, nap->at_most) ? Slept::until_woken : Slept::to_its_end;
    doorbell_.reset();
    if (slept == Slept::to_its_end) slept_out_.fetch_add(1, std::memory_order_relaxed);
  }
  sleeping_.store(false, std::memory_order_relaxed);
  return slept;
}

/// Returns nothing if there is something to do.
std::optional<Lane::Nap> Lane::plan_nap(std::chrono::nanoseconds quiet) {
  Nap nap{.at_most = kStandBack};
  if (const std::unique_lock lock(drive_, std::try_to_lock); lock) {
    if (moved_ || rung_.load(std::memory_order_seq_cst) || !submissions_.empty()) return std::nullopt;
    // A caller that makes a round from here on finds that this thread sleeps, and wakes it at the end.
    disturbed_.store(false, std::memory_order_relaxed);
    const auto descriptors = prepare_descriptors();
    if (!descriptors) return std::nullopt;
    nap = {.at_most = longest_nap(quiet), .descriptors = *descriptors};
  }  // otherwise a caller makes a round, and the lane looks soon what that has left to do
  nap.descriptors.back() = doorbell_.fd();
  return nap;
}

std::chrono::nanoseconds Lane::longest_nap(std::chrono::nanoseconds quiet) const {
  const bool busy = is_active_.load(std::memory_order_relaxed);
  if (!has_fd_) {
    return std::clamp<std::chrono::nanoseconds>(quiet / 16, kShortestNap,
                                                busy ? kLongestNap : kLongestIdleNap);
  }
  if (!context_.outbox.empty()) return kLongestNap;  // no event says that the transport takes more
  return busy ? std::chrono::nanoseconds(kTimeoutNap) : std::chrono::nanoseconds(kSafetyNap);
}

void Lane::run(std::stop_token stop) {
  auto quiet_since = Clock::now();
  Slept slept = Slept::no;
  std::uint32_t seen_rounds = caller_rounds_.load(std::memory_order_relaxed);
  while (!stop.stop_requested() && !halted_.load(std::memory_order_acquire)) {
    // Callers are driving: stand back until they have not done so for a while.
    const std::uint32_t rounds = caller_rounds_.load(std::memory_order_relaxed);
    if (callers_.load(std::memory_order_relaxed) > 0 || rounds != seen_rounds) {
      seen_rounds = rounds;
      if (slept == Slept::to_its_end) slept = Slept::until_woken;  // what is ready, callers may have left
      options_.on_idle();
      std::this_thread::sleep_for(kStandBack);
      quiet_since = Clock::now();
      continue;
    }
    bool moved = false;
    {
      const std::unique_lock lock(drive_, std::try_to_lock);
      if (lock) {
        if (slept != Slept::no) quiet_rounds_ = kRoundsPerCheck;  // it took its time, so look at the clock
        moved = round();
        if (slept == Slept::to_its_end && unprompted_ && has_fd_)
          overslept_.fetch_add(1, std::memory_order_relaxed);
        slept = Slept::no;
      }
    }
    const auto now = Clock::now();
    if (moved) {
      quiet_since = now;
      continue;
    }
    const auto quiet = now - quiet_since;
    if (quiet < options_.spin) continue;
    const bool busy = is_active_.load(std::memory_order_relaxed);
    if (busy && quiet < options_.spin + (has_fd_ ? kLaneYieldTimeBeforeEvents : kLaneYieldTime)) {
      std::this_thread::yield();
      continue;
    }
    options_.on_idle();
    slept = rest(stop, quiet);
  }
}

void Lane::halt() noexcept {
  halted_.store(true, std::memory_order_release);
  doorbell_.ring();
}

bool Lane::drain() {
  const auto lock = lock_within(drive_, kLongestDrainWait);
  if (!lock) return false;
  if (!endpoint_) return true;
  while (endpoint_->poll(completions_) > 0) {
  }
  return endpoint_->in_flight() == 0;
}

bool Lane::shut_down() {
  const auto lock = lock_within(drive_, kStuckTime);
  if (!lock) return false;
  endpoint_.reset();
  return true;
}

}  // namespace nzcl::engine

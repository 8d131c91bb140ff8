#include "runtime/engine/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "runtime/trace/trace.h"

namespace nzcl::engine {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using verbs::Clock;
using wire::Class;
using wire::Direction;
using wire::Immediate;

namespace {

constexpr std::array kClassesInOrder{Class::express, Class::bulk};  // small operations first

// An aggregator knows which rank is missing: a worker, who knows only that the aggregator does not answer,
// gives it so much more time. Ranks' clocks differ by as much as one began the operation after the other.
constexpr std::chrono::seconds kWorkerGrace{1};

// Rounds without anything between two looks at the clock, which is not free.
constexpr std::uint32_t kRoundsPerCheck = 32;

// Sleeping steps. With a descriptor to sleep on they are only a safety net. Without one (shm) they are the
// latency of a message that nobody polls for: short while operations run, growing with the time that nothing
// came, so that an idle process costs little.
constexpr milliseconds kLongestNap{1};
constexpr milliseconds kLongestIdleNap{20};
constexpr microseconds kShortestNap{50};
constexpr milliseconds kSafetyNap{100};
constexpr microseconds kStandBack{500};

std::uint32_t immediates_bound(const EngineConfig& config) {
  std::uint64_t per_peer = 0;
  for (const ClassConfig& c : config.classes)
    per_peer += 2 * c.slots + 8;          // messages both ways; a few credits
  if (!config.ordered) per_peer += 4096;  // direct writes
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(per_peer * static_cast<std::uint64_t>(config.members.count()), 1 << 20));
}

/// What members tell each other about a lane: where its memory is, then the endpoint's own address.
struct LaneAddress {
  verbs::RemoteMemory memory;
};

}  // namespace

Lane::Lane(const LaneOptions& options, std::shared_ptr<verbs::Device> device)
    : options_(options),
      device_(std::move(device)),
      context_(options.config),
      memory_(options.config, *device_),
      endpoint_(device_->open_endpoint({.self = static_cast<verbs::PeerId>(options.config.members.self),
                                        .peers = static_cast<std::size_t>(options.config.members.count()),
                                        .arrivals = immediates_bound(options.config)})) {
  has_fd_ = endpoint_->wait_fd() >= 0;
  memory_.attach(context_);
  submissions_.reserve(kMaxOperations);
  const Members& members = options_.config.members;
  for (const Class c : kClassesInOrder) {
    const auto i = static_cast<std::size_t>(c);
    if (members.is_worker(members.self)) workers_[i] = std::make_unique<Worker>(context_, c);
    if (members.is_aggregator(members.self)) aggregators_[i] = std::make_unique<Aggregator>(context_, c);
    if (workers_[i] && aggregators_[i]) {
      workers_[i]->connect(aggregators_[i].get());
      aggregators_[i]->connect(workers_[i].get());
    }
  }
}

Lane::~Lane() = default;

std::string Lane::address_for(int peer) {
  const LaneAddress address{memory_.remote()};
  std::string text(sizeof address, '\0');
  std::memcpy(text.data(), &address, sizeof address);
  return text + endpoint_->address_for(static_cast<verbs::PeerId>(peer));
}

void Lane::connect(std::span<const std::string> addresses, verbs::Deadline deadline) {
  const Members& members = context_.config.members;
  std::vector<std::string> endpoints(addresses.size());
  std::vector<std::pair<int, verbs::RemoteMemory>> lenders;
  for (int member = 0; member < members.count(); ++member) {
    const bool needed = members.is_worker(member)
                            ? members.is_aggregator(members.self) || members.dedicated == 0
                            : members.is_worker(members.self);
    if (member == members.self || !needed) continue;
    const std::string& text = addresses[static_cast<std::size_t>(member)];
    LaneAddress address;
    if (text.size() <= sizeof address) {
      throw Error(ErrorCode::transport, fmt::format("{} gave no usable address", members.name(member)));
    }
    std::memcpy(&address, text.data(), sizeof address);
    LaneMemory::attach_peer(context_, member, address.memory);
    lenders.emplace_back(member, address.memory);
    endpoints[static_cast<std::size_t>(member)] = text.substr(sizeof address);
  }
  endpoint_->connect(endpoints, deadline);
  const auto& classes = context_.config.classes;
  if (std::none_of(classes.begin(), classes.end(), [](const ClassConfig& c) { return c.lent; })) return;
  for (const auto& [member, memory] : lenders) {
    const std::byte* base = endpoint_->view(static_cast<verbs::PeerId>(member), memory,
                                            lane_memory_bytes(context_.config, member));
    if (base == nullptr)
      throw Error(ErrorCode::transport, fmt::format("the memory of {} can't be read", members.name(member)));
    LaneMemory::attach_lender(context_, member, base);
  }
}

void Lane::submit(Operation* operation) {
  {
    const std::scoped_lock lock(submit_mutex_);
    submissions_.push_back(operation);
    has_submissions_.store(true, std::memory_order_release);
  }
  if (sleeping_.load(std::memory_order_seq_cst)) doorbell_.ring();
}

void Lane::take_submissions() {
  const std::scoped_lock lock(submit_mutex_);
  for (Operation* operation : submissions_) {
    operations_[operation->table_index] = operation;
    const Class c = operation->layout.express() ? Class::express : Class::bulk;
    worker(c)->submit(operation);
    wake(c);
  }
  submissions_.clear();
  has_submissions_.store(false, std::memory_order_relaxed);
}

bool Lane::drive() {
  const std::unique_lock lock(drive_, std::try_to_lock);
  if (!lock) return false;
  caller_rounds_.store(caller_rounds_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return round();
}

bool Lane::round() {
  if (!endpoint_ || context_.failure || halted_.load(std::memory_order_relaxed)) return false;
  bool moved = false;
  const std::size_t n = endpoint_->poll(completions_);
  for (std::size_t i = 0; i < n; ++i) dispatch(completions_[i]);
  moved |= n > 0;
  if (has_submissions_.load(std::memory_order_acquire)) take_submissions(), moved = true;
  for (const Class c : kClassesInOrder) {
    const auto i = static_cast<std::size_t>(c);
    if (at_rest_[i]) continue;
    bool any = false;
    if (workers_[i]) any |= workers_[i]->step();
    if (aggregators_[i]) any |= aggregators_[i]->step();
    at_rest_[i] = !any;
    moved |= any;
  }
  post();
  const bool bulk = active(Class::bulk);
  if (!context_.outbox.empty()) at_rest_ = {};
  if (bulk) wake(Class::bulk);
  is_active_.store(bulk || active(Class::express) || !context_.outbox.empty(), std::memory_order_relaxed);
  check_timeout(moved);
  if (context_.failure && !failure_told_) {
    failure_told_ = true;
    options_.on_failure(*context_.failure);
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
  wake(context.size_class);
  switch (context.kind) {
    case WriteContext::Kind::none:
      break;
    case WriteContext::Kind::staging:
      context_.pool(context.size_class).release(context.index);
      break;
    case WriteContext::Kind::operation:
      operations_[context.index]->local_write_done();
      break;
  }
}

void Lane::arrived(std::uint32_t bits) {
  const Immediate immediate = wire::decode(bits);
  const wire::ChannelId channel = immediate.channel;
  const Members& members = context_.config.members;
  bool good = channel.member < members.count() && channel.member != members.self;
  if (good) {
    wake(channel.size_class);
    Link& link = context_.link(channel.size_class, channel.member);
    const bool up = channel.direction == Direction::up;
    switch (immediate.kind) {
      case Immediate::Kind::message:
        good = (up ? link.receive_up : link.receive_down).arrived(immediate.value);
        break;
      case Immediate::Kind::credit:
        good = context_.credit(channel.size_class, channel.direction, channel.member, immediate.value);
        break;
      case Immediate::Kind::direct:
        good = worker(channel.size_class) != nullptr;
        if (good) worker(channel.size_class)->on_direct(channel.member, immediate.value);
        break;
      default:
        good = false;  // kind 3 does not exist
    }
  }
  if (!good)
    context_.fail(ErrorCode::transport,
                  fmt::format("an immediate that means nothing arrived: {:#010x}", bits));
}

void Lane::post() {
  if (context_.outbox.empty()) return;
  const trace::Span span(trace::What::post, 0, 0);
  while (!context_.outbox.empty()) {
    const auto pending = context_.outbox.pending();
    const std::size_t accepted = endpoint_->post(pending);
    context_.outbox.pop(accepted);
    if (accepted < pending.size()) break;
  }
}

bool Lane::active(Class c) const {
  const auto& worker = workers_[static_cast<std::size_t>(c)];
  const auto& aggregator = aggregators_[static_cast<std::size_t>(c)];
  return (worker && worker->busy()) || (aggregator && !aggregator->idle());
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
  const auto quiet = now - last_moved_;
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  if (quiet > options_.timeout) {
    for (const auto& aggregator : aggregators_) {
      const std::string missing = aggregator ? aggregator->waiting_for() : std::string();
      if (!missing.empty())
        context_.fail(ErrorCode::timeout, fmt::format("no progress for {:g} s: {}", seconds, missing));
    }
  }
  if (quiet > options_.timeout + kWorkerGrace) {
    for (const auto& worker : workers_) {
      const std::string missing = worker ? worker->waiting_for() : std::string();
      if (!missing.empty())
        context_.fail(ErrorCode::timeout,
                      fmt::format("no progress for {:g} s: no answer from {}", seconds, missing));
    }
  }
}

void Lane::sleep(std::chrono::nanoseconds at_most) {
  int fd = -1;
  {
    const std::unique_lock lock(drive_, std::try_to_lock);
    if (!lock) {  // somebody else drives
      at_most = std::min<std::chrono::nanoseconds>(at_most, kStandBack);
    } else if (endpoint_ && (fd = endpoint_->wait_fd()) >= 0 && !endpoint_->prepare_wait()) {
      return;
    }
  }
  doorbell_.sleep(at_most, fd);
}

void Lane::run(std::stop_token stop) {
  auto quiet_since = Clock::now();
  bool slept = false;
  std::uint32_t seen_rounds = caller_rounds_.load(std::memory_order_relaxed);
  while (!stop.stop_requested() && !halted_.load(std::memory_order_acquire)) {
    // Callers drive: stand back until they have not for a while.
    const std::uint32_t rounds = caller_rounds_.load(std::memory_order_relaxed);
    if (callers_.load(std::memory_order_relaxed) > 0 || rounds != seen_rounds) {
      seen_rounds = rounds;
      std::this_thread::sleep_for(kStandBack);
      quiet_since = Clock::now();
      continue;
    }
    bool moved = false;
    {
      const std::unique_lock lock(drive_, std::try_to_lock);
      if (lock) {
        if (slept) quiet_rounds_ = kRoundsPerCheck;  // that took its time: look at the clock
        slept = false;
        moved = round();
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
    if (busy && quiet < options_.spin + microseconds(200)) {
      std::this_thread::yield();
      continue;
    }
    sleeping_.store(true, std::memory_order_seq_cst);
    if (!has_submissions_.load(std::memory_order_seq_cst) && !stop.stop_requested()) {
      const auto nap = has_fd_ ? std::chrono::nanoseconds(kSafetyNap)
                               : std::clamp<std::chrono::nanoseconds>(quiet / 16, kShortestNap,
                                                                      busy ? kLongestNap : kLongestIdleNap);
      sleep(nap);
      slept = true;
    }
    sleeping_.store(false, std::memory_order_relaxed);
  }
}

void Lane::halt() noexcept {
  halted_.store(true, std::memory_order_release);
  doorbell_.ring();
}

bool Lane::drain() {
  const std::scoped_lock lock(drive_);
  if (!endpoint_) return true;
  while (endpoint_->poll(completions_) > 0) {
  }
  return endpoint_->in_flight() == 0;
}

void Lane::shut_down() {
  const std::scoped_lock lock(drive_);
  endpoint_.reset();
}

}  // namespace nzcl::engine

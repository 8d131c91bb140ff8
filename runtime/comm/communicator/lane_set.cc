#include "runtime/comm/communicator/lane_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "runtime/comm/join/lane_addresses.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {

using engine::Lane;
using engine::Operation;
using verbs::Clock;

namespace {

/// While this lives, a caller drives the lanes, and their own threads leave it to the caller.
class CallerDrives {
 public:
  explicit CallerDrives(std::vector<std::unique_ptr<Lane>>& lanes) : lanes_(lanes) {
    for (const auto& lane : lanes_) lane->enter_caller();
  }
  ~CallerDrives() {
    for (const auto& lane : lanes_) lane->leave_caller();
  }
  CallerDrives(const CallerDrives&) = delete;
  CallerDrives& operator=(const CallerDrives&) = delete;

 private:
  std::vector<std::unique_ptr<Lane>>& lanes_;
};

}  // namespace

LaneSet::LaneSet(const engine::LaneOptions& options, const std::shared_ptr<verbs::Device>& device,
                 std::chrono::nanoseconds caller_spin)
    : caller_spin_(caller_spin), staging_(options.config.staging) {
  engine::LaneOptions of_lane = options;
  for (int i = 0; i < options.config.lanes; ++i) {
    of_lane.config.lane = i;
    lanes_.push_back(std::make_unique<Lane>(of_lane, device));
  }
}

void LaneSet::connect(const engine::Membership& membership, bootstrap::Rounds& meeting,
                      verbs::Deadline deadline) {
  const std::vector<std::string> told = meeting.tell_each(addresses_for(membership), deadline);
  std::vector<std::vector<std::string>> addresses(lanes_.size());  // by lane and member
  for (const int position : membership.position_of) {
    const auto p = static_cast<std::size_t>(position);
    auto of_member = LaneAddresses::decode(told[p], lanes_.size(), membership.names[p]);
    for (std::size_t l = 0; l < lanes_.size(); ++l) addresses[l].push_back(std::move(of_member[l]));
  }
  for (std::size_t l = 0; l < lanes_.size(); ++l) lanes_[l]->connect(addresses[l], deadline);
}

/// What each member is told of the lanes, by its position in the meeting. Nobody reads what this member tells
/// itself, so it is what another one is told.
std::vector<std::string> LaneSet::addresses_for(const engine::Membership& membership) {
  const int self = membership.members.self;
  const int another = membership.members.count() == 1 ? self : (self + 1) % membership.members.count();
  LaneAddresses mine;
  for (const auto& lane : lanes_) {
    std::vector<std::string> addresses;
    for (const int member : membership.member_of)
      addresses.push_back(lane->address_for(member == self ? another : member));
    mine.add(addresses);
  }
  std::vector<std::string> texts;
  for (std::size_t position = 0; position < membership.member_of.size(); ++position)
    texts.push_back(mine.told(position));
  return texts;
}

void LaneSet::submit(Operation& operation) {
  const auto lanes = static_cast<std::uint32_t>(lanes_.size());
  for (std::uint32_t l = 0; l < lanes; ++l) {
    if (operation.layout.on_lane(l, lanes)) lanes_[l]->submit(&operation);
  }
}

void LaneSet::drive() {
  make_rounds();
  hand_back();
}

/// Makes a round on every lane on which no other thread does. Returns true if anything moved.
bool LaneSet::make_rounds() {
  bool moved = false;
  for (const auto& lane : lanes_) moved |= lane->drive();
  return moved;
}

void LaneSet::hand_back() noexcept {
  for (const auto& lane : lanes_) lane->hand_back();
}

bool LaneSet::drive_until(Operation& operation, std::optional<verbs::Deadline> deadline) {
  if (operation.finished()) return true;
  if (!deadline && drive_shortly(operation)) return true;
  const CallerDrives caller(lanes_);
  bool was_quiet = false;
  Clock::time_point quiet_since;
  while (true) {
    const bool moved = make_rounds();
    if (operation.finished()) return true;
    was_quiet &= !moved;
    if (moved && !deadline) continue;  // reading the clock takes time, and it is not needed here
    const auto now = Clock::now();
    if (deadline && now >= *deadline) return false;
    if (moved) continue;
    if (!was_quiet) quiet_since = now;
    was_quiet = true;
    wait_a_little(operation, now - quiet_since,
                  deadline ? std::optional<std::chrono::nanoseconds>(*deadline - now) : std::nullopt);
  }
}

/// Makes a few rounds without a look at the clock, since a small operation takes about as long as that. Nor
/// does it tell the lanes that a caller drives, because their threads see that from the rounds. Returns true
/// if the operation has finished.
bool LaneSet::drive_shortly(Operation& operation) {
  if (spin() == std::chrono::nanoseconds(0)) return false;  // others wait for this core
  for (std::uint32_t i = 0; i < engine::kRoundsPerCheck && !operation.finished(); ++i) make_rounds();
  hand_back();
  return operation.finished();
}

/// Lets other threads have the core, and notes whether one took it. If that happens again and again where
/// this rank should have a core to itself, it sleeps for a moment: as long as two threads hand each other a
/// core, the operating system may leave both there while another core is idle, but it looks for an idle one
/// when a thread wakes up.
void LaneSet::yield() {
  if (caller_spin_ == std::chrono::nanoseconds(0)) return std::this_thread::yield();
  const auto begin = Clock::now();
  std::this_thread::yield();
  if (!sharing_.note_yield(Clock::now() - begin)) return;
  if (yields_.fetch_add(1, std::memory_order_relaxed) % engine::kYieldsPerNap == engine::kYieldsPerNap - 1)
    std::this_thread::sleep_for(engine::kShortestNap);
}

/// How long a caller polls before it yields. Where it shares its core, perhaps with the very rank that it
/// waits for, polling only holds the other thread up.
std::chrono::nanoseconds LaneSet::spin() const {
  return sharing_.shared() ? std::chrono::nanoseconds(0) : caller_spin_;
}

/// What a waiting caller does after a round in which nothing moved: at first it polls again at once, later it
/// yields its core to other threads, and then it sleeps, each time a little longer.
void LaneSet::wait_a_little(Operation& operation, std::chrono::nanoseconds quiet,
                            std::optional<std::chrono::nanoseconds> left) {
  const auto polling = spin();
  if (quiet < polling) return;
  if (quiet < polling + engine::kCallerYieldTime) return yield();
  auto nap = std::clamp<std::chrono::nanoseconds>(quiet / 16, engine::kShortestNap, engine::kLongestNap);
  if (left) nap = std::min(nap, *left);
  if (!operation.finished()) lanes_.front()->sleep(nap);
}

void LaneSet::halt() noexcept {
  for (const auto& lane : lanes_) lane->halt();
}

void LaneSet::ring() noexcept {
  for (const auto& lane : lanes_) lane->ring();
}

bool LaneSet::drain() {
  bool drained = true;
  for (const auto& lane : lanes_) drained &= lane->drain();
  return drained;
}

bool LaneSet::shut_down() {
  bool all = true;
  for (const auto& lane : lanes_) all &= lane->shut_down();
  return all;
}

void LaneSet::add_to(Statistics& total) const {
  for (const auto& lane : lanes_) {
    const auto& s = lane->statistics();
    total.messages_sent += s.messages_sent.load(std::memory_order_relaxed);
    total.bytes_sent += s.bytes_sent.load(std::memory_order_relaxed);
    total.bytes_received += s.bytes_received.load(std::memory_order_relaxed);
    total.bytes_copied += s.bytes_copied.load(std::memory_order_relaxed);
  }
}

std::string LaneSet::describe_staging() const {
  engine::StagingSummary all;
  for (const auto& lane : lanes_) {
    const engine::StagingSummary one = lane->staging_summary();
    all.members += one.members, all.measured += one.measured, all.streamed += one.streamed;
    all.cached_ns += one.cached_ns, all.streamed_ns += one.streamed_ns;
  }
  if (all.members == 0) return {};
  if (staging_ != Staging::automatic)
    return staging_ == Staging::streamed ? "streamed, as the option says" : "cached, as the option says";
  if (all.measured == 0) return "cached, until messages were measured";
  return fmt::format(
      "{} (of {} links, {} streamed; a KiB of a message takes {:.0f} ns to read out of another "
      "core's cache, and {:.0f} ns when it is streamed)",
      all.streamed == 0             ? "cached"
      : all.streamed == all.members ? "streamed"
                                    : "mixed",
      all.members, all.streamed, all.cached_ns / all.measured, all.streamed_ns / all.measured);
}

}  // namespace nzcl::comm

#include "runtime/comm/core.h"

#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/pack_strings.h"
#include "runtime/comm/cost_model.h"
#include "runtime/kernels/scan_streams.h"
#include "runtime/placement/memory.h"
#include "runtime/placement/threads.h"
#include "runtime/placement/topology.h"
#include "runtime/trace/trace.h"

namespace nzcl::comm {

using engine::Lane;
using engine::Operation;
using verbs::Clock;

namespace {

std::chrono::nanoseconds seconds(double s) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(s * 1e9));
}

// Operations up to this size are express: channels of their own, one message up and one down.
constexpr std::uint64_t kExpressSlotBytes = 8 << 10;

// Slots of a mirrored express channel for each of another one's.
constexpr std::uint32_t kMirroredSlots = 4;

// How long writes to a peer that may be dead are waited for.
constexpr auto kDrainTime = std::chrono::milliseconds(500);

// How long the others may take to become quiet before buffers are given back regardless.
constexpr auto kQuietTime = std::chrono::seconds(2);

// A waiting caller polls, then gives way, then sleeps, ever longer.
constexpr auto kYieldTime = std::chrono::microseconds(500);
constexpr auto kShortestNap = std::chrono::microseconds(50);
constexpr auto kLongestNap = std::chrono::milliseconds(1);

engine::EngineConfig make_config(const Options& o, const Roll& roll, int numa_node,
                                 const verbs::Limits& limits) {
  engine::EngineConfig config;
  config.members = roll.members;
  config.lanes = roll.lanes;
  const std::uint64_t wanted = o.slot_bytes ? o.slot_bytes : bulk_slot_bytes(roll.members, roll.one_network);
  const std::uint64_t slot = std::min<std::uint64_t>(wanted, limits.max_write_bytes) / 64 * 64;
  const auto slots = static_cast<std::uint32_t>(o.channel_slots);  // 0: ours to choose
  auto& bulk = config.classes[static_cast<std::size_t>(wire::Class::bulk)];
  auto& express = config.classes[static_cast<std::size_t>(wire::Class::express)];
  bulk = {.slot_bytes = slot, .slots = slots ? slots : bulk_slots(roll.members, roll.one_network, slot)};
  express = {.slot_bytes = std::min(slot, kExpressSlotBytes), .slots = slots ? slots : kLeastSlots};
  express.mirrored = config.members.dedicated == 0 && in_one_hop(config.members.workers);
  // No results go the other way that could carry credits: a write of their own for every half a ring.
  if (express.mirrored) express.slots *= kMirroredSlots;
  // An announcement numbers the sender's buffers with 16 bits, of which there are a channel's slots for each
  // member and some.
  bulk.lent = limits.readable && (bulk.slots + 1) * static_cast<unsigned>(config.members.count() + 1) < 65536;
  config.max_segments = std::min(limits.max_segments, verbs::kMaxSegments);
  if (o.max_segments > 0)
    config.max_segments = std::min(config.max_segments, static_cast<std::size_t>(o.max_segments));
  config.gather_bytes = o.gather_bytes ? o.gather_bytes : gather_from(limits.costs);
  config.direct_bytes = o.direct_bytes ? o.direct_bytes : direct_from(limits.costs, config.members.workers);
  config.ordered = limits.ordered;
  config.slice_bytes = o.slice_bytes;
  config.ahead_bytes = ahead_bytes(roll.one_network, roll.cache_bytes);
  config.numa_node = numa_node;
  return config;
}

int choose_scan_streams(const Options& o, const engine::Members& members) {
  if (o.scan_streams > 0) return o.scan_streams;
  return members.is_worker(members.self) ? fastest_scan_streams() : 1;  // nobody else scans
}

std::string in_place_from(std::uint64_t direct_bytes) {
  return direct_bytes < 1ull << 40 ? fmt::format("results of {:.1f} KiB a run written in place",
                                                 static_cast<double>(direct_bytes) / 1024)
                                   : "results in messages";
}

std::shared_ptr<verbs::Device> open_transport(const Options& o, const Roll& roll, int numa_node) {
  return verbs::open_device({.transport = o.transport != "auto"    ? o.transport
                                          : !roll.one_host         ? "tcp"
                                          : roll.one_process_space ? "cma"
                                                                   : "shm",
                             .interface = o.interface,
                             .one_host = roll.one_host,
                             .local_rank = roll.local_index,
                             .numa_node = numa_node,
                             .rdma_cm = o.connect == "rdma_cm",
                             .on_demand_paging = o.on_demand_paging == "on",
                             .max_segments = static_cast<std::size_t>(o.max_segments),
                             .gid_index = o.gid_index,
                             .traffic_class = o.traffic_class,
                             .service_level = o.service_level,
                             .ack_timeout = o.ack_timeout,
                             .timeout_s = o.timeout_s});
}

}  // namespace

std::shared_ptr<Core> Core::join(Options options, std::unique_ptr<bootstrap::Bootstrap> meeting, Seat seat,
                                 std::shared_ptr<verbs::Device> device) {
  const auto deadline = Clock::now() + seconds(options.bootstrap_timeout_s);
  if (options.numa_node >= 0 && !placement::is_node(options.numa_node)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("numa_node: this machine has no NUMA node {} (lscpu lists them)", options.numa_node));
  }
  const auto topology = placement::read_topology();
  Hello own = make_hello(options, seat.role, seat.index);
  own.cores = static_cast<int>(topology.cores.size());
  own.cache_bytes = topology.cache_bytes;
  own.cpus = topology.cpus;
  std::vector<Hello> hellos;
  for (const std::string& text : meeting->allgather(own.encode(), deadline))
    hellos.push_back(Hello::decode(text));
  Roll roll = digest(hellos, meeting->rank());
  if (roll.members.count() > wire::kMaxMembers) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} members; at most {} are supported", roll.members.count(), wire::kMaxMembers));
  }
  options.rank = roll.members.is_worker(roll.members.self) ? roll.members.self : -1;
  options.world_size = roll.members.workers;
  options.lanes = roll.lanes;

  const auto placed = placement::plan(topology, {.local_rank = roll.local_index,
                                                 .local_ranks = roll.local_members,
                                                 .lanes = roll.lanes,
                                                 .scan_threads = options.scan_threads,
                                                 .pin = options.pin,
                                                 .node = options.numa_node});
  if (!options.trace.empty())
    trace::start(options.trace, roll.members.name(roll.members.self), roll.local_index == 0);
  if (!device) device = open_transport(options, roll, placed.node);
  std::shared_ptr<Core> core(new Core(std::move(options), std::move(roll), std::move(device), placed));
  Core* raw = core.get();
  std::vector<bool> serves;
  for (const int member : core->roll_.member_of) serves.push_back(!core->members().is_worker(member));
  core->control_ = bootstrap::ControlPlane::join(*meeting, {.names = core->roll_.names, .serves = serves},
                                                 deadline, [raw] {
                                                   for (const auto& lane : raw->lanes_) lane->halt();
                                                 });
  core->open_lanes(*meeting, deadline);
  core->start_threads();
  log().info("{}", core->describe());
  return core;
}

Core::Core(Options options, Roll roll, std::shared_ptr<verbs::Device> device, placement::Placement placement)
    : options_(std::move(options)),
      roll_(std::move(roll)),
      device_(std::move(device)),
      placement_(std::move(placement)),
      scan_streams_(choose_scan_streams(options_, roll_.members)),
      registrations_(device_),
      config_(make_config(options_, roll_, placement_.node, device_->limits())) {
  for (int i = 0; i < roll_.lanes; ++i) {
    engine::LaneOptions lane{
        .config = config_,
        .timeout = seconds(options_.timeout_s),
        .spin = placement_.spin,
        .on_failure = [this](const bootstrap::Failure& failure) { control_->abort(failure); }};
    lane.config.lane = i;
    lanes_.push_back(std::make_unique<Lane>(lane, device_));
  }
}

void Core::open_lanes(bootstrap::Bootstrap& meeting, verbs::Deadline deadline) {
  const int count = roll_.members.count();
  std::vector<std::string> mine;  // lane by lane, member by member
  for (const auto& lane : lanes_) {
    for (int peer = 0; peer < count; ++peer) mine.push_back(lane->address_for(peer));
  }
  const auto all = meeting.allgather(bootstrap::pack_strings(mine), deadline);
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    std::vector<std::string> addresses;
    for (int peer = 0; peer < count; ++peer) {
      const auto theirs = bootstrap::unpack_strings(
          all[static_cast<std::size_t>(roll_.place_of[static_cast<std::size_t>(peer)])]);
      addresses.push_back(
          theirs.at(l * static_cast<std::size_t>(count) + static_cast<std::size_t>(roll_.members.self)));
    }
    lanes_[l]->connect(addresses, deadline);
  }
  meeting.allgather("connected", deadline);  // nobody writes before everybody can receive
}

void Core::start_threads() {
  scan_pool_ = std::make_unique<engine::ScanPool>(
      roll_.members.is_worker(roll_.members.self) ? static_cast<int>(placement_.scan_cpus.size()) : 0,
      [this](int i) {
        placement::name_thread(fmt::format("nzcl-scan-{}", i).c_str());
        placement::pin_thread(placement_.scan_cpus[static_cast<std::size_t>(i)]);
      });
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    threads_.emplace_back([this, i](std::stop_token stop) {
      placement::name_thread(fmt::format("nzcl-lane-{}", i).c_str());
      placement::pin_thread(placement_.lane_cpus[i]);
      lanes_[i]->run(stop);
      if (i != 0 || !control_->failed()) return;
      come_to_rest();
      fail_operations();
    });
  }
}

Core::~Core() {
  try {
    close();
  } catch (const std::exception& e) {
    log().warn("closing: {}", e.what());
  }
}

std::string Core::describe() const {
  return fmt::format(
      "{} of {} workers, {} aggregators ({}), {}, {} lane(s), {} scan thread(s), scans in {} stream(s), "
      "slots {} x {} KiB, {}; {}",
      roll_.members.name(roll_.members.self), roll_.members.workers, roll_.members.aggregators(),
      roll_.members.dedicated ? "dedicated" : "colocated", device_->name(), lanes_.size(),
      placement_.scan_cpus.size(), scan_streams_, config_.of(wire::Class::bulk).slots,
      config_.of(wire::Class::bulk).slot_bytes >> 10, in_place_from(config_.direct_bytes), placement_.text);
}

std::shared_ptr<Registration> Core::register_memory(void* data, std::size_t bytes, MemoryKind kind) {
  if (data == nullptr || bytes == 0)
    throw Error(ErrorCode::invalid_argument, "register_buffer: the range is empty");
  if (kind != MemoryKind::host) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("register_buffer: {} memory is not supported yet; copy the gradient to host memory",
                    name_of(kind)));
  }
  const std::span<std::byte> range{static_cast<std::byte*>(data), bytes};
  auto registration = registrations_.add(range, kind);
  if (placement_.node < 0 || told_of_far_buffer_.load(std::memory_order_relaxed)) return registration;
  const int node = placement::node_of(range);
  if (node >= 0 && node != placement_.node && !told_of_far_buffer_.exchange(true)) {
    log().warn(
        "a buffer of {} MiB lies on NUMA node {}, but slots, device and threads were chosen for node {}: "
        "bind the process to a node before it allocates (mpirun --bind-to numa, numactl --cpunodebind), or "
        "say "
        "where the gradients are (NZCL_NUMA_NODE={})",
        bytes >> 20, node, placement_.node, node);
  }
  return registration;
}

void Core::throw_if_failed() const {
  if (const auto failure = control_->failure()) throw Error(failure->code, failure->text);
}

void Core::check_conflicts(const Prepared& p) {
  const auto overlap = [](std::span<const std::byte> a, std::span<const std::byte> b) {
    return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
  };
  const auto flight = [this](std::uint64_t epoch) -> Flight& { return flights_[epoch % flights_.size()]; };
  for (; oldest_open_ < next_epoch_ && flight(oldest_open_).operation->finished(); ++oldest_open_) {
    flight(oldest_open_) = {};  // its memory, still in cache, is the next one's
  }
  for (std::uint64_t epoch = oldest_open_; epoch < next_epoch_; ++epoch) {
    const Flight& f = flight(epoch);
    if (f.operation->finished()) continue;
    if (overlap(p.output_bytes, f.output) || overlap(p.output_bytes, f.input) ||
        overlap(p.input_bytes, f.output)) {
      throw Error(ErrorCode::invalid_usage,
                  fmt::format("allreduce: a buffer overlaps one of operation {}, which has not completed",
                              f.operation->epoch));
    }
  }
}

std::shared_ptr<Operation> Core::start(Prepared p) {
  std::unique_lock lock(start_mutex_);
  Flight* flight = nullptr;
  while (true) {
    if (closed_) throw Error(ErrorCode::invalid_usage, "allreduce: the communicator is closed");
    throw_if_failed();
    flight = &flights_[next_epoch_ % flights_.size()];
    if (!flight->operation || flight->operation->finished()) break;
    const auto oldest = flight->operation;  // all places are taken: wait for the oldest
    lock.unlock();
    wait(*oldest, std::nullopt);
    lock.lock();
  }
  check_conflicts(p);
  const std::uint64_t epoch = next_epoch_;
  const engine::SliceLayout layout = engine::layout_of(config_, epoch, p.record);
  auto operation = std::make_shared<Operation>(layout, p.record, std::move(p.input), p.output,
                                               static_cast<int>(lanes_.size()));
  operation->epoch = epoch;
  operation->begun_ns = trace::now();
  operation->scan_streams = scan_streams_;
  operation->table_index = static_cast<std::uint32_t>(epoch % flights_.size());
  switch (p.known) {
    case Prepared::Input::scan:
      blocks_scanned_.fetch_add(layout.blocks(), std::memory_order_relaxed);
      break;
    case Prepared::Input::all:
      operation->set_all_input();
      break;
    case Prepared::Input::bitmap:
      operation->set_input_bitmap(p.bitmap);
      break;
  }
  ++next_epoch_;
  operations_.fetch_add(1, std::memory_order_relaxed);
  *flight = {operation, p.input_bytes, p.output_bytes, std::move(p.registrations)};
  if (p.known == Prepared::Input::scan && !layout.express()) scan_pool_->submit(operation);
  // Only lanes that own a part of it: what others have not looked at yet may be over, and gone.
  const auto lanes = static_cast<std::uint32_t>(lanes_.size());
  for (std::uint32_t l = 0; l < lanes; ++l) {
    if (layout.on_lane(l, lanes)) lanes_[l]->submit(operation.get());
  }
  lock.unlock();
  drive();  // what can go out at once goes out at once
  return operation;
}

bool Core::drive() {
  bool moved = false;
  for (const auto& lane : lanes_) moved |= lane->drive();
  return moved;
}

bool Core::wait(Operation& operation, std::optional<verbs::Deadline> deadline) {
  if (operation.finished()) return true;
  struct Caller {
    std::vector<std::unique_ptr<Lane>>& lanes;
    explicit Caller(std::vector<std::unique_ptr<Lane>>& all) : lanes(all) {
      for (const auto& lane : lanes) lane->enter_caller();
    }
    ~Caller() {
      for (const auto& lane : lanes) lane->leave_caller();
    }
  } const caller(lanes_);

  // The clock is read in quiet rounds only.
  bool is_quiet = false;
  Clock::time_point quiet_since;
  while (true) {
    const bool moved = drive();
    if (operation.finished()) return true;
    is_quiet &= !moved;
    if (moved && !deadline) continue;
    const auto now = Clock::now();
    if (deadline && now >= *deadline) return false;
    if (moved) continue;
    if (!is_quiet) quiet_since = now;
    is_quiet = true;
    const auto quiet = now - quiet_since;
    if (quiet < placement_.caller_spin) continue;
    if (quiet < placement_.caller_spin + kYieldTime) {
      std::this_thread::yield();
      continue;
    }
    auto nap = std::clamp<std::chrono::nanoseconds>(quiet / 16, kShortestNap, kLongestNap);
    if (deadline) nap = std::min<std::chrono::nanoseconds>(nap, *deadline - now);
    if (!operation.finished()) lanes_.front()->sleep(nap);
  }
}

Statistics Core::statistics() const {
  Statistics total;
  total.operations = operations_.load(std::memory_order_relaxed);
  total.blocks_scanned = blocks_scanned_.load(std::memory_order_relaxed);
  for (const auto& lane : lanes_) {
    const auto& s = lane->statistics();
    total.messages_sent += s.messages_sent.load(std::memory_order_relaxed);
    total.bytes_sent += s.bytes_sent.load(std::memory_order_relaxed);
    total.bytes_received += s.bytes_received.load(std::memory_order_relaxed);
    total.bytes_packed += s.bytes_packed.load(std::memory_order_relaxed);
  }
  return total;
}

/// Nothing is posted any more. Let the last writes complete here and everywhere, then end all traffic.
void Core::come_to_rest() {
  const auto drain = [this] {
    bool drained = true;
    for (const auto& lane : lanes_) drained &= lane->drain();
    return drained;
  };
  const auto deadline = Clock::now() + kDrainTime;
  while (!drain() && Clock::now() < deadline) std::this_thread::sleep_for(kShortestNap);
  if (!drain()) {
    for (const auto& lane : lanes_) lane->shut_down();  // to a dead peer: ends what is under way
  }
  control_->quiesced();
  const auto patience = Clock::now() + kQuietTime;
  while (!control_->wait_quiesced(Clock::now() + kLongestNap)) {
    drain();
    if (Clock::now() < patience) continue;
    log().warn("not every member came to rest in time; a late write may still land");
    break;
  }
  for (const auto& lane : lanes_) lane->shut_down();
}

void Core::fail_operations() {
  const auto failure = control_->failure().value_or(bootstrap::Failure{});
  log().error("communicator failed: {}", failure.text);
  const std::scoped_lock lock(start_mutex_);
  for (const Flight& f : flights_) {
    if (f.operation) f.operation->fail(failure);
  }
}

void Core::stop_threads() {
  for (auto& thread : threads_) thread.request_stop();
  for (const auto& lane : lanes_) lane->ring();
  threads_.clear();
  scan_pool_.reset();
  try {
    trace::write();
  } catch (const Error& e) {
    log().warn("{}", e.what());  // a timeline less is no reason to leave lanes open
  }
}

void Core::close() {
  std::vector<std::shared_ptr<Operation>> pending;
  {
    const std::scoped_lock lock(start_mutex_);
    if (closed_) return;
    closed_ = true;
    for (const Flight& f : flights_) {
      if (f.operation) pending.push_back(f.operation);
    }
  }
  if (threads_.empty()) return;  // never got as far as having threads
  for (const auto& operation : pending) wait(*operation, std::nullopt);
  const bool together = control_->leave(Clock::now() + seconds(options_.close_timeout_s));
  const bool failed = control_->failed();
  stop_threads();
  if (together && !failed) come_to_rest();
  for (const auto& lane : lanes_) lane->shut_down();
  if (!together && !failed) {
    throw Error(ErrorCode::timeout,
                fmt::format("close: not every member left within {:g} s", options_.close_timeout_s));
  }
}

void Core::serve() {
  const bool together = control_->leave(verbs::Deadline::max());
  const auto failure = control_->failure();
  {
    const std::scoped_lock lock(start_mutex_);
    closed_ = true;
  }
  stop_threads();
  if (together) come_to_rest();
  for (const auto& lane : lanes_) lane->shut_down();
  if (!together && failure) throw Error(failure->code, failure->text);
}

}  // namespace nzcl::comm

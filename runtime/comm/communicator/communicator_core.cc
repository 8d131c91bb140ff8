#include "runtime/comm/communicator/communicator_core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "nzcl/duration.h"
#include "nzcl/error.h"
#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/base/plain_floats.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/comm/join/child_servers.h"
#include "runtime/comm/join/descriptor_need.h"
#include "runtime/comm/join/device_choice.h"
#include "runtime/comm/join/node_and_link.h"
#include "runtime/comm/join/regroup.h"
#include "runtime/comm/join/whereabouts.h"
#include "runtime/placement/memory.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/plan/tuning.h"
#include "runtime/trace/trace.h"

namespace nzcl::comm {

using engine::Operation;
using verbs::Clock;

namespace {

std::chrono::nanoseconds seconds(double s) { return saturated_nanoseconds(std::chrono::duration<double>(s)); }

std::string in_place_from(std::uint64_t direct_bytes) {
  return direct_bytes < engine::kNeverDirect ? fmt::format("results of {:.1f} KiB a run written in place",
                                                           static_cast<double>(direct_bytes) / 1024)
                                             : "results in messages";
}

/// Says how fast the links are taken to be, if there are any.
std::string describe_links(const engine::Membership& membership, const engine::EngineConfig& config) {
  return membership.networks.all_together() ? "" : ", links of " + text_of(config.link_speed);
}

/// Says by what the members are reached: those of each host, and those of other hosts.
std::string describe_device(const engine::Membership& membership, const verbs::Device& device) {
  using verbs::Level;
  const engine::Groups& hosts = membership.hosts;
  if (!device.is_mixed()) return device.name();
  if (hosts.all_together()) return device.name_at(Level::within);
  if (hosts.none_together()) return device.name_at(Level::between);
  const int here = hosts.size_of(membership.members.self), others = membership.members.count() - here;
  if (here == 1)
    return fmt::format("{} to the {} members of other hosts", device.name_at(Level::between), others);
  return fmt::format("{} between the {} members of this host, {} to the {} of others",
                     device.name_at(Level::within), here, device.name_at(Level::between), others);
}

/// Says which node each member is on, if they are not all on one.
std::string describe_nodes(const std::vector<int>& nodes) {
  const bool differ =
      std::any_of(nodes.begin(), nodes.end(), [&](int node) { return node != nodes.front(); });
  return differ ? fmt::format(", on nodes {}", fmt::join(nodes, ",")) : "";
}

/// Names this member before it is known who the others are.
std::string join_name(const Options& options, const Identity& identity, int position) {
  const bool worker = identity.role == bootstrap::Role::worker;
  int number = identity.index >= 0 ? identity.index : worker ? options.rank : -1;
  if (number < 0 && options.aggregators == 0) number = position;
  const std::string name = number < 0 ? fmt::format("member {} of the meeting", position)
                                      : fmt::format("{} {}", worker ? "rank" : "aggregator", number);
  return fmt::format("{} (pid {} on {})", name, ::getpid(), bootstrap::host_name());
}

/// What the others are told of a member that cannot join.
Failure named_failure(const std::string& name, const std::exception& e) {
  Failure failure = failure_of(e);
  failure.text = name + ": " + failure.text;
  return failure;
}

/// `present` has the registered buffers of an earlier communicator, or is nullptr. It serves the new one too,
/// if its device suits all members. `told` becomes what all members have told of their devices by `tell`.
std::shared_ptr<Session> open_session(std::shared_ptr<Session> present, const Introduction& introduction,
                                      const TellOfDevice& tell, std::vector<std::string>& told,
                                      bootstrap::Rounds& rounds, verbs::Deadline deadline) {
  if (present && !present->options()) {  // its program has brought the device
    told = rounds.allgather(tell(*present->device()), deadline);
    return present;
  }
  std::optional<DeviceChoice> open;
  if (present) open = DeviceChoice{*present->options(), present->device()};
  auto [options, device, told_of_devices] =
      choose_device(introduction.options, introduction.membership, introduction.placement.node,
                    open ? &*open : nullptr, tell, rounds, deadline);
  told = std::move(told_of_devices);
  if (!present) return std::make_shared<Session>(std::move(device), std::move(options));
  if (device == present->device()) return present;
  return present->onto(std::move(device), std::move(options));
}

engine::EngineConfig plan_lanes(const Introduction& introduction, const Session& session) {
  engine::EngineConfig config = engine::plan_engine(introduction.options, introduction.membership,
                                                    engine::DeviceLimits(*session.device()));
  if (introduction.wing)
    config.make_exchange = introduction.wing->plan(introduction.options, introduction.membership);
  return config;
}

}  // namespace

// --- Begin

std::shared_ptr<CommunicatorCore> CommunicatorCore::join(Options options,
                                                         std::unique_ptr<bootstrap::Meeting> meeting,
                                                         Identity identity,
                                                         std::shared_ptr<Session> session) {
  const auto deadline = deadline_after(seconds(options.bootstrap_timeout_s));
  return join_by(std::move(options), std::move(meeting), std::move(identity), std::move(session), deadline);
}

std::shared_ptr<CommunicatorCore> CommunicatorCore::join_by(Options options,
                                                            std::unique_ptr<bootstrap::Meeting> meeting,
                                                            Identity identity,
                                                            std::shared_ptr<Session> session,
                                                            verbs::Deadline deadline) {
  const PlainFloats floats;  // the plan must come out alike on all ranks
  const std::string name = join_name(options, identity, meeting->rank());
  placement::Topology topology;
  std::string introduction;
  try {
    make_room_to_meet(*meeting);
    topology = placement::read_topology();
    introduction = introduction_text(options, identity, topology);
  } catch (const std::exception& e) {
    meeting->give_up(named_failure(name, e), deadline);
    throw;
  }
  auto control = meet(options, *meeting, identity, introduction, deadline);
  bootstrap::Rounds rounds(*control, "meeting", meeting->size(), meeting->rank());
  meeting.reset();
  try {
    return join_members(introduce(options, *control, rounds.rank(), identity, topology), control, rounds,
                        std::move(session), deadline);
  } catch (const std::exception& e) {
    if (control) control->abort(named_failure(name, e));
    throw;
  }
}

std::shared_ptr<CommunicatorCore> CommunicatorCore::join_members(
    Introduction introduction, std::unique_ptr<bootstrap::ControlPlane>& control, bootstrap::Rounds& rounds,
    std::shared_ptr<Session> session, verbs::Deadline deadline) {
  const engine::Membership& membership = introduction.membership;
  const std::string port = control->open_port(settings_of(membership));
  const engine::Members& members = membership.members;
  if (!introduction.options.trace.empty()) {
    const bool first_here = membership.cores.index_of(members.self) == 0;
    trace::start(introduction.options.trace, members.name(members.self), first_here);
  }
  const auto tell = [&](const verbs::Device& device) {
    const double device_gbps = device.limits().link_gbps;
    const NodeAndLink own{.node = introduction.placement.node,
                          .link = engine::own_link(introduction.options.link_gbps, device_gbps),
                          .scan_streams = measure_scan_streams(membership)};
    return Whereabouts{.port = port, .node_and_link = own.encode()}.encode();
  };
  std::vector<std::string> told;
  session = open_session(std::move(session), introduction, tell, told, rounds, deadline);
  if (session->options()) introduction.options.transport = session->options()->transport;
  take_whereabouts(told, *control, introduction.membership);
  const auto core = make(std::move(introduction), std::move(session));
  core->begin(std::move(control), rounds, deadline);
  log().info("{}", core->describe());
  return core;
}

std::shared_ptr<CommunicatorCore> CommunicatorCore::make(Introduction introduction,
                                                         std::shared_ptr<Session> session) {
  const auto end = [process = OwnProcess()](CommunicatorCore* core) {
    if (!process.is_current()) return;
    core->close_without_throwing();
    if (core->stuck_) return;
    if (core->control_.use_count() > 1) core->control_->unwatch();  // it outlives the core
    delete core;
  };
  return std::shared_ptr<CommunicatorCore>(new CommunicatorCore(std::move(introduction), std::move(session)),
                                           end);
}

CommunicatorCore::CommunicatorCore(Introduction introduction, std::shared_ptr<Session> session)
    : introduction_(std::move(introduction)),
      session_(std::move(session)),
      scan_streams_(introduction_.membership.scan_streams),
      wire_type_(options().wire_type),
      config_(plan_lanes(introduction_, *session_)),
      lanes_({.config = config_,
              .timeout = seconds(options().timeout_s),
              .spin = introduction_.placement.spin,
              .peer_descriptors = make_room_for_lanes(introduction_.membership, *session_->device()),
              .on_failure = [this](const Failure& failure) { control_->abort(failure); },
              .on_idle = [this] { operations_.release_finished(); },
              .patience =
                  [this](int lane, engine::Patience otherwise) {
                    return operations_.patience(static_cast<std::uint32_t>(lane),
                                                static_cast<std::uint32_t>(lanes_.size()), otherwise);
                  }},
             session_->device(), introduction_.placement.caller_spin),
      splitter_(introduction_),
      replaceable_(options().on_aggregator_loss != AggregatorLoss::fail && members().dedicated > 0 &&
                   is_worker()),
      hierarchy_(plan_hierarchy()),
      staging_(session_->registrations(),
               {.fail = [this](const Failure& failure) { control_->abort(failure); },
                .ring = [this] { lanes_.ring(); }}) {}

std::unique_ptr<Hierarchy> CommunicatorCore::plan_hierarchy() {
  if (introduction_.wing) return nullptr;
  auto plan = engine::HierarchyPlan::of(introduction_.membership, options().tune.host_ranks);
  if (!plan) return nullptr;
  const auto join = [this](const SplitGroup& group, const std::string& part) {
    return join_child(splitter_.part(*control_, group, part), meeting_deadline());
  };
  return std::make_unique<Hierarchy>(
      std::move(*plan),
      Hierarchy::Parent{.rank = members().self,
                        .join = join,
                        .fail = [this](const Failure& failure) { control_->abort(failure); },
                        .ring = [this] { lanes_.ring(); },
                        .register_memory =
                            [this](void* data, std::size_t bytes) {
                              return session_->register_memory(data, bytes, MemoryKind::host);
                            }});
}

void CommunicatorCore::begin(std::shared_ptr<bootstrap::ControlPlane> control, bootstrap::Rounds& rounds,
                             verbs::Deadline deadline) {
  control_ = std::move(control);
  control_->watch([this] { return operations_.progress(); },
                  [this] {
                    if (!replaceable_) lanes_.halt();
                    threads_.fail();
                    children_.fail(control_->failure().value());
                  });
  const engine::Membership& membership = introduction_.membership;
  try {
    lanes_.connect(membership, rounds, deadline);
    threads_.start(lanes_, introduction_.placement, is_worker(), name(), [this] { end_operations(); });
    if (!introduction_.wing && options().algorithm == Algorithm::automatic) {
      std::string why_not;
      board_ = PeerBoard::share(membership, rounds, deadline, why_not);
      if (board_) staging_.read_peers(board_);
      if (!why_not.empty()) log().info("{}: GPUs do not sum: {}", name(), why_not);
    }
    // Nobody may write before everybody can receive. A member without its threads never could.
    rounds.allgather("ready", deadline);
  } catch (const std::exception& e) {
    told_ = true;  // by what is thrown
    control_->abort(named_failure(membership.names[static_cast<std::size_t>(rounds.rank())], e));
    // Connecting ends when the communicator fails, which says more.
    const auto* const error = dynamic_cast<const Error*>(&e);
    if (error != nullptr && error->code() == ErrorCode::aborted) throw_if_failed();
    throw;
  }
}

verbs::Deadline CommunicatorCore::meeting_deadline() const {
  return deadline_after(seconds(options().bootstrap_timeout_s));
}

std::shared_ptr<CommunicatorCore> CommunicatorCore::split(int color, int key) {
  require_own_process("split");
  const Splitter::Turn turn(splitter_);
  throw_if_failed();
  const auto deadline = meeting_deadline();
  try {
    auto split = splitter_.split(*control_, turn, {.color = color, .key = key}, deadline);
    return split ? join_child(std::move(*split), deadline) : nullptr;
  } catch (const Error& e) {
    told({e.code(), e.what()});
    throw;
  }
}

std::shared_ptr<CommunicatorCore> CommunicatorCore::join_child(Part part, verbs::Deadline deadline) {
  return join_part(std::move(part), deadline, &children_);
}

/// `children` is where the new communicator waits for its members, if it is a child of this one.
std::shared_ptr<CommunicatorCore> CommunicatorCore::join_part(Part part, verbs::Deadline deadline,
                                                              JoiningChildren* children) const {
  const PlainFloats floats;
  const engine::Membership& membership = part.introduction.membership;
  const int rank = part.meeting->rank(), size = part.meeting->size();
  const std::string name = membership.names[static_cast<std::size_t>(rank)];
  std::shared_ptr<bootstrap::ControlPlane> control;
  try {
    make_room_to_meet(*part.meeting);
    control = bootstrap::ControlPlane::join(*part.meeting, deadline);
    std::optional<JoiningChildren::Place> place;
    if (children != nullptr) place.emplace(*children, control);
    bootstrap::Rounds rounds(*control, "part", size, rank);
    control->settle(settings_of(membership), deadline);
    const auto core = make(std::move(part.introduction), session_);
    core->begin(control, rounds, deadline);
    log().log(core->members().known_as ? spdlog::level::debug : spdlog::level::info, "{}", core->describe());
    return core;
  } catch (const std::exception& e) {
    const Failure failure = named_failure(name, e);
    if (control) control->abort(failure);
    part.meeting->give_up(failure, deadline);  // if it has not ended yet
    throw;
  }
}

std::string CommunicatorCore::describe() const {
  const engine::Members& m = members();
  const engine::ChannelConfig& bulk = config_.channel(wire::Priority::bulk);
  const std::string staging = lanes_.describe_staging();
  return fmt::format(
      "{} of {} workers, {} aggregators ({}), {}, {} lane(s), {} scan thread(s), scans in {} stream(s), "
      "slots {} x {} KiB, {}{}{}{}{}{}{}; {}",
      m.name(m.self), m.workers, m.aggregators(), m.dedicated ? "dedicated" : "colocated",
      describe_device(introduction_.membership, *session_->device()), lanes_.size(),
      introduction_.placement.scan_cpus.size(), scan_streams_, bulk.slots, bulk.slot_bytes >> 10,
      in_place_from(config_.direct_bytes), config_.checksum ? ", checksums" : "",
      staging.empty() ? "" : ", staging ", staging, describe_nodes(config_.nodes),
      describe_links(introduction_.membership, config_), hierarchy_ ? hierarchy_->describe() : "",
      introduction_.placement.text);
}

// --- Operations

void CommunicatorCore::require_own_process(const char* what) const {
  if (process_.is_current()) return;
  throw Error(
      ErrorCode::invalid_usage,
      fmt::format("{}: this communicator belongs to process {}, from which this process was forked; make a "
                  "communicator after the fork",
                  what, process_.id()));
}

std::shared_ptr<Registration> CommunicatorCore::register_memory(void* data, std::size_t bytes,
                                                                MemoryKind kind) {
  require_own_process("register_buffer");
  auto registration = session_->register_memory(data, bytes, kind);
  if (kind == MemoryKind::host) warn_of_far_memory({static_cast<const std::byte*>(data), bytes});
  return registration;
}

void CommunicatorCore::warn_of_far_memory(std::span<const std::byte> range) {
  const int chosen = introduction_.placement.node;
  if (chosen < 0 || warned_of_far_memory_.load(std::memory_order_relaxed)) return;
  const int node = placement::node_of(range);
  if (node < 0 || node == chosen || warned_of_far_memory_.exchange(true)) return;
  log().warn(
      "{}: a buffer of {} MiB lies on NUMA node {}, but slots, device and threads were chosen for node {}: "
      "bind the process to a node before it allocates (mpirun --bind-to numa, numactl --cpunodebind), or say "
      "where the gradients are (NZCL_NUMA_NODE={})",
      name(), range.size() >> 20, node, chosen, node);
}

void CommunicatorCore::abort(Failure failure) {
  require_own_process("abort");
  if (!control_->failed()) told_.store(true, std::memory_order_relaxed);  // the caller knows of it
  control_->abort(std::move(failure));
}

void CommunicatorCore::told(const Failure& failure) {
  const auto whole = control_->failure();
  if (whole && whole->text == failure.text) told_.store(true, std::memory_order_relaxed);
}

void CommunicatorCore::throw_if_failed() {
  if (!control_->failed()) return;
  const Failure failure = control_->failure().value();
  told(failure);
  throw Error(failure.code, failure.text);
}

bool CommunicatorCore::test(Operation& operation) {
  require_own_process("test");
  refuse_captured(operation, "test");
  if (!operation.finished()) lanes_.drive();
  if (!operation.finished()) return false;
  operation.release_regions();
  operation.complete_packed();
  return true;
}

bool CommunicatorCore::wait(Operation& operation, std::optional<verbs::Deadline> deadline) {
  require_own_process("wait");
  refuse_captured(operation, "wait");
  if (!lanes_.drive_until(operation, deadline)) return false;
  operation.release_regions();
  operation.complete_packed();
  return true;
}

gpu::Stream CommunicatorCore::device_stream(std::span<const std::byte> memory) {
  require_own_process("device_stream");
  const auto gpu = session_->registrations().gpu_of(memory);
  if (!gpu)
    throw Error(ErrorCode::invalid_argument, "device_stream: the memory is not registered as that of a GPU");
  return staging_.callers_stream(gpu);
}

void CommunicatorCore::enqueue_wait(Operation& operation, void* stream) {
  require_own_process("enqueue_wait");
  const bool has_memory = operation.input.base != nullptr || operation.output.base != nullptr;
  if (!operation.staged && !has_memory) return;  // of a tensor without elements
  if (!operation.staged)
    throw Error(ErrorCode::invalid_usage, "enqueue_wait: the operation has no memory of a GPU; call wait()");
  operation.staged->enqueue_wait(stream);
}

void CommunicatorCore::on_complete(std::shared_ptr<Operation> operation, std::function<void()> call) {
  require_own_process("on_complete");
  refuse_captured(*operation, "on_complete");
  notifier_.add(std::move(operation), std::move(call));
}

Algorithm CommunicatorCore::algorithm_of(const Operation& operation) const {
  return engine::public_algorithm(config_, operation.record.algorithm);
}

Statistics CommunicatorCore::statistics() const {
  Statistics total = former_;
  total.operations += operations_started_.load(std::memory_order_relaxed);
  total.blocks_scanned += blocks_scanned_.load(std::memory_order_relaxed);
  lanes_.add_to(total);
  if (hierarchy_) hierarchy_->add_to(total);
  total.gpu_sums += staging_.summed_by_gpus();
  total.gpu_direct_bytes += staging_.far_bytes();
  return total;
}

// --- End

void CommunicatorCore::close_without_throwing() noexcept {
  try {
    close();
  } catch (const std::exception& e) {
    log().warn("{}: {}", name(), e.what());
  }
}

/// What the ending thread runs, when the communicator has failed or is closed. In the former case it fails
/// the operations.
void CommunicatorCore::end_operations() {
  if (!control_->failed()) return replacement_.set_value(nullptr);
  if (replaceable_) take_what_has_come();
  const bool all_rest = come_to_rest();
  const Failure failure = control_->failure().value_or(Failure{});
  log().debug("{}: communicator failed: {}", name(), failure.text);
  staging_.begin_all(failure);  // what a hierarchy has been told of has to begin before it can end
  if (hierarchy_) hierarchy_->end(failure);
  auto next = all_rest ? replace_if_an_aggregator_is_lost(failure) : nullptr;
  next ? begin_again_on(std::move(next), failure) : replacement_.set_value(nullptr);
  operations_.fail_all(failure);
  staging_.wait_for_all();  // it finishes those whose memory is on a GPU
  operations_.release_finished();
  end_.set_value();
}

/// Runs when nothing is posted any more. Waits until the last writes of this member and of all others have
/// completed, then shuts the lanes down. Returns false if one that lives may still write.
bool CommunicatorCore::come_to_rest() {
  const auto deadline = Clock::now() + engine::kDrainTime;
  while (!lanes_.drain() && Clock::now() < deadline) std::this_thread::sleep_for(engine::kShortestNap);
  if (!lanes_.drain()) shut_down_lanes();  // a peer is dead, and this ends the writes to it
  control_->quiesced();
  const auto patience = Clock::now() + engine::kQuietTime;
  bool all = false;
  while (!(all = control_->wait_quiesced(Clock::now() + engine::kLongestNap))) {
    lanes_.drain();
    if (Clock::now() < patience) continue;
    log().warn(
        "{}: not every member has ended its writes in time; a late write may still reach this process's "
        "buffers",
        name());
    break;
  }
  shut_down_lanes();
  return all && !stuck_;
}

void CommunicatorCore::shut_down_lanes() {
  if (!stuck_ && !lanes_.shut_down()) take_for_stuck();
}

void CommunicatorCore::stop_threads() {
  if (!threads_.stop(lanes_, stuck_ ? std::chrono::seconds(0) : engine::kStuckTime)) take_for_stuck();
  for (const auto& call : captured_) call->detach();
  staging_.stop();
  notifier_.stop();
  try {
    trace::write();
  } catch (const Error& e) {
    // The lanes must be closed even if the timeline cannot be written.
    log().warn("{}: {}", name(), e.what());
  }
}

void CommunicatorCore::take_for_stuck() {
  if (stuck_.exchange(true)) return;
  log().error(
      "{}: a thread has not come back from the transport ({}) in {} s: perhaps it waits for a lock "
      "that a killed process holds; the memory of this communicator is never freed, and a late write may "
      "still reach this process's buffers",
      name(), session_->device()->name(), engine::kStuckTime.count());
}

void CommunicatorCore::close() {
  if (!process_.is_current()) return;
  if (notifier_.is_own_thread())
    throw Error(ErrorCode::invalid_usage, "close: a completion callback must not close its communicator");
  {
    const std::scoped_lock lock(operations_.mutex());
    if (operations_.closed()) return;
    operations_.close();
  }
  splitter_.close();
  if (!threads_.running()) return;  // joining failed before the threads were started
  wait_for_all(std::nullopt);
  const bool together = control_->leave(deadline_after(seconds(options().close_timeout_s)));
  const bool failed = control_->failed();
  close_hierarchy(together);
  stop_threads();
  if (together && !failed) come_to_rest();
  shut_down_lanes();
  log_untold();
  if (!together && !failed) {
    throw Error(ErrorCode::timeout,
                fmt::format("close: not every member left within {:g} s", options().close_timeout_s));
  }
}

/// If not all members have come to close, nobody waits for those of the hosts either.
void CommunicatorCore::close_hierarchy(bool together) noexcept {
  if (!hierarchy_) return;
  if (!together)
    hierarchy_->end(control_->failure().value_or(Failure{ErrorCode::timeout, "not every member left"}));
  try {
    hierarchy_->close();
  } catch (const std::exception& e) {
    log().warn("{}: {}", name(), e.what());
  }
}

/// Logs the failure if no caller has been told of it, because nobody will ask for it any more.
void CommunicatorCore::log_untold() {
  const auto failure = control_->failure();
  if (failure && !told_.exchange(true)) log().error("{}: communicator failed: {}", name(), failure->text);
}

void CommunicatorCore::serve() {
  ChildServers children(name());
  while (auto splits = splitter_.next(*control_)) {
    for (Part& split : *splits) {
      // A std::function must be copyable, and a Part is not.
      const auto child = std::make_shared<Part>(std::move(split));
      children.start([this, child] { join_child(std::move(*child), meeting_deadline())->serve(); });
    }
  }
  const bool together = control_->leave(verbs::Deadline::max());
  const auto failure = control_->failure();
  {
    const std::scoped_lock lock(operations_.mutex());
    operations_.close();
  }
  stop_threads();
  if (together) come_to_rest();
  shut_down_lanes();
  if (!together && failure) serve_those_left(*failure);
  children.wait();
  log_untold();
}

/// If the workers replace the failed communicator by another one, serves that. Otherwise throws the failure.
void CommunicatorCore::serve_those_left(const Failure& failure) {
  std::shared_ptr<CommunicatorCore> core;
  try {
    const RegroupTurn turn(control_->regrouping());
    core = regroup({}, "", meeting_deadline());
  } catch (const Error& e) {
    log().debug("{}: {}", name(), e.what());
    throw Error(failure.code, failure.text);
  }
  core->serve();
}

}  // namespace nzcl::comm

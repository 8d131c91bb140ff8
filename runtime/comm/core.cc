#include "runtime/comm/core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "nzcl/duration.h"
#include "nzcl/error.h"
#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/comm/child_servers.h"
#include "runtime/exchange/switch/operation_tensor.h"
#include "runtime/kernels/scan_streams.h"
#include "runtime/placement/memory.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/trace/trace.h"

namespace nzcl::comm {

using engine::Operation;
using verbs::Clock;

namespace {

std::chrono::nanoseconds seconds(double s) { return saturated_nanoseconds(std::chrono::duration<double>(s)); }

/// Only workers scan, so only they measure how many streams their CPU reads fastest.
int choose_scan_streams(const Options& o, const engine::Members& members) {
  if (o.scan_streams > 0) return o.scan_streams;
  return members.is_worker(members.self) ? fastest_scan_streams() : 1;
}

WireType wire_type_of(const std::string& option) {
  if (option == "float16") return WireType::float16;
  return option == "bfloat16" ? WireType::bfloat16 : WireType::as_is;
}

/// Only a reduce-scatter has an input of several chunks.
engine::InputBlocks input_blocks_of(const Prepared& p) {
  const std::uint64_t element = element_bytes(static_cast<DataType>(p.record.type));
  engine::InputBlocks input{.chunks = {}, .block_bytes = p.record.block_elems * element};
  if (p.record.collective != wire::Collective::reduce_scatter) {
    input.chunks.push_back(p.input_bytes);
    return input;
  }
  auto rest = p.input_bytes;
  for (std::size_t c = 0; !rest.empty(); ++c) {
    const std::uint64_t elements =
        p.chunk_begins.empty() ? p.record.count : p.chunk_begins[c + 1] - p.chunk_begins[c];
    input.chunks.push_back(rest.first(elements * element));
    rest = rest.subspan(elements * element);
  }
  return input;
}

std::string in_place_from(std::uint64_t direct_bytes) {
  return direct_bytes < 1ull << 40 ? fmt::format("results of {:.1f} KiB a run written in place",
                                                 static_cast<double>(direct_bytes) / 1024)
                                   : "results in messages";
}

/// Says which node each member is on, if they are not all on one.
std::string describe_nodes(const std::vector<int>& nodes) {
  const bool differ =
      std::any_of(nodes.begin(), nodes.end(), [&](int node) { return node != nodes.front(); });
  return differ ? fmt::format(", on nodes {}", fmt::join(nodes, ",")) : "";
}

engine::EngineConfig plan_lanes(const Introduction& introduction, const Session& session) {
  engine::EngineConfig config =
      engine::plan_engine(introduction.options, introduction.membership, session.device()->limits());
  config.kernel_pools = session.kernel_pools();
  return config;
}

}  // namespace

// --- Begin

std::shared_ptr<Core> Core::join(Options options, std::unique_ptr<bootstrap::Bootstrap> meeting,
                                 Identity identity, std::shared_ptr<Session> session) {
  const auto deadline = deadline_after(seconds(options.bootstrap_timeout_s));
  Introduction introduction = introduce(std::move(options), *meeting, identity, deadline);
  const engine::Membership& membership = introduction.membership;
  const engine::Members& members = membership.members;
  if (!introduction.options.trace.empty()) {
    const bool first_here = membership.cores.index_of(members.self) == 0;
    trace::start(introduction.options.trace, members.name(members.self), first_here);
  }
  const int node = introduction.placement.node;
  if (!session) {
    session = std::make_shared<Session>(open_transport(introduction.options, membership, node),
                                        std::move(identity.kernel_pools));
  }
  const auto core = shared_in_own_process(new Core(std::move(introduction), std::move(session)));
  core->begin(*meeting, deadline);
  log().info("{}", core->describe());
  return core;
}

Core::Core(Introduction introduction, std::shared_ptr<Session> session)
    : introduction_(std::move(introduction)),
      session_(std::move(session)),
      scan_streams_(choose_scan_streams(options(), members())),
      wire_type_(wire_type_of(options().wire_type)),
      config_(plan_lanes(introduction_, *session_)),
      lanes_({.config = config_,
              .timeout = seconds(options().timeout_s),
              .spin = introduction_.placement.spin,
              .on_failure = [this](const Failure& failure) { control_->abort(failure); },
              .on_idle = [this] { operations_.release_finished(); },
              .patience =
                  [this](int lane, engine::Patience otherwise) {
                    return operations_.patience(static_cast<std::uint32_t>(lane),
                                                static_cast<std::uint32_t>(lanes_.size()), otherwise);
                  }},
             session_->device(), introduction_.placement.caller_spin),
      splitter_(introduction_) {}

void Core::begin(bootstrap::Bootstrap& meeting, verbs::Deadline deadline) {
  const engine::Membership& membership = introduction_.membership;
  std::vector<bool> serves;
  for (const int member : membership.member_of) serves.push_back(!members().is_worker(member));
  control_ = bootstrap::ControlPlane::join(meeting, {.names = membership.names, .serves = serves}, deadline,
                                           [this] { lanes_.halt(); });
  lanes_.connect(membership, meeting, deadline);
  threads_.start(lanes_, introduction_.placement, is_worker(), name(), [this] { end_of_lane(); });
}

verbs::Deadline Core::meeting_deadline() const {
  return deadline_after(seconds(options().bootstrap_timeout_s));
}

std::shared_ptr<Core> Core::split(int color, int key) {
  require_own_process("split");
  const Splitter::Turn turn(splitter_);
  throw_if_failed();
  const auto deadline = meeting_deadline();
  try {
    auto split = splitter_.split(*control_, turn, {.color = color, .key = key}, deadline);
    return split ? join_split(std::move(*split), deadline) : nullptr;
  } catch (const Error& e) {
    told({e.code(), e.what()});
    throw;
  }
}

std::shared_ptr<Core> Core::join_split(Split split, verbs::Deadline deadline) const {
  try {
    const auto core = shared_in_own_process(new Core(std::move(split.introduction), session_));
    core->begin(*split.meeting, deadline);
    log().info("{}", core->describe());
    return core;
  } catch (const Error& e) {
    split.meeting->abandon({e.code(), e.what()});
    throw;
  } catch (const std::exception& e) {
    split.meeting->abandon({ErrorCode::system, e.what()});
    throw;
  }
}

std::string Core::describe() const {
  const engine::Members& m = members();
  const engine::ChannelConfig& bulk = config_.channel(wire::Priority::bulk);
  const std::string staging = lanes_.describe_staging();
  return fmt::format(
      "{} of {} workers, {} aggregators ({}), {}, {} lane(s), {} scan thread(s), scans in {} stream(s), "
      "slots {} x {} KiB, {}{}{}{}; {}",
      m.name(m.self), m.workers, m.aggregators(), m.dedicated ? "dedicated" : "colocated",
      session_->device()->name(), lanes_.size(), introduction_.placement.scan_cpus.size(), scan_streams_,
      bulk.slots, bulk.slot_bytes >> 10, in_place_from(config_.direct_bytes),
      staging.empty() ? "" : ", staging ", staging, describe_nodes(config_.nodes),
      introduction_.placement.text);
}

// --- Operations

void Core::require_own_process(const char* what) const {
  if (process_.is_current()) return;
  throw Error(
      ErrorCode::invalid_usage,
      fmt::format("{}: this communicator belongs to process {}, from which this process was forked; make a "
                  "communicator after the fork",
                  what, process_.id()));
}

std::shared_ptr<Registration> Core::register_memory(void* data, std::size_t bytes, MemoryKind kind) {
  require_own_process("register_buffer");
  auto registration = session_->register_memory(data, bytes, kind);
  warn_of_far_memory({static_cast<const std::byte*>(data), bytes});
  return registration;
}

void Core::warn_of_far_memory(std::span<const std::byte> range) {
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

std::shared_ptr<Operation> Core::allreduce(const AllreduceRequest& request) { return start_request(request); }

std::shared_ptr<Operation> Core::allreduce(const SparseAllreduceRequest& request) {
  return start_request(request);
}

std::shared_ptr<Operation> Core::allreduce(const CompressedRequest& request) {
  return start_request(request);
}

bool Core::takes(const CompressedRequest& request) const {
  if (config_.datagrams || members().workers == 1) return false;
  wire::OperationRecord record = shape_of(request);
  record.algorithm = engine::choose_algorithm(config_, record, request.algorithm);
  return engine::layout_of(config_, 0, record).tiled();
}

const char* Core::why_no_coded_results() const {
  if (config_.datagrams) return "algorithm switch cannot: its owners have no states; take another algorithm";
  if (members().dedicated > 0)
    return "dedicated aggregators cannot: they have no states to keep what coding loses; set aggregators to "
           "0";
  return nullptr;
}

std::shared_ptr<Operation> Core::run(const CollectiveRequest& request) { return start_request(request); }

void Core::refuse_operation(const Error& refusal) { refuse_shape(shape_of(AllreduceRequest{}), refusal); }

void Core::refuse_operation(const AllreduceRequest& request, const Error& refusal) {
  refuse_shape(shape_of(request), refusal, request.algorithm);
}

void Core::refuse_operation(const SparseAllreduceRequest& request, const Error& refusal) {
  refuse_shape(shape_of(request), refusal, request.algorithm);
}

void Core::refuse_operation(const CompressedRequest& request, const Error& refusal) {
  refuse_shape(shape_of(request), refusal, request.algorithm);
}

void Core::refuse_shape(wire::OperationRecord shape, const Error& refusal, Algorithm algorithm) {
  require_own_process("allreduce");
  shape.algorithm = engine::choose_algorithm(config_, shape, algorithm);
  Prepared nothing;
  nothing.record = shape;
  try {
    start(nothing, refusal);
  } catch (const Error& e) {
    if (std::string_view(e.what()) != refusal.what()) throw;
  }
}

void Core::check(const AllreduceRequest& request) { check_request(request); }
void Core::check(const SparseAllreduceRequest& request) { check_request(request); }
void Core::check(const CompressedRequest& request) { check_request(request); }

template <typename Request>
void Core::check_request(const Request& request) {
  require_own_process("allreduce");
  Prepared p;
  p.record = shape_of(request);
  prepare(request, session_->registrations(), p);
  engine::choose_algorithm(config_, p.record, request.algorithm);  // throws if it cannot be
  check_algorithm(p.record);
  if (p.input.sparse) refuse_sparse();
  const std::unique_lock lock(operations_.mutex());
  if (operations_.closed()) throw Error(ErrorCode::invalid_usage, "allreduce: the communicator is closed");
  throw_if_failed();
  operations_.check_conflicts("allreduce", p.input_bytes, p.output_bytes);
}

/// Starts what the caller asks for. A request that is refused takes its place in the order all the same,
/// since otherwise this rank's next operation would meet the other ranks' present one. What is wrong with it
/// is told to them in the place of a contribution.
template <typename Request>
std::shared_ptr<Operation> Core::start_request(const Request& request) {
  require_own_process("starting an operation");
  try {
    Prepared p;
    p.record = shape_of(AllreduceRequest{});  // that of a request which does not say what tensor it is about
    std::optional<Error> refusal;
    try {
      p.record = shape_of(request, wire_type_);
      p.chunk_begins = chunk_begins_of(request, p.record);
      if (p.record.value_rule != wire::ValueRule::as_is) check_wire_type(request.wire_type, p.record);
      p.record.algorithm = algorithms_.choose(p.record, request.algorithm);
      check_algorithm(p.record);
      prepare(request, session_->registrations(), p);
      if (p.input.sparse) refuse_sparse();
    } catch (const Error& e) {
      refusal = e;
    }
    return start(p, std::move(refusal));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // memory ran out, so the place in the order was not taken
    control_->abort(
        {ErrorCode::system, fmt::format("{} could not start an operation: {}", name(), e.what())});
    throw;
  }
}

/// Takes back that values are to travel in a narrower type if the tensor's blocks are too large for it.
/// Refuses the request if it was the caller who asked.
void Core::check_wire_type(WireType asked, wire::OperationRecord& record) const {
  const auto fits = [this](const wire::OperationRecord& r) {
    const engine::SliceLayout layout = engine::layout_of(config_, 0, r);
    return layout.tiled() || layout.express();
  };
  if (members().workers == 1 || fits(record)) return;
  if (asked == WireType::by_option) {
    record.value_rule = wire::ValueRule::as_is;
    return;
  }
  wire::OperationRecord smaller = record;
  smaller.block_elems = std::min<std::uint64_t>(record.block_elems, wire::kMostTileElements / 64);
  while (smaller.block_elems > 1 && !fits(smaller)) --smaller.block_elems;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("allreduce: block_elems is {}; with a wire_type, and slots of {} bytes, blocks may have at "
                  "most {} elements",
                  record.block_elems, config_.channel(wire::Priority::bulk).slot_bytes, smaller.block_elems));
}

/// Refuses what the switch exchange cannot sum. All ranks do so alike.
void Core::check_algorithm(const wire::OperationRecord& record) const {
  if (!config_.datagrams || engine::slot_pool::can_sum(record)) return;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("{}: not with NZCL_ALGORITHM=switch, which does allreduces with dense results: sums of "
                  "int32, and sums and averages of float32, float16 and bfloat16, without a wire_type; "
                  "this is {} of {}{}",
                  wire::name_of(record.collective), name_of(static_cast<ReduceOp>(record.op)),
                  name_of(static_cast<DataType>(record.type)),
                  record.packed_result ? " with a packed result" : ""));
}

void Core::refuse_sparse() const {
  if (!config_.datagrams) return;
  throw Error(
      ErrorCode::unsupported,
      "allreduce: not with NZCL_ALGORITHM=switch, which takes dense inputs only (a bitmap may say which "
      "blocks are not zero)");
}

void Core::abort(Failure failure) {
  require_own_process("abort");
  if (!control_->failed()) told_.store(true, std::memory_order_relaxed);  // the caller knows of it
  control_->abort(std::move(failure));
}

void Core::told(const Failure& failure) {
  const auto whole = control_->failure();
  if (whole && whole->text == failure.text) told_.store(true, std::memory_order_relaxed);
}

void Core::throw_if_failed() {
  const auto failure = control_->failure();
  if (!failure) return;
  told(*failure);
  throw Error(failure->code, failure->text);
}

/// Throws `refusal`, or what the operations in flight and the input itself say against the request, after the
/// operation that takes its place has been started.
std::shared_ptr<Operation> Core::start(Prepared& p, std::optional<Error> refusal) {
  std::unique_lock lock(operations_.mutex());
  wait_for_room(lock);
  std::unique_ptr<const engine::InputCheck> check;
  if (!refusal) {
    try {
      operations_.check_conflicts(wire::name_of(p.record.collective), p.input_bytes, p.output_bytes);
      check = check_input(p);
    } catch (const Error& e) {
      refusal = e;
    }
  }
  if (refusal) {
    auto chunk_begins = std::move(p.chunk_begins);  // without them it would have other slices
    p = refused(p.record, members().self, *refusal);
    p.chunk_begins = std::move(chunk_begins);
  }
  auto operation = make_operation(p);
  operation->input_check = std::move(check);
  operations_.add(operation, p.input_bytes, p.output_bytes);
  if (!refusal) operations_started_.fetch_add(1, std::memory_order_relaxed);
  if (p.known == Prepared::Input::scan) {
    blocks_scanned_.fetch_add(operation->contributed_blocks(), std::memory_order_relaxed);
    if (!operation->layout.express() && !operation->layout.tiled()) threads_.scan_pool().submit(operation);
  }
  if (p.known == Prepared::Input::source) threads_.scan_pool().submit(operation);
  lanes_.submit(*operation);
  lock.unlock();
  lanes_.drive();  // sends at once what can be sent already
  if (refusal) throw Error(*refusal);
  return operation;
}

std::unique_ptr<const engine::InputCheck> Core::check_input(const Prepared& p) const {
  if (options().check == 0 || p.input_bytes.empty()) return nullptr;
  engine::InputBlocks input = input_blocks_of(p);
  if (p.known == Prepared::Input::bitmap && !p.input.sparse) {
    if (const auto block = engine::first_hidden_block(input, p.bitmap)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: block {} of the input is not all zero bytes, and its bit in the "
                              "bitmap is not set; -0.0 is no zero here",
                              wire::name_of(p.record.collective), *block));
    }
  }
  return std::make_unique<const engine::InputCheck>(std::move(input));
}

/// Waits until fewer than kMaxOperations are in flight. It unlocks the lock while it waits.
void Core::wait_for_room(std::unique_lock<std::mutex>& lock) {
  while (true) {
    if (operations_.closed()) throw Error(ErrorCode::invalid_usage, "the communicator is closed");
    throw_if_failed();
    const auto oldest = operations_.blocker();
    if (!oldest) return;
    lock.unlock();
    wait(*oldest, std::nullopt);
    lock.lock();
  }
}

std::shared_ptr<Operation> Core::make_operation(Prepared& p) {
  const std::uint64_t epoch = operations_.next_epoch();
  const engine::SliceLayout layout =
      engine::layout_of(config_, epoch, p.record, p.chunk_begins.empty() ? nullptr : p.chunk_begins.data());
  if (p.known == Prepared::Input::indices) cut_indices(p, layout);
  auto operation = std::make_shared<Operation>(layout, p.record, std::move(p.input), p.output,
                                               static_cast<int>(lanes_.size()));
  operation->chunk_begins = std::move(p.chunk_begins);  // they stay where `layout` refers to them
  operation->set_rank(members().self, members().workers);
  operation->bell = &notifier_.bell();
  operation->epoch = epoch;
  operation->begun_ns = trace::now();
  operation->scan_streams = scan_streams_;
  operation->timeout = p.timeout.count() != 0 ? p.timeout : seconds(options().timeout_s);
  operation->table_index = operations_.next_index();
  operation->regions = std::move(p.regions);
  operation->refusal = std::move(p.refusal);
  operation->own_values = std::move(p.own_values);
  switch (p.known) {
    case Prepared::Input::scan:
      break;
    case Prepared::Input::all:
      operation->set_all_input();
      break;
    case Prepared::Input::bitmap:
      operation->set_input_bitmap(p.bitmap);
      break;
    case Prepared::Input::indices:
      operation->set_input_stream(std::move(p.stream));
      break;
    case Prepared::Input::none:
      operation->set_no_input();
      break;
    case Prepared::Input::source:
      operation->set_input_source(std::move(p.source));
      operation->set_result_coder(std::move(p.result_coder));
      break;
  }
  return operation;
}

bool Core::test(Operation& operation) {
  require_own_process("test");
  if (!operation.finished()) lanes_.drive();
  if (!operation.finished()) return false;
  operation.release_regions();
  operation.complete_packed();
  return true;
}

bool Core::wait(Operation& operation, std::optional<verbs::Deadline> deadline) {
  require_own_process("wait");
  if (!lanes_.drive_until(operation, deadline)) return false;
  operation.release_regions();
  operation.complete_packed();
  return true;
}

void Core::on_complete(std::shared_ptr<Operation> operation, std::function<void()> call) {
  require_own_process("on_complete");
  notifier_.add(std::move(operation), std::move(call));
}

Statistics Core::statistics() const {
  Statistics total;
  total.operations = operations_started_.load(std::memory_order_relaxed);
  total.blocks_scanned = blocks_scanned_.load(std::memory_order_relaxed);
  lanes_.add_to(total);
  return total;
}

// --- End

Core::~Core() {
  try {
    close();
  } catch (const std::exception& e) {
    log().warn("{}: {}", name(), e.what());
  }
}

/// Runs at the end of lane 0's thread, which was told to stop, or stops because the communicator has failed.
/// In the latter case it fails the operations.
void Core::end_of_lane() {
  if (!control_->failed()) return;
  come_to_rest();
  const Failure failure = control_->failure().value_or(Failure{});
  log().debug("{}: communicator failed: {}", name(), failure.text);
  operations_.fail_all(failure);
  operations_.release_finished();
}

/// Runs when nothing is posted any more. Waits until the last writes of this member and of all others have
/// completed, then shuts the lanes down.
void Core::come_to_rest() {
  const auto deadline = Clock::now() + engine::kDrainTime;
  while (!lanes_.drain() && Clock::now() < deadline) std::this_thread::sleep_for(engine::kShortestNap);
  if (!lanes_.drain()) lanes_.shut_down();  // a peer is dead, and this ends the writes to it
  control_->quiesced();
  const auto patience = Clock::now() + engine::kQuietTime;
  while (!control_->wait_quiesced(Clock::now() + engine::kLongestNap)) {
    lanes_.drain();
    if (Clock::now() < patience) continue;
    log().warn(
        "{}: not every member has ended its writes in time; a late write may still reach this process's "
        "buffers",
        name());
    break;
  }
  lanes_.shut_down();
}

void Core::stop_threads() {
  threads_.stop(lanes_);
  notifier_.stop();
  try {
    trace::write();
  } catch (const Error& e) {
    // The lanes must be closed even if the timeline cannot be written.
    log().warn("{}: {}", name(), e.what());
  }
}

void Core::close() {
  if (!process_.is_current()) return;
  if (notifier_.is_own_thread())
    throw Error(ErrorCode::invalid_usage, "close: a completion callback must not close its communicator");
  std::vector<std::shared_ptr<Operation>> pending;
  {
    const std::scoped_lock lock(operations_.mutex());
    if (operations_.closed()) return;
    operations_.close();
    pending = operations_.all();
  }
  splitter_.close();
  if (!threads_.running()) return;  // joining failed before the threads were started
  for (const auto& operation : pending) {
    // Nobody here waits for a request that was refused, and other ranks may never have made the call.
    if (!operation->refusal) wait(*operation, std::nullopt);
  }
  const bool together = control_->leave(deadline_after(seconds(options().close_timeout_s)));
  const bool failed = control_->failed();
  stop_threads();
  if (together && !failed) come_to_rest();
  lanes_.shut_down();
  log_untold();
  if (!together && !failed) {
    throw Error(ErrorCode::timeout,
                fmt::format("close: not every member left within {:g} s", options().close_timeout_s));
  }
}

/// Logs the failure if no caller has been told of it, because nobody will ask for it any more.
void Core::log_untold() {
  const auto failure = control_->failure();
  if (failure && !told_.exchange(true)) log().error("{}: communicator failed: {}", name(), failure->text);
}

void Core::serve() {
  ChildServers children(name());
  while (auto splits = splitter_.next(*control_)) {
    for (Split& split : *splits) {
      // A std::function must be copyable, and a Split is not.
      const auto child = std::make_shared<Split>(std::move(split));
      children.start([this, child] { join_split(std::move(*child), meeting_deadline())->serve(); });
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
  lanes_.shut_down();
  children.wait();
  if (!together && failure) throw Error(failure->code, failure->text);
  log_untold();
}

}  // namespace nzcl::comm

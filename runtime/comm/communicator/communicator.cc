#include "nzcl/communicator.h"

#include <atomic>
#include <forward_list>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/factory.h"
#include "runtime/bootstrap/local.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "runtime/comm/communicator/inside_communicator.h"
#include "runtime/options/validate.h"
#include "runtime/switch/registration.h"
#include "runtime/wire/immediate.h"
#include "verbs/loopback/network.h"

namespace nzcl {

using bootstrap::Role;
using comm::CommunicatorCore;

namespace {

[[noreturn]] void reject_empty(const char* what) {
  throw Error(
      ErrorCode::invalid_usage,
      std::string("this ") + what + " is empty: it was moved from, or made by its default constructor");
}

/// `timeout` is the caller's; 0: bootstrap_timeout_s.
verbs::Deadline deadline_of(const char* call, std::chrono::nanoseconds timeout, const Options& options) {
  if (timeout < std::chrono::nanoseconds(0))
    throw Error(ErrorCode::invalid_argument, std::string(call) + ": the timeout is negative");
  if (timeout != std::chrono::nanoseconds(0)) return deadline_after(timeout);
  return deadline_after(saturated_nanoseconds(std::chrono::duration<double>(options.bootstrap_timeout_s)));
}

}  // namespace

/// What the threads of a LocalGroup share.
class LocalGroupState {
 public:
  LocalGroupState(int worker_count, int aggregator_count)
      : workers(worker_count),
        aggregators(aggregator_count),
        meeting(std::make_shared<bootstrap::LocalMeeting>(worker_count + aggregator_count)),
        network(std::make_shared<verbs::LoopbackNetwork>()) {}
  const int workers, aggregators;
  std::shared_ptr<bootstrap::LocalMeeting> meeting;
  std::shared_ptr<verbs::LoopbackNetwork> network;
};

/// An operation, and the communicator that runs it. If that has been replaced and the operation has begun
/// once more, it turns to what stands for it, and keeps what it was as long as somebody may look at it.
class WorkState {
 public:
  using Run = CommunicatorCore::Run;
  WorkState(std::shared_ptr<CommunicatorCore> core, std::shared_ptr<engine::Operation> operation)
      : first_{std::move(core), std::move(operation)} {}

  const Run& run() const { return *present_.load(std::memory_order_acquire); }
  engine::Operation& operation() const { return *run().operation; }
  CommunicatorCore& core() const { return *run().core; }
  std::uint64_t epoch() const { return first_.operation->epoch; }

  /// To be called when the operation has finished. Returns true if it has begun once more.
  bool follow() {
    const Run& over = run();
    auto next = over.core->begun_again(*over.operation);
    if (!next) return false;
    const std::scoped_lock lock(mutex_);
    if (&run() == &over) present_.store(&later_.emplace_front(std::move(*next)), std::memory_order_release);
    return true;
  }

  void require_finished(const char* what) const {
    if (!operation().finished())
      throw Error(ErrorCode::invalid_usage, std::string(what) + ": operation " + std::to_string(epoch()) +
                                                " has not completed; wait for it first");
  }
  void throw_if_failed() const {
    operation().verify_input();
    const auto failure = operation().failure();
    if (!failure) return;
    core().told(*failure);
    throw Error(failure->code, failure->text);
  }
  void require_success(const char* what) const {
    require_finished(what);
    throw_if_failed();
  }

 private:
  const Run first_;
  std::forward_list<Run> later_;  // as which it has begun once more, the last one first
  std::atomic<const Run*> present_{&first_};
  std::mutex mutex_;  // of those who follow
};

/// Returns what `make` returns. What the system refuses becomes an Error that says which call it was in.
template <typename Make>
auto telling(const char* call, Make make) {
  try {
    return make();
  } catch (const std::system_error& e) {
    throw Error(ErrorCode::system, std::string(call) + ": " + e.what());
  }
}

/// Gives the public classes access to a CommunicatorCore, and to each other's private members.
class CommunicatorState {
 public:
  explicit CommunicatorState(std::shared_ptr<CommunicatorCore> core)
      : replaceable_(core->replaceable()), core_(std::move(core)) {
    if (replaceable_) options_ = core_->options();
  }

  /// The core in use. If it has failed, waits until it is known whether another one takes its place.
  std::shared_ptr<CommunicatorCore> core() {
    if (!replaceable_) return core_;
    auto last = last_core();
    auto present = CommunicatorCore::present(last);
    if (present == last) return present;
    {
      const std::scoped_lock lock(mutex_);
      if (core_ == last) core_ = present;
      if (last->is_notifier()) retired_.push_back(last);  // a thread of that core, which cannot end it
    }
    return present;
  }
  /// The same without waiting. It may have failed.
  std::shared_ptr<CommunicatorCore> last_core() const {
    if (!replaceable_) return core_;
    const std::scoped_lock lock(mutex_);
    return core_;
  }
  /// As they were at first.
  const Options& options() const { return options_ ? *options_ : core_->options(); }
  /// Of the core, and of every other one that takes its place meanwhile.
  void close() {
    for (std::shared_ptr<CommunicatorCore> closed, now = core(); now != closed; now = core()) {
      now->close();
      closed = std::move(now);
    }
  }

  static std::unique_ptr<CommunicatorState> join(const Options& given,
                                                 std::unique_ptr<bootstrap::Meeting> meeting,
                                                 comm::Identity identity) {
    return std::make_unique<CommunicatorState>(telling("joining the communicator", [&] {
      return CommunicatorCore::join(given, std::move(meeting), std::move(identity));
    }));
  }
  static std::shared_ptr<CommunicatorCore> join_local(const LocalGroup& group, Role role, int index,
                                                      Options options) {
    const LocalGroupState& state = group.state();
    const bool worker = role == Role::worker;
    if (index < 0 || index >= (worker ? state.workers : state.aggregators)) {
      throw Error(ErrorCode::invalid_argument, std::string(worker ? "rank " : "aggregator ") +
                                                   std::to_string(index) + " is not in this LocalGroup");
    }
    options.aggregators = state.aggregators;
    prepare(options);
    const int member = worker ? index : state.workers + index;
    return CommunicatorCore::join(options, bootstrap::make_local_meeting(state.meeting, member),
                                  {role, index}, std::make_shared<comm::Session>(state.network->device()));
  }
  static void prepare(const Options& options) {
    validate(options);
    set_log_level(options.log_level);
    engine::wing_of(options.algorithm);  // before anybody is waited for: this build may not have it
  }
  static RegisteredBuffer registered(std::shared_ptr<comm::Registration> registration) {
    RegisteredBuffer buffer;
    buffer.bytes_ = registration->bytes;
    buffer.registration_ = std::move(registration);
    return buffer;
  }
  static std::shared_ptr<CommunicatorCore> core_of(Communicator& communicator) {
    return communicator.state().core();
  }
  static Work start(Communicator& communicator, const comm::Request& request, std::uint64_t checksum) {
    return communicator.state().start(request, checksum);
  }
  static void send_made(const Work& work) {
    const WorkState& state = work.state();
    state.core().send_made(state.operation());
  }
  Work start(const comm::Request& request, std::uint64_t checksum = 0) {
    const auto on = [&](std::shared_ptr<CommunicatorCore> core) {
      auto operation = core->start(request, checksum);
      return Work(std::make_shared<WorkState>(std::move(core), std::move(operation)));
    };
    return replaceable_ ? CommunicatorCore::on_present(core(), on) : on(core_);
  }
  Work start_collective(const auto& asked) {
    const auto core = last_core();
    const engine::Members& members = core->members();
    const auto request = comm::request_of(asked, members.self, members.workers);
    return start(&request);
  }

 private:
  const bool replaceable_;
  std::optional<Options> options_;  // those of a core that may end before this object
  mutable std::mutex mutex_;
  std::shared_ptr<CommunicatorCore> core_;                  // with the lock, if it may be replaced
  std::vector<std::shared_ptr<CommunicatorCore>> retired_;  // with the lock
};

// --- LocalGroup

LocalGroup::LocalGroup(int workers, int aggregators) {
  if (workers < 1 || aggregators < 0 || workers > wire::kMaxMembers ||
      aggregators > wire::kMaxMembers - workers) {
    throw Error(ErrorCode::invalid_argument,
                "LocalGroup: needs at least one worker, a number of aggregators that is not negative, and no "
                "more than " +
                    std::to_string(wire::kMaxMembers) + " members in all");
  }
  state_ = std::make_shared<LocalGroupState>(workers, aggregators);
}
const LocalGroupState& LocalGroup::state() const {
  if (!state_) reject_empty("LocalGroup");
  return *state_;
}
int LocalGroup::workers() const { return state().workers; }
int LocalGroup::aggregators() const { return state().aggregators; }

// --- Work

WorkState& Work::state() const {
  if (!state_) reject_empty("Work");
  return *state_;
}

std::uint64_t Work::epoch() const { return state().epoch(); }

bool Work::test() {
  WorkState& work = state();
  do {
    if (!work.core().test(work.operation())) return false;
  } while (work.follow());
  work.throw_if_failed();
  return true;
}

void Work::wait() {
  WorkState& work = state();
  do {
    work.core().wait(work.operation(), std::nullopt);
  } while (work.follow());
  work.throw_if_failed();
}

bool Work::wait_at_most(std::chrono::nanoseconds timeout) {
  WorkState& work = state();
  const auto deadline = deadline_after(timeout);
  do {
    if (!work.core().wait(work.operation(), deadline)) return false;
  } while (work.follow());
  work.throw_if_failed();
  return true;
}

namespace {

/// Ends a finished operation on a thread that nobody waits on. Returns its error, or nothing for success.
std::optional<Error> outcome(CommunicatorCore& core, engine::Operation& operation) {
  operation.verify_input();
  operation.release_regions();
  try {
    operation.complete_packed();
  } catch (const Error& e) {
    return e;
  } catch (const std::exception& e) {
    return Error(ErrorCode::system, std::string("packed_grow: ") + e.what());
  }
  const auto failure = operation.failure();
  if (!failure) return std::nullopt;
  core.told(*failure);
  return Error(failure->code, failure->text);
}

/// Makes the call when the operation is over, or when that is over as which it has begun once more.
void call_at_end(const WorkState::Run& run, std::function<void(const Error* error)> callback) {
  CommunicatorCore* const core = run.core.get();  // which owns the thread that makes the call
  run.core->on_complete(run.operation,
                        [core, operation = run.operation, call = std::move(callback)]() mutable {
                          if (const auto again = core->begun_again(*operation))
                            return call_at_end(*again, std::move(call));
                          const auto error = outcome(*core, *operation);
                          const auto log_thrown = [&](const char* what) {
                            log().error("rank {}: a completion callback of operation {} has thrown: {}",
                                        core->members().self, operation->epoch, what);
                          };
                          try {
                            call(error ? &*error : nullptr);
                          } catch (const std::exception& e) {
                            log_thrown(e.what());
                          } catch (...) {
                            log_thrown("something that is no std::exception");
                          }
                        });
}

}  // namespace

void Work::on_complete(std::function<void(const Error* error)> callback) {
  call_at_end(state().run(), std::move(callback));
}

void Work::enqueue_wait(void* stream) { state().core().enqueue_wait(state().operation(), stream); }

std::span<const std::uint64_t> Work::union_bitmap() const {
  state().require_success("union_bitmap");
  return state().operation().union_bitmap();
}

std::uint64_t Work::result_blocks() const { return state().operation().result_blocks(); }

std::span<const std::int64_t> Work::packed_indices() const {
  state().require_success("packed_indices");
  return state().operation().packed_indices();
}

OperationStatistics Work::statistics() const {
  state().require_finished("statistics");
  const engine::Operation& op = state_->operation();
  return {.blocks = op.layout.blocks(),
          .input_blocks = op.input_blocks.load(std::memory_order_relaxed),
          .union_blocks = op.union_blocks.load(std::memory_order_relaxed),
          .bytes_sent = op.bytes_sent.load(std::memory_order_relaxed),
          .bytes_received = op.bytes_received.load(std::memory_order_relaxed),
          .algorithm = state_->core().algorithm_of(op)};
}

// --- Communicator

Communicator::Communicator(const Options& options) {
  CommunicatorState::prepare(options);
  auto meeting = bootstrap::make_meeting(options, Role::worker, -1);
  state_ = CommunicatorState::join(options, std::move(meeting), {Role::worker, -1});
}

Communicator::Communicator(const Options& options, int rank, int size, AllgatherCallback allgather) {
  CommunicatorState::prepare(options);
  state_ = CommunicatorState::join(
      options, bootstrap::make_callback_meeting(rank, size, std::move(allgather)), {Role::worker, rank});
}

Communicator::Communicator(const LocalGroup& group, int rank, const Options& options)
    : state_(std::make_unique<CommunicatorState>(
          CommunicatorState::join_local(group, Role::worker, rank, options))) {}

Communicator::Communicator(std::unique_ptr<CommunicatorState> state) noexcept : state_(std::move(state)) {}

void Communicator::close_quietly() noexcept {
  if (!state_) return;
  try {
    state_->close();
  } catch (const std::exception& e) {
    log().warn("rank {}: {}", state_->last_core()->members().self, e.what());
  }
}
Communicator::~Communicator() { close_quietly(); }
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this == &other) return *this;
  close_quietly();
  state_ = std::move(other.state_);
  return *this;
}

CommunicatorState& Communicator::state() const {
  if (!state_) reject_empty("Communicator");
  return *state_;
}
int Communicator::rank() const { return state().last_core()->members().self; }
int Communicator::size() const { return state().last_core()->members().workers; }
const Options& Communicator::options() const { return state().options(); }
std::string Communicator::describe() const { return state().core()->describe(); }

RegisteredBuffer Communicator::register_buffer(void* data, std::size_t bytes, MemoryKind kind) {
  return CommunicatorState::registered(state().core()->register_memory(data, bytes, kind));
}
void* Communicator::device_stream(const RegisteredBuffer& buffer) {
  return state().core()->device_stream(buffer.bytes());
}
Work Communicator::allreduce(const AllreduceRequest& request) { return state().start(&request); }
Work Communicator::allreduce_sparse(const SparseAllreduceRequest& request) { return state().start(&request); }
Work Communicator::broadcast(const BroadcastRequest& request) { return state().start_collective(request); }
Work Communicator::reduce(const ReduceRequest& request) { return state().start_collective(request); }
Work Communicator::reduce_scatter(const ReduceScatterRequest& request) {
  return state().start_collective(request);
}
Work Communicator::allgather(const AllgatherRequest& request) { return state().start_collective(request); }
void Communicator::barrier() { allreduce(AllreduceRequest{}).wait(); }
void Communicator::refuse(std::string_view reason) {
  comm::refuse_unknown(*this, Error(ErrorCode::invalid_argument, std::string(reason)));
}
Communicator Communicator::split(int color, int key) {
  auto core = telling("split", [&] { return state().core()->split(color, key); });
  return Communicator(core ? std::make_unique<CommunicatorState>(std::move(core)) : nullptr);
}
Communicator Communicator::shrink(const ShrinkOptions& options) {
  const auto core = state().core();
  const auto deadline = deadline_of("shrink", options.timeout, core->options());
  return Communicator(std::make_unique<CommunicatorState>(
      telling("shrink", [&] { return core->shrink(options.leave_out, options.minority, deadline); })));
}
Communicator Communicator::grow(const GrowOptions& options) {
  const auto core = state().core();
  const auto deadline = deadline_of("grow", options.timeout, core->options());
  return Communicator(std::make_unique<CommunicatorState>(
      telling("grow", [&] { return core->grow(options.size, options.place, deadline); })));
}
Statistics Communicator::statistics() const { return state().core()->statistics(); }

std::optional<Error> Communicator::async_error() const {
  const auto core = state().last_core();
  const auto failure = core->lasting_failure();
  if (!failure) return std::nullopt;
  core->told(*failure);
  return Error(failure->code, failure->text);
}
void Communicator::abort(std::string_view reason) {
  state().core()->abort(
      {ErrorCode::aborted, "aborted by rank " + std::to_string(rank()) + ": " + std::string(reason)});
}
void Communicator::close() { state().close(); }

void comm::refuse(Communicator& communicator, const Request& request, const Error& refusal) {
  CommunicatorCore::on_present(
      CommunicatorState::core_of(communicator),
      [&](const std::shared_ptr<CommunicatorCore>& core) { core->refuse(request, refusal); });
}
void comm::refuse_unknown(Communicator& communicator, const Error& refusal) {
  refuse(communicator, &kUnknownRequest, refusal);
}
void comm::check(Communicator& communicator, const Request& request) {
  CommunicatorState::core_of(communicator)->check(request);
}
void comm::require_unwritten(Communicator& communicator, std::span<const std::byte> input, bool may_be_gpu) {
  CommunicatorState::core_of(communicator)->require_unwritten(input, may_be_gpu);
}
bool comm::takes(Communicator& communicator, const CompressedRequest& request) {
  return CommunicatorState::core_of(communicator)->takes(request);
}
bool comm::takes_lists(Communicator& communicator) {
  return CommunicatorState::core_of(communicator)->takes_lists();
}
const char* comm::why_no_coded_results(Communicator& communicator) {
  return CommunicatorState::core_of(communicator)->why_no_coded_results();
}
bool comm::owners_are_ranks(Communicator& communicator) {
  return CommunicatorState::core_of(communicator)->members().dedicated == 0;
}
double comm::remote_share(Communicator& communicator) {
  const auto core = CommunicatorState::core_of(communicator);
  const engine::Members& members = core->members();
  return members.dedicated > 0 ? 1 : (members.workers - 1.0) / members.workers;
}
Work comm::start(Communicator& communicator, const Request& request, std::uint64_t checksum) {
  return CommunicatorState::start(communicator, request, checksum);
}
void comm::send_made(const Work& work) { CommunicatorState::send_made(work); }

// --- Dedicated aggregators

void serve_aggregator(const Options& options, int index) {
  CommunicatorState::prepare(options);
  CommunicatorCore::join(options, bootstrap::make_meeting(options, Role::aggregator, index),
                         {Role::aggregator, index})
      ->serve();
}

void serve_aggregator(const LocalGroup& group, int index, const Options& options) {
  CommunicatorState::join_local(group, Role::aggregator, index, options)->serve();
}

}  // namespace nzcl

#include "nzcl/communicator.h"

#include "runtime/base/log.h"
#include "runtime/bootstrap/factory.h"
#include "runtime/bootstrap/local.h"
#include "runtime/comm/core.h"
#include "runtime/options/validate.h"
#include "verbs/loopback/network.h"

namespace nzcl {

using comm::Core;
using comm::Role;

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

class WorkState {
 public:
  WorkState(std::shared_ptr<Core> c, std::shared_ptr<engine::Operation> o)
      : core(std::move(c)), operation(std::move(o)) {}
  const std::shared_ptr<Core> core;
  const std::shared_ptr<engine::Operation> operation;

  void throw_if_failed() const {
    if (const auto failure = operation->failure()) throw Error(failure->code, failure->text);
  }
  void require_success(const char* what) const {
    if (!operation->finished())
      throw Error(ErrorCode::invalid_usage, std::string(what) + ": the operation has not completed");
    throw_if_failed();
  }
};

class CommunicatorState {
 public:
  explicit CommunicatorState(std::shared_ptr<Core> c) : core(std::move(c)) {}
  std::shared_ptr<Core> core;

  static std::unique_ptr<CommunicatorState> join(const Options& given,
                                                 std::unique_ptr<bootstrap::Bootstrap> meeting,
                                                 Core::Seat seat,
                                                 std::shared_ptr<verbs::Device> device = nullptr) {
    return std::make_unique<CommunicatorState>(
        Core::join(given, std::move(meeting), seat, std::move(device)));
  }
  static std::shared_ptr<Core> join_local(const LocalGroup& group, Role role, int index, Options options) {
    const LocalGroupState& state = *group.state_;
    const bool worker = role == Role::worker;
    if (index < 0 || index >= (worker ? state.workers : state.aggregators)) {
      throw Error(ErrorCode::invalid_argument, std::string(worker ? "rank " : "aggregator ") +
                                                   std::to_string(index) + " is not in this LocalGroup");
    }
    options.aggregators = state.aggregators;
    prepare(options);
    const int member = worker ? index : state.workers + index;
    return Core::join(options, bootstrap::make_local_bootstrap(state.meeting, member), {role, index},
                      state.network->device());
  }
  static void prepare(const Options& options) {
    validate(options);
    set_log_level(options.log_level);
  }
  static RegisteredBuffer registered(std::shared_ptr<comm::Registration> registration) {
    RegisteredBuffer buffer;
    buffer.bytes_ = registration->bytes;
    buffer.registration_ = std::move(registration);
    return buffer;
  }
  Work work(std::shared_ptr<engine::Operation> operation) {
    return Work(std::make_shared<WorkState>(core, std::move(operation)));
  }
};

// --- LocalGroup

LocalGroup::LocalGroup(int workers, int aggregators) {
  if (workers < 1 || aggregators < 0)
    throw Error(ErrorCode::invalid_argument,
                "LocalGroup: at least one worker, and no fewer than 0 aggregators");
  state_ = std::make_shared<LocalGroupState>(workers, aggregators);
}
int LocalGroup::workers() const noexcept { return state_->workers; }
int LocalGroup::aggregators() const noexcept { return state_->aggregators; }

// --- Work

std::uint64_t Work::epoch() const { return state_->operation->epoch; }

bool Work::test() {
  if (!state_->operation->finished()) state_->core->drive();
  if (!state_->operation->finished()) return false;
  state_->throw_if_failed();
  return true;
}

void Work::wait() {
  state_->core->wait(*state_->operation, std::nullopt);
  state_->throw_if_failed();
}

bool Work::wait(std::chrono::nanoseconds timeout) {
  if (!state_->core->wait(*state_->operation, verbs::Clock::now() + timeout)) return false;
  state_->throw_if_failed();
  return true;
}

std::span<const std::uint64_t> Work::union_bitmap() const {
  state_->require_success("union_bitmap");
  return state_->operation->union_bitmap();
}

std::span<const std::int64_t> Work::packed_indices() const {
  state_->require_success("packed_indices");
  return state_->operation->packed_indices();
}

OperationStatistics Work::statistics() const {
  const engine::Operation& op = *state_->operation;
  return {.blocks = op.layout.blocks(),
          .input_blocks = op.input_blocks.load(std::memory_order_relaxed),
          .union_blocks = op.union_blocks.load(std::memory_order_relaxed),
          .bytes_sent = op.bytes_sent.load(std::memory_order_relaxed),
          .bytes_received = op.bytes_received.load(std::memory_order_relaxed)};
}

// --- Communicator

Communicator::Communicator(const Options& options) {
  CommunicatorState::prepare(options);
  auto place = bootstrap::make_bootstrap(options, Role::worker, -1);
  state_ = CommunicatorState::join(options, std::move(place), {Role::worker, -1});
}

Communicator::Communicator(const Options& options, int rank, int size, AllgatherCallback allgather) {
  CommunicatorState::prepare(options);
  state_ = CommunicatorState::join(
      options, bootstrap::make_callback_bootstrap(rank, size, std::move(allgather)), {Role::worker, rank});
}

Communicator::Communicator(const LocalGroup& group, int rank, const Options& options)
    : state_(std::make_unique<CommunicatorState>(
          CommunicatorState::join_local(group, Role::worker, rank, options))) {}

Communicator::~Communicator() {
  if (!state_) return;
  try {
    state_->core->close();
  } catch (const std::exception& e) {
    log().warn("{}", e.what());
  }
}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

int Communicator::rank() const noexcept { return state_->core->members().self; }
int Communicator::size() const noexcept { return state_->core->members().workers; }
const Options& Communicator::options() const noexcept { return state_->core->options(); }
std::string Communicator::describe() const { return state_->core->describe(); }

RegisteredBuffer Communicator::register_buffer(void* data, std::size_t bytes, MemoryKind kind) {
  return CommunicatorState::registered(state_->core->register_memory(data, bytes, kind));
}
Work Communicator::allreduce(const AllreduceRequest& request) {
  return state_->work(state_->core->allreduce(request));
}
Work Communicator::allreduce(const SparseAllreduceRequest& request) {
  return state_->work(state_->core->allreduce(request));
}
void Communicator::barrier() { allreduce(AllreduceRequest{}).wait(); }
Statistics Communicator::statistics() const { return state_->core->statistics(); }

std::optional<Error> Communicator::async_error() const {
  const auto failure = state_->core->failure();
  if (!failure) return std::nullopt;
  return Error(failure->code, failure->text);
}
void Communicator::abort(std::string_view reason) {
  state_->core->abort(
      {ErrorCode::aborted, "aborted by rank " + std::to_string(rank()) + ": " + std::string(reason)});
}
void Communicator::close() { state_->core->close(); }

// --- Dedicated aggregators

void serve_aggregator(const Options& options, int index) {
  CommunicatorState::prepare(options);
  Core::join(options, bootstrap::make_bootstrap(options, Role::aggregator, index), {Role::aggregator, index})
      ->serve();
}

void serve_aggregator(const LocalGroup& group, int index, const Options& options) {
  CommunicatorState::join_local(group, Role::aggregator, index, options)->serve();
}

}  // namespace nzcl

// The implementation of a communicator: it joins the members, starts operations, and ends them in success or
// failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "nzcl/communicator.h"
#include "runtime/base/own_process.h"
#include "runtime/base/spare_memory.h"
#include "runtime/bootstrap/control.h"
#include "runtime/comm/communicator/captured_call.h"
#include "runtime/comm/communicator/engine_threads.h"
#include "runtime/comm/communicator/hierarchy.h"
#include "runtime/comm/communicator/lane_set.h"
#include "runtime/comm/communicator/notifier.h"
#include "runtime/comm/communicator/operation_table.h"
#include "runtime/comm/communicator/reassignment.h"
#include "runtime/comm/gpu/staging_thread.h"
#include "runtime/comm/join/join.h"
#include "runtime/comm/join/joining_children.h"
#include "runtime/comm/join/splitter.h"
#include "runtime/comm/request/recent_requests.h"
#include "runtime/comm/request/request.h"
#include "runtime/comm/session/session.h"
#include "runtime/plan/algorithm_memo.h"

namespace nzcl::comm {

/// Shared by the Communicator and its Works. Thread-safe.
///
/// Threads: one for each lane, as many scan threads as planned, one that ends the operations after a failure,
/// the control plane's own, and one that runs the callers' callbacks, if there are any.
///
/// How a communicator ends:
///  - In success, close() waits for the operations in flight, then for all members to leave. Each member
///    then waits until its writes have ended, and until those of all members have ended, before it closes
///    its endpoints.
///  - In failure, the control plane's thread halts the lanes. The ending thread then waits in the same way
///    until no write is in flight, and only after that fails the operations, by which their buffers go back
///    to the caller.
///  - By shrink() and grow(), it fails if it has not yet, and its members join another one over its control
///    plane.
///  - If a thread does not come back from the transport, the operations fail all the same. That thread still
///    uses the core, so the core is never destroyed then.
///
/// In a child that the process makes by fork(), calls throw Error{invalid_usage}, close() returns at once,
/// and the destructor does not run, because the child shares connections and devices with its parent.
class CommunicatorCore {
 public:
  /// Collective. `session` comes from an earlier communicator; if it is nullptr, the device that the options
  /// ask for is opened. Either all members bring a session or none does. A member that cannot join tells the
  /// others why, and all of them throw.
  static std::shared_ptr<CommunicatorCore> join(Options options, std::unique_ptr<bootstrap::Meeting> meeting,
                                                Identity identity,
                                                std::shared_ptr<Session> session = nullptr);
  /// Collective over the workers; see Communicator::split(). The new core has this one's session. Returns
  /// nullptr if `color` is negative.
  std::shared_ptr<CommunicatorCore> split(int color, int key);
  /// Collective over the members that are left; see Communicator::shrink(). The new core has this one's
  /// session.
  std::shared_ptr<CommunicatorCore> shrink(std::span<const int> leave_out, bool minority,
                                           verbs::Deadline deadline);
  /// Collective over the workers and the new ranks; see Communicator::grow().
  std::shared_ptr<CommunicatorCore> grow(int size, const std::string& place, verbs::Deadline deadline);

  /// Whether another core takes the place of this one when a dedicated aggregator is lost (REASSIGNMENT.md).
  bool replaceable() const { return replaceable_; }
  /// Returns `core`, or the one that has taken its place. Waits while that is being decided.
  static std::shared_ptr<CommunicatorCore> present(std::shared_ptr<CommunicatorCore> core);
  /// Returns what `call(core)` returns, of the present core: also if that takes the place of another one
  /// during the call, which then has not taken its place in the order of operations.
  template <typename Call>
  static auto on_present(std::shared_ptr<CommunicatorCore> core, Call call);
  /// An operation, and the core that runs it.
  struct Run {
    std::shared_ptr<CommunicatorCore> core;
    std::shared_ptr<engine::Operation> operation;
  };
  /// What stands for a failed operation, if that has begun once more.
  std::optional<Run> begun_again(const engine::Operation& operation);
  /// Whether this is the thread that runs the callbacks, which cannot end the core.
  bool is_notifier() const { return notifier_.is_own_thread(); }

  CommunicatorCore(const CommunicatorCore&) = delete;
  CommunicatorCore& operator=(const CommunicatorCore&) = delete;

  const engine::Members& members() const { return introduction_.membership.members; }
  const Options& options() const { return introduction_.options; }
  const std::shared_ptr<Session>& session() const { return session_; }
  std::string describe() const;

  std::shared_ptr<Registration> register_memory(void* data, std::size_t bytes, MemoryKind kind);
  /// Starts what the caller asks for. A request that is refused takes its place in the order of operations
  /// all the same, since otherwise this rank's next operation would meet the other ranks' present one. What
  /// is wrong with it is told to them in the place of a contribution. `checksum` is that of the compressor
  /// whose output is summed; 0: there is none.
  std::shared_ptr<engine::Operation> start(const Request& request, std::uint64_t checksum = 0);
  /// Whether the communicator takes such a request: whether its tensor is exchanged in tiles.
  bool takes(const CompressedRequest& request) const;
  bool takes_lists() const { return !introduction_.wing; }
  /// Why the results of such a request cannot be coded, as a part of a sentence, or nullptr.
  const char* why_no_coded_results() const;
  /// Sends what the operation's source has made.
  void send_made(engine::Operation& operation) {
    operation.ring_for_made();
    lanes_.drive();
  }
  /// Takes the place, in the order of operations, of a call that was refused before it was started. The
  /// operation fails on all ranks, and the communicator stays usable if the request is what the call would
  /// have asked for. Throws only if the communicator has failed or is closed.
  void refuse(const Request& request, const Error& refusal);
  /// Throws the Error by which start(request) would refuse it now, as far as that can be told without the
  /// operations that other threads start meanwhile.
  void check(const Request& request);
  /// Throws Error{invalid_usage} if an operation in flight writes to what an allreduce is about to read, and
  /// Error{unsupported} if that is memory of a GPU, and may not be.
  void require_unwritten(std::span<const std::byte> input, bool may_be_gpu);

  /// Drives every lane once. Returns true if the operation has finished; then it holds no memory region any
  /// more.
  bool test(engine::Operation& operation);
  /// The same, but drives the lanes until the operation has finished or the deadline comes.
  bool wait(engine::Operation& operation, std::optional<verbs::Deadline> deadline);

  /// See Communicator::device_stream().
  gpu::Stream device_stream(std::span<const std::byte> memory);
  /// Makes a stream of the operation's GPU wait for it; see Work::enqueue_wait().
  void enqueue_wait(engine::Operation& operation, void* stream);

  /// Begins an operation of a call that was captured, once `last` is over, which it becomes. Returns false if
  /// there is none: then the communicator has failed or ended.
  bool begin_captured(const CapturedCall& call, std::shared_ptr<engine::Operation>& last) noexcept;

  /// Calls `call` once, when the operation has finished; see Notifier.
  void on_complete(std::shared_ptr<engine::Operation> operation, std::function<void()> call);

  Statistics statistics() const;
  Algorithm algorithm_of(const engine::Operation& operation) const;
  std::optional<Failure> failure() const { return control_->failure(); }
  /// The failure that no other core has to mend, or is about to.
  std::optional<Failure> lasting_failure() const;
  /// Records that a caller has been told of this failure, so that it need not be logged.
  void told(const Failure& failure);
  void abort(Failure failure);
  /// Collective. Waits for the operations in flight, then for all members. Throws Error{timeout} if some
  /// member does not leave in time. Later calls do nothing.
  void close();
  /// Called by a dedicated aggregator instead of close(): serves until all workers have left, and also every
  /// communicator that they split off. Throws the first Error by which one of these has failed.
  void serve();

 private:
  /// The introduction's membership has all members' nodes and links.
  CommunicatorCore(Introduction introduction, std::shared_ptr<Session> session);
  /// Makes a core that is closed before it is destroyed, and that is only destroyed if no thread is stuck in
  /// it and only in the process in which it was made.
  static std::shared_ptr<CommunicatorCore> make(Introduction introduction, std::shared_ptr<Session> session);
  ~CommunicatorCore() = default;
  static std::shared_ptr<CommunicatorCore> join_by(Options options,
                                                   std::unique_ptr<bootstrap::Meeting> meeting,
                                                   Identity identity, std::shared_ptr<Session> session,
                                                   verbs::Deadline deadline);
  /// Collective, over a control plane that has just come to life. Takes it once it has settled.
  static std::shared_ptr<CommunicatorCore> join_members(Introduction introduction,
                                                        std::unique_ptr<bootstrap::ControlPlane>& control,
                                                        bootstrap::Rounds& rounds,
                                                        std::shared_ptr<Session> session,
                                                        verbs::Deadline deadline);
  void begin(std::shared_ptr<bootstrap::ControlPlane> control, bootstrap::Rounds& rounds,
             verbs::Deadline deadline);
  /// `place` is GrowOptions::place.
  std::shared_ptr<CommunicatorCore> regroup(const bootstrap::RegroupWish& wish, const std::string& place,
                                            verbs::Deadline deadline);
  void end_operations_before(const char* call, verbs::Deadline deadline);
  bool wait_for_all(std::optional<verbs::Deadline> deadline);
  std::shared_ptr<CommunicatorCore> try_attempt(const bootstrap::Regrouping::Attempt& attempt,
                                                const bootstrap::RegroupWish& wish, const std::string& place,
                                                verbs::Deadline deadline);
  void discard();
  void take_what_has_come();
  std::shared_ptr<CommunicatorCore> replace_if_an_aggregator_is_lost(const Failure& failure) noexcept;
  void begin_again_on(std::shared_ptr<CommunicatorCore> next, const Failure& failure);
  Reassignment compare(OperationTable& former, verbs::Deadline deadline);
  void expect(std::deque<std::optional<Failure>> calls);
  void keep(const Request& request, Prepared& prepared) const;
  void take_call_to_come();
  std::shared_ptr<CommunicatorCore> join_child(Part part, verbs::Deadline deadline);
  std::shared_ptr<CommunicatorCore> join_part(Part part, verbs::Deadline deadline,
                                              JoiningChildren* children = nullptr) const;
  std::unique_ptr<Hierarchy> plan_hierarchy();
  verbs::Deadline meeting_deadline() const;
  bool is_worker() const { return members().is_worker(members().self); }

  void check_wire_type(WireType asked, wire::OperationRecord& record) const;
  void check_algorithm(const wire::OperationRecord& record) const;
  void refuse_sparse() const;
  std::optional<Error> try_to_prepare(const Request& request, Prepared& p);
  void prepare_request(const Request& request, Prepared& p);
  void stage(Prepared& p, Algorithm asked);
  bool comes_in_tiles(Prepared& p) const;
  bool may_sum_on_gpus(const Prepared& p, Algorithm asked) const;
  void set_far(Prepared& p) const;
  void stage_stream(Prepared& p);
  engine::SliceLayout layout_for_gpu(Prepared& p) const;
  void stage_compressed(Prepared& p);
  void set_staged_output(const StagedOperation& staged, Prepared& p);
  std::shared_ptr<engine::Operation> launch(std::unique_lock<std::mutex>& lock, Prepared& prepared,
                                            std::optional<Error> refusal);
  static bool is_captured(const Prepared& prepared) noexcept;
  std::shared_ptr<engine::Operation> capture(Prepared& prepared);
  void fail_captured(const Failure& why);
  static void refuse_captured(const engine::Operation& operation, const char* call);
  void wait_for_room(std::unique_lock<std::mutex>& lock);
  engine::SliceLayout layout_of(const Prepared& prepared, std::uint64_t epoch) const;
  std::shared_ptr<engine::Operation> make_operation(Prepared& prepared);
  std::shared_ptr<TwoLevelSum> add_to_hierarchy(Prepared& prepared,
                                                const std::shared_ptr<engine::Operation>& operation,
                                                const std::optional<Error>& refusal);
  std::shared_ptr<engine::Operation> make_or_refuse(Prepared& prepared, std::optional<Error>& refusal);
  /// Makes the check of the input that NZCL_CHECK=1 asks for; without it, returns nullptr. Throws
  /// Error{invalid_argument} for a bitmap that hides a block.
  std::unique_ptr<const engine::InputCheck> check_input(const Prepared& prepared) const;
  void throw_if_failed();
  void require_own_process(const char* what) const;

  std::string name() const { return members().name(members().self); }
  /// Logs a warning, but only once, if the memory lies on another NUMA node than the one for which device,
  /// slots and threads were chosen.
  void warn_of_far_memory(std::span<const std::byte> range);
  void close_without_throwing() noexcept;
  void serve_those_left(const Failure& failure);
  void end_operations();
  void close_hierarchy(bool together) noexcept;
  void log_untold();
  bool come_to_rest();
  void shut_down_lanes();
  void stop_threads();
  void take_for_stuck();

  const OwnProcess process_;
  const Introduction introduction_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<SpareMemory> spare_memory_ = std::make_shared<SpareMemory>();
  const int scan_streams_;    // how many streams scan_blocks() reads in turn
  const WireType wire_type_;  // the option's
  const engine::EngineConfig config_;
  engine::AlgorithmMemo algorithms_{config_};
  RecentRequests recent_{config_};
  Notifier notifier_;  // before lanes_, which finish operations
  LaneSet lanes_;
  OperationTable operations_;
  std::vector<std::shared_ptr<CapturedCall>> captured_;  // with the lock of the operations
  Splitter splitter_;
  JoiningChildren children_;  // before control_, whose thread fails them
  std::atomic<std::uint64_t> operations_started_{0}, blocks_scanned_{0};
  std::atomic<bool> told_{false}, warned_of_far_memory_{false};
  std::atomic<bool> stuck_{false};  // a thread has not come back from the transport

  const bool replaceable_;
  std::promise<std::shared_ptr<CommunicatorCore>> replacement_;  // kept when the ending thread has ended
  const std::shared_future<std::shared_ptr<CommunicatorCore>> replaced_by_ =
      replacement_.get_future().share();
  /// Of a core that takes the place of another one: what its ranks have told of the operations on that.
  std::optional<Reassignment> reassignment_;
  /// The next calls, of which ranks have made some on the core that this one replaces: why they fail, or
  /// nothing for those that begin. With the lock of the operations.
  std::deque<std::optional<Failure>> calls_to_come_;
  std::map<const engine::Operation*, Run> begun_again_;  // with the lock of the operations
  Statistics former_;                                    // of the cores that this one replaces

  std::promise<void> end_;  // kept once the operations of a failed communicator are over
  const std::shared_future<void> ended_ = end_.get_future().share();
  /// After lanes_, because its thread may halt the lanes. Shared with a communicator that takes the place of
  /// this one: as long as that lives, members that do not know yet that all have joined it can ask.
  std::shared_ptr<bootstrap::ControlPlane> control_;
  std::shared_ptr<bootstrap::ControlPlane> former_control_;  // of the communicator that this one replaces
  const std::unique_ptr<Hierarchy> hierarchy_;  // nullptr if the members' hosts have no use for it
  StagingThread staging_;
  std::shared_ptr<PeerBoard> board_;  // nullptr: GPUs do not sum
  EngineThreads threads_;             // the last member, because the threads use all others
};

template <typename Call>
auto CommunicatorCore::on_present(std::shared_ptr<CommunicatorCore> core, Call call) {
  while (true) {
    core = present(std::move(core));
    try {
      return call(core);
    } catch (const Error& e) {
      const auto failure = core->failure();
      if (!failure || failure->text != e.what() || present(core) == core) throw;
    }
  }
}

}  // namespace nzcl::comm

// A communicator's inside: lanes, threads, operations in flight, and the way into and out of it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/bootstrap/bootstrap.h"
#include "runtime/bootstrap/control.h"
#include "runtime/comm/hello.h"
#include "runtime/comm/registrations.h"
#include "runtime/comm/requests.h"
#include "runtime/engine/lane.h"
#include "runtime/engine/operation.h"
#include "runtime/engine/scan_pool.h"
#include "runtime/placement/plan.h"

namespace nzcl::comm {

/// Shared by the Communicator and its Works. Thread-safe.
///
/// Threads: one per lane ("nzcl-lane-N"), scan threads as planned, the control plane's own. Lane 0's thread
/// also brings a failed communicator to rest, and only then hands the buffers back by failing the operations.
class Core {
 public:
  struct Seat {  // what this process is to be
    Role role = Role::worker;
    int index = -1;
  };
  /// Collective. `device`: nullptr opens options.transport.
  static std::shared_ptr<Core> join(Options options, std::unique_ptr<bootstrap::Bootstrap> meeting, Seat seat,
                                    std::shared_ptr<verbs::Device> device = nullptr);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  const engine::Members& members() const { return roll_.members; }
  const Options& options() const { return options_; }
  std::string describe() const;

  std::shared_ptr<Registration> register_memory(void* data, std::size_t bytes, MemoryKind kind);
  std::shared_ptr<engine::Operation> allreduce(const AllreduceRequest& request) {
    return start(prepare(request, registrations_));
  }
  std::shared_ptr<engine::Operation> allreduce(const SparseAllreduceRequest& request) {
    return start(prepare(request, registrations_));
  }

  /// One round of every lane that nobody else drives.
  bool drive();
  /// Drives until the operation has finished or the deadline came; true = finished.
  bool wait(engine::Operation& operation, std::optional<verbs::Deadline> deadline);

  Statistics statistics() const;
  std::optional<bootstrap::Failure> failure() const { return control_->failure(); }
  void abort(bootstrap::Failure failure) { control_->abort(std::move(failure)); }
  /// Collective. Waits for the operations in flight, then for the others. Once; later calls do nothing.
  void close();
  /// A dedicated aggregator's life: serves until all leave.
  void serve();

 private:
  struct Flight {
    std::shared_ptr<engine::Operation> operation;
    std::span<const std::byte> input, output;
    std::array<std::shared_ptr<Registration>, 2> registrations;
  };
  Core(Options options, Roll roll, std::shared_ptr<verbs::Device> device, placement::Placement placement);
  void open_lanes(bootstrap::Bootstrap& meeting, verbs::Deadline deadline);
  void start_threads();
  std::shared_ptr<engine::Operation> start(Prepared prepared);
  void check_conflicts(const Prepared& prepared);
  void throw_if_failed() const;
  void come_to_rest();
  void fail_operations();
  void stop_threads();

  const Options options_;
  const Roll roll_;
  std::shared_ptr<verbs::Device> device_;
  const placement::Placement placement_;
  const int scan_streams_;  // of scan_blocks()
  std::atomic<bool> told_of_far_buffer_{false};
  Registrations registrations_;
  engine::EngineConfig config_;
  std::vector<std::unique_ptr<engine::Lane>> lanes_;
  std::unique_ptr<engine::ScanPool> scan_pool_;

  std::mutex start_mutex_;  // order of operations
  std::uint64_t next_epoch_ = 0;
  std::uint64_t oldest_open_ = 0;  // all operations before it have finished
  std::array<Flight, engine::kMaxOperations> flights_;
  bool closed_ = false;
  std::atomic<std::uint64_t> operations_{0}, blocks_scanned_{0};

  std::unique_ptr<bootstrap::ControlPlane> control_;  // its thread may call halt(): goes before the lanes
  std::vector<std::jthread> threads_;                 // last: they use everything above
};

}  // namespace nzcl::comm

// The C++ API: register a gradient buffer once, start sparse allreduces, go on computing, wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/error.h"
#include "nzcl/export.h"
#include "nzcl/options.h"
#include "nzcl/types.h"

namespace nzcl {

class CommunicatorState;
class LocalGroupState;
class WorkState;

/// Memory that peers may write. Owns the registration, not the bytes: free the memory only after the handle
/// is gone. Movable; may be destroyed from any thread once no operation uses it.
class NZCL_API RegisteredBuffer {
 public:
  RegisteredBuffer() = default;
  RegisteredBuffer(RegisteredBuffer&&) noexcept = default;
  RegisteredBuffer& operator=(RegisteredBuffer&&) noexcept = default;
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  friend class CommunicatorState;
  std::span<std::byte> bytes_;
  std::shared_ptr<void> registration_;
};

/// One dense-shaped allreduce. Every rank passes the same count, type, op, block_elems and `dense`.
struct AllreduceRequest {
  const void* input = nullptr;  ///< count elements inside a registered buffer
  void* output = nullptr;       ///< the same, may equal input (in place); otherwise must not overlap it
  std::uint64_t count = 0;      ///< elements; 0 is allowed (the call is then a barrier)
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t block_elems = 256;  ///< elements per block, any from 1 up; the last block may be partial
  /// Optional: bit b set (word b/64, bit b%64) = block b may be non-zero. Blocks without a bit must be all
  /// zero and are not looked at. Empty: nzcl scans. Copied by the call.
  std::span<const std::uint64_t> bitmap = {};  // "= {}": no warning about a missing designated initialiser
  bool dense = false;                          ///< sparsity off: every block is sent, nothing is scanned
};

/// An allreduce of blocks given by value and index (the form of NCCLX's AllReduceSparseBlock). Indices count
/// blocks of the dense tensor, are unique within a rank and may come in any order; every index is below the
/// block count.
struct SparseAllreduceRequest {
  const void* values = nullptr;  ///< block i: block_elems elements at values + i * block_elems, registered
  std::span<const std::int64_t> indices = {};  ///< copied by the call
  std::uint64_t count = 0;                     ///< elements of the dense tensor
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t block_elems = 256;
  void* output = nullptr;  ///< dense result, count elements, registered; or nullptr for a packed result
  /// Packed result: the union's blocks in ascending order, each block_elems apart, registered.
  /// Work::packed_indices() gives their indices. If the union has more than packed_capacity blocks, the Work
  /// fails with ErrorCode::invalid_argument naming the number needed; the communicator goes on.
  void* packed_values = nullptr;
  std::uint64_t packed_capacity = 0;  ///< blocks
};

/// What one operation moved, on this rank.
struct OperationStatistics {
  std::uint64_t blocks = 0;        ///< blocks of the tensor
  std::uint64_t input_blocks = 0;  ///< non-zero blocks of this rank's input
  std::uint64_t union_blocks = 0;  ///< blocks in the result
  std::uint64_t bytes_sent = 0;  ///< payload and headers that this rank wrote to other processes as a worker
  std::uint64_t bytes_received = 0;  ///< the same, received as a worker: 0 where this rank sums by itself
};

/// Totals since the communicator was made, on this rank, over worker and aggregator roles.
struct Statistics {
  std::uint64_t operations = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;  ///< written to other processes, headers and bitmaps included
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_packed = 0;  ///< of the bytes sent, those that were copied into a message first
  std::uint64_t blocks_scanned = 0;
};

/// A running operation. Copies share it. Any thread may test or wait. Dropping all handles does not cancel
/// it: the buffers belong to nzcl until it has completed.
class NZCL_API Work {
 public:
  Work() = default;
  bool valid() const noexcept { return state_ != nullptr; }
  std::uint64_t epoch() const;  ///< sequence number on its communicator
  /// True once completed with success; false while running; throws the operation's Error if it failed.
  bool test();
  /// Drives progress until completion; throws the operation's Error.
  void wait();
  /// The same for at most `timeout`; false = still running.
  bool wait(std::chrono::nanoseconds timeout);
  /// After success: bit b = block b is in the result. Valid as long as a handle lives.
  std::span<const std::uint64_t> union_bitmap() const;
  /// After success of a packed request: indices of the blocks in packed_values, ascending.
  std::span<const std::int64_t> packed_indices() const;
  OperationStatistics statistics() const;  ///< after completion

 private:
  friend class CommunicatorState;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  std::shared_ptr<WorkState> state_;
};

/// A meeting point for ranks that are threads of one process (loopback transport). Thread-safe; outlives its
/// communicators.
class NZCL_API LocalGroup {
 public:
  /// `workers` ranks and `aggregators` dedicated aggregators.
  explicit LocalGroup(int workers, int aggregators = 0);
  int workers() const noexcept;
  int aggregators() const noexcept;

 private:
  friend class CommunicatorState;
  std::shared_ptr<LocalGroupState> state_;
};

/// Collective callback for engines that have their own way to talk: gathers every rank's bytes in rank order.
using AllgatherCallback = std::function<std::vector<std::string>(std::string_view mine)>;

/// A group of ranks that reduce together. Making and closing one is collective.
///
/// Threads: all calls may come from any thread, and run at the same time. Operations match between ranks by
/// the order of the calls, so calls that start operations must come in the same order on every rank.
/// Different communicators are independent of each other.
class NZCL_API Communicator {
 public:
  /// Meets the other ranks through options.bootstrap. Throws Error within bootstrap_timeout_s, naming who is
  /// missing.
  explicit Communicator(const Options& options = options_from_environment());
  /// Meets them through the caller's own allgather, which must be trusted and is called a fixed number of
  /// times.
  Communicator(const Options& options, int rank, int size, AllgatherCallback allgather);
  /// Rank `rank` of a group of threads over the loopback transport.
  Communicator(const LocalGroup& group, int rank, const Options& options = {});
  /// Closes. Waits for the other ranks to close too, at most options.close_timeout_s. Never throws.
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const noexcept;
  int size() const noexcept;
  const Options& options() const noexcept;  ///< as they took effect
  std::string describe() const;             ///< transport, aggregators, lanes, placement: for logs and people

  /// Registers memory once, without a copy. The same or an enclosed range again is nearly free (cached).
  RegisteredBuffer register_buffer(void* data, std::size_t bytes, MemoryKind kind = MemoryKind::host);

  Work allreduce(const AllreduceRequest& request);
  Work allreduce(const SparseAllreduceRequest& request);
  /// Returns when every rank has called it.
  void barrier();

  Statistics statistics() const;
  /// The error that failed the communicator, if any.
  std::optional<Error> async_error() const;
  /// Fails the communicator on every rank: pending and later operations report ErrorCode::aborted with
  /// `reason`.
  void abort(std::string_view reason);
  /// The destructor's work, with its outcome: throws Error{timeout} when ranks did not leave in time.
  void close();

 private:
  std::unique_ptr<CommunicatorState> state_;
};

/// Serves one communicator as dedicated aggregator number `index` (0 .. options.aggregators-1) until its
/// workers leave. Throws the communicator's Error if it fails. This is what the program nzcl_aggregator
/// calls.
NZCL_API void serve_aggregator(const Options& options, int index);
/// The same as a thread of a local group.
NZCL_API void serve_aggregator(const LocalGroup& group, int index, const Options& options = {});

}  // namespace nzcl

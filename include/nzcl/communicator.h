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
#include <utility>

#include "nzcl/allgather.h"
#include "nzcl/collectives.h"
#include "nzcl/duration.h"
#include "nzcl/error.h"
#include "nzcl/export.h"
#include "nzcl/indices.h"
#include "nzcl/log.h"
#include "nzcl/options.h"
#include "nzcl/packed_memory.h"
#include "nzcl/types.h"
#include "nzcl/version.h"

namespace nzcl {

class CommunicatorState;
class LocalGroupState;
struct CompressedAllreduceRequest;  // in nzcl/compress.h
class WorkState;

/// Memory that peers may write. The handle owns the registration, not the bytes. Movable; may be destroyed
/// from any thread.
///
/// An operation can only be started on memory that a living handle covers. Destroying the last handle of a
/// range deregisters it at once, or, if an operation still uses it, when that operation has completed.
/// Registering the same addresses again always finds the memory that lies there then.
///
/// Destroy the handle before the memory is freed or unmapped. nzcl cannot notice that memory was freed while
/// its handle lives. Over verbs the device then goes on to use the old pages, which the registration keeps
/// pinned: if new memory is mapped at the same address, operations on it read old bytes and their results do
/// not appear in it, without any error. Over the other transports the process writes to an address that is
/// not its own any more, or the write fails.
class NZCL_API RegisteredBuffer {
 public:
  RegisteredBuffer() = default;
  RegisteredBuffer(RegisteredBuffer&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), registration_(std::move(other.registration_)) {}
  RegisteredBuffer& operator=(RegisteredBuffer&& other) noexcept {
    bytes_ = std::exchange(other.bytes_, {});
    registration_ = std::move(other.registration_);
    return *this;
  }
  /// The registered range; empty for a handle that was made by default or moved from.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  friend class CommunicatorState;
  std::span<std::byte> bytes_;
  std::shared_ptr<void> registration_;
};

/// An allreduce whose input and output have the shape of the dense tensor. Every rank passes the same count,
/// type, op, block_elems and `dense`.
struct AllreduceRequest {
  /// count elements inside a registered buffer, of the host or of a GPU (nzcl/GPU.md)
  const void* input = nullptr;
  void* output = nullptr;   ///< the same; may equal input (in place), but must not overlap it otherwise
  std::uint64_t count = 0;  ///< elements; 0 is allowed (the call is then a barrier)
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t block_elems = 256;  ///< elements per block, any from 1 up; the last block may be partial
  /// Optional. A set bit b (word b/64, bit b%64) says that block b may be non-zero. Blocks whose bit is not
  /// set must be all zero (+0.0) and are not read. Bits behind the last block count for nothing. If it is
  /// empty, nzcl scans the input. Copied by the call.
  std::span<const std::uint64_t> bitmap = {};  // "= {}" avoids a warning in designated initialisers
  bool dense = false;                          ///< send every block, without a scan
  /// Replaces Options::timeout_s for this operation on this rank; 0: the option holds. See Timeouts below.
  std::chrono::nanoseconds timeout{0};
  /// The caller's own number for the operation, for example that of the gradient. If it differs between
  /// ranks, the communicator fails with ErrorCode::mismatch, instead of adding up what does not belong
  /// together.
  std::uint64_t tag = 0;
  /// How float32 values travel: as they are, or rounded to a narrower type, to nearest even, on their way to
  /// the sum and back. Sums are computed in float32. Every rank gets the same bits, and passes the same.
  /// Other types travel as they are, and so does what fits one small message. It needs blocks of at most
  /// kMostWireBlock elements.
  WireType wire_type = WireType::by_option;
  /// How this operation is exchanged; every rank passes the same. Doubling is refused where it cannot be:
  /// with dedicated aggregators, and for tensors of more than some KiB, which depends on the number of ranks.
  /// Merging is refused with dedicated aggregators, with a wire_type, and for blocks of more than 4 KiB; it
  /// may round sums of floats elsewhere.
  Algorithm algorithm = Algorithm::automatic;
  /// The share of blocks that a rank expects not to be zero in its own input, 0 .. 1; 0: not known. Every
  /// rank passes the same, which need not be exact. It helps to choose how the operation is exchanged, and
  /// results are right whatever it says. If it differs between ranks, the communicator fails with
  /// ErrorCode::mismatch, because they could choose differently.
  double expected_density = 0;
  /// For memory of a GPU: the stream (a CUstream, or a cudaStream_t) in whose order it is used; null is the
  /// default stream. If input and output are the host's it must be null. See nzcl/GPU.md.
  void* stream = nullptr;
};

/// The largest block of a tensor whose values travel in a narrower type.
inline constexpr std::uint64_t kMostWireBlock = 256;

/// An allreduce of blocks given by value and index: a sparse stream, the form of COO tensors, of top-k, and
/// of NCCLX's AllReduceSparseBlock. Indices count blocks of the dense tensor; with block_elems 1 they are
/// those of its elements. They may come in any order, but an ascending list is taken as it is, and any other
/// one is sorted first, with a copy of the values. A rank without any block takes part with an empty list.
struct SparseAllreduceRequest {
  const void* values = nullptr;  ///< block i: block_elems elements at values + i * block_elems, registered
  /// int32, uint32 or int64, each below the number of blocks. Copied by the call, or on a GPU and registered.
  IndexSpan indices = {};
  std::uint64_t count = 0;  ///< elements of the dense tensor
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t block_elems = 256;
  /// The dense result: count elements inside a registered buffer; or nullptr for a packed result. Every rank
  /// must choose the same of the two. If count is 0 there is no result, and nullptr will do.
  void* output = nullptr;
  /// The packed result: the blocks of the union in ascending order, one behind the other. If the union has
  /// more than packed_capacity blocks and there is no packed_grow, the Work fails with
  /// ErrorCode::invalid_argument naming the number needed, and the communicator stays usable.
  void* packed_values = nullptr;
  std::uint64_t packed_capacity = 0;  ///< room in packed_values, and in packed_indices, in blocks
  /// Where the indices of these blocks are written, in any of the three types. The type must hold the index
  /// of every block of the tensor, whatever the result has; otherwise the request is refused.
  /// Work::packed_indices() and union_bitmap() may read them there when they are called first.
  IndexBuffer packed_indices = {};
  /// Makes room for a packed result that is larger than packed_capacity: it returns memory for `blocks`
  /// blocks, to which the whole result is copied. It is called by the thread that finds out in test() or
  /// wait() that the operation has ended, or by the thread that calls a callback of on_complete(); what it
  /// throws comes out there, and the next such thread calls it again. Once it has returned memory, it is not
  /// called again.
  ///
  /// It may free, resize or overwrite packed_values and packed_indices, and return the same memory: when it
  /// is called, nzcl holds the whole result in memory of its own, and does not touch either of them any more.
  /// So growing takes that much memory for a while, and two copies; enough packed_capacity takes neither.
  std::function<PackedMemory(std::uint64_t blocks)> packed_grow = {};
  /// If an index is there several times, its blocks are combined by `op` (for avg: added up) in the order in
  /// which they come, rounded once, as COO gradients of embeddings need it. Otherwise it is refused, and so
  /// is an average of uint8 whose blocks add up to more than 255, because it would wrap before it is divided.
  bool sum_duplicates = false;
  WireType wire_type = WireType::by_option;    ///< as in AllreduceRequest
  std::chrono::nanoseconds timeout{0};         ///< as in AllreduceRequest
  std::uint64_t tag = 0;                       ///< as in AllreduceRequest
  Algorithm algorithm = Algorithm::automatic;  ///< as in AllreduceRequest
  double expected_density = 0;                 ///< as in AllreduceRequest
  /// For memory of a GPU, which values, indices and either result may be: as in AllreduceRequest. What is
  /// wrong with a list on a GPU is found out only when the stream has come to it. Then the operation fails on
  /// all ranks, and the communicator stays usable. See nzcl/GPU.md.
  void* stream = nullptr;
  /// Optional, for a packed result on a GPU: where the number of its blocks is written before a stream goes
  /// on behind Work::enqueue_wait(); 0 after a failure. Memory of the same GPU that is registered, or of the
  /// host, which need not be.
  std::uint64_t* packed_count = nullptr;
};

/// What one operation moved, as seen by this rank.
struct OperationStatistics {
  std::uint64_t blocks = 0;          ///< blocks of the tensor
  std::uint64_t input_blocks = 0;    ///< non-zero blocks of this rank's input
  std::uint64_t union_blocks = 0;    ///< blocks in the result
  std::uint64_t bytes_sent = 0;      ///< as a worker, to other processes; payload and headers
  std::uint64_t bytes_received = 0;  ///< the same for what arrived; 0 where this rank does the sums itself
  Algorithm algorithm = Algorithm::push;  ///< by which it was exchanged, equal on all ranks; never automatic
};

/// Totals of this rank since the communicator was made, both as a worker and as an aggregator.
struct Statistics {
  std::uint64_t operations = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;  ///< written to other processes, headers and bitmaps included
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_copied = 0;  ///< the part of bytes_sent that was copied into a message first
  std::uint64_t blocks_scanned = 0;
  /// Operations that were summed by GPUs which read each other's memory: their blocks are not in bytes_sent.
  std::uint64_t gpu_sums = 0;
  /// The part of what was sent and received that a NIC has read in memory of a GPU, or written there.
  std::uint64_t gpu_direct_bytes = 0;
};

/// An operation that was started. Copies stand for the same operation. Any thread may test or wait. Dropping
/// all handles does not cancel it: the buffers belong to nzcl until it has completed, and without a handle
/// nobody can find out when that is.
///
/// Every call but valid() throws Error{invalid_usage} on an empty Work, which was made by default or moved
/// from.
class NZCL_API Work {
 public:
  Work() = default;
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::uint64_t epoch() const;  ///< its sequence number on its communicator
  /// True once it has completed with success; false while it is running. Throws the operation's Error if it
  /// failed.
  [[nodiscard]] bool test();
  /// Returns when the operation has completed with success; throws the operation's Error if it failed. The
  /// calling thread takes part in the work meanwhile.
  void wait();
  /// Waits for at most `timeout`, which may have any unit and length. Returns false if the operation is still
  /// running. It takes part in the work as well, so it may be late by a step of it, which takes milliseconds.
  template <class Rep, class Period>
  [[nodiscard]] bool wait(std::chrono::duration<Rep, Period> timeout) {
    return wait_at_most(saturated_nanoseconds(timeout));
  }
  /// Calls `callback` exactly once: when the operation has completed, with nullptr for success or with its
  /// Error, which lives during the call. If it has completed already, that is on the calling thread and
  /// before this returns. Otherwise it is on a thread of the communicator ("nzcl-notify"), which runs all of
  /// its callbacks, one after the other. No thread needs to wait for the operation.
  ///
  /// A callback may take its time, which delays other callbacks only, and may make any call, also start and
  /// wait for operations, but it must not close or destroy its communicator. What it throws is logged.
  /// Callbacks of operations in flight are over when close() returns, or the destructor of the communicator.
  void on_complete(std::function<void(const Error* error)> callback);
  /// For memory of a GPU: whatever is put into `stream` from now on waits until the operation has completed,
  /// with success or without. The host does not wait, and learns of a failure by test() or wait() only.
  /// Throws Error{invalid_usage} for an operation on host memory, and Error{system} with what the driver
  /// says. If the call was captured into a graph, this belongs to the same graph (GPU.md, "CUDA graphs").
  void enqueue_wait(void* stream);
  /// A set bit b says that block b is in the result. It may be called after success, and the bitmap is valid
  /// as long as a handle lives. Of a packed result: as packed_indices().
  [[nodiscard]] std::span<const std::uint64_t> union_bitmap() const;
  /// How many blocks the union bitmap covers: those of the tensor, or after a reduce-scatter of this rank's
  /// chunk.
  [[nodiscard]] std::uint64_t result_blocks() const;
  /// The indices of the blocks in packed_values, in ascending order. It may be called after success of a
  /// packed request. If that has memory for indices, they are read there when this is called first, so that
  /// memory must still have them; from then on they are valid as long as a handle lives. Throws
  /// Error{invalid_usage} if what is there cannot be the indices any more.
  [[nodiscard]] std::span<const std::int64_t> packed_indices() const;
  /// May be called after completion, with success or without. Throws Error{invalid_usage} before.
  [[nodiscard]] OperationStatistics statistics() const;

 private:
  friend class CommunicatorState;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  bool wait_at_most(std::chrono::nanoseconds timeout);
  WorkState& state() const;
  std::shared_ptr<WorkState> state_;
};

/// A meeting point for ranks that are threads of one process (loopback transport). Thread-safe. It must
/// outlive its communicators. Its ranks may meet in it again, after a meeting that failed too. A group that
/// was moved from is empty and is refused with Error{invalid_usage}.
class NZCL_API LocalGroup {
 public:
  /// A group of `workers` ranks and `aggregators` dedicated aggregators.
  explicit LocalGroup(int workers, int aggregators = 0);
  [[nodiscard]] int workers() const;
  [[nodiscard]] int aggregators() const;

 private:
  friend class CommunicatorState;
  const LocalGroupState& state() const;
  std::shared_ptr<LocalGroupState> state_;
};

/// A colour for Communicator::split() that stands for no communicator. Every negative colour does.
inline constexpr int kNoColor = -1;

/// What Communicator::shrink() is asked for. Every rank that calls passes the same.
struct ShrinkOptions {
  /// Ranks that live and are to be left out. They do not call, and may end at once.
  std::span<const int> leave_out = {};
  /// How long to wait for ranks that live but do not call; they are left out then. 0: bootstrap_timeout_s.
  std::chrono::nanoseconds timeout{0};
  /// Goes on even if those that can be reached are fewer than those that may live on where they cannot be
  /// reached, or as many but without the lowest rank of all. Two parts of a job may then go on side by side.
  bool minority = false;
};

/// What Communicator::grow() is asked for. Every rank that calls passes the same size.
struct GrowOptions {
  /// The number of ranks that the new communicator has. The new ranks are the last ones.
  int size = 0;
  /// Where the new ranks find rank 0: "HOST:PORT", an address of rank 0's host and a TCP port that is free
  /// there; or the absolute path of a file, as NZCL_RENDEZVOUS_FILE. Empty: where the ranks of the job met at
  /// first, if that was at MASTER_ADDR or through a file. Only rank 0 needs to say it.
  std::string place = {};
  /// How long to wait for the other ranks and the new ones. 0: bootstrap_timeout_s.
  std::chrono::nanoseconds timeout{0};
};

/// A group of ranks that reduce together. Creating and closing a communicator are collective.
///
/// Threads: all calls may come from any thread, also at the same time. The ranks match operations by the
/// order of the calls, so calls that start operations must come in the same order on every rank. Different
/// communicators are independent of each other.
///
/// Floats are rounded to nearest even, with denormal numbers and without traps, whatever mode the program has
/// set on its threads (flush-to-zero, for example). A call leaves the mode of its thread as it was.
///
/// Refused requests: a call that starts an operation and throws, because its request cannot be carried out,
/// takes its place in the order all the same. The operation then fails on every rank that has started it, as
/// soon as all ranks have called. The error names the rank and what it refused, and the communicator stays
/// usable. Only if the request did not even say what tensor it was about (a type that does not exist, blocks
/// of 0 elements), and the other ranks started an operation there, the communicator fails. It also fails with
/// Algorithm::switch_, whose packets have no room for a refusal, if one rank refuses what the others start;
/// what all ranks refuse alike leaves it usable there too.
///
/// Timeouts: an operation fails, and with it the communicator on all ranks, when an engine thread that takes
/// part in it has moved nothing for the operation's timeout. The time counts from the call, or from when
/// anything moved last, be it for this operation or for another one, so a slow operation that goes on does
/// not fail. While several operations are in flight, the one whose timeout is over first decides. A rank that
/// does not answer, but is not known to be missing, gets one more second. A request's timeout holds on its
/// own rank only: the other ranks go by theirs, and a rank that has not called yet, or a dedicated
/// aggregator, by its option. So a request can always ask for less than the options, but for more only if the
/// options of all ranks allow it. The range is that of the option, 1 ms to 24 h.
///
/// A communicator that was moved from, or that split() returned for no colour, is empty: it may be destroyed
/// or assigned to, and every call but valid() throws Error{invalid_usage}.
///
/// Forks: a child made by fork() cannot use its parent's communicators. Calls that would communicate or
/// register throw Error{invalid_usage} there; destroying a Communicator, Work or RegisteredBuffer in the
/// child does nothing to the parent. Do not call async_error(), statistics() or describe() in the child:
/// another thread may have held a lock at the moment of the fork. The child may make communicators of its
/// own. The parent can go on as before, also over verbs. If the parent dies while the child lives, the other
/// ranks may learn of it only by a timeout, because the child holds the parent's connections open. From Linux
/// 5.12 on the child gets a copy of every registered page, so that a fork takes time and memory in proportion
/// to these. On older kernels the registered pages are missing in the child, which must not touch them.
/// Programs that are only started (posix_spawn, or fork followed by exec) are not affected.
class NZCL_API Communicator {
 public:
  /// Meets the other ranks through options.bootstrap. Throws Error within bootstrap_timeout_s, naming the
  /// ranks that are missing.
  explicit Communicator(const Options& options = options_from_environment());
  /// Meets the other ranks through the caller's own allgather, which must be trusted, because the key of the
  /// communicator travels through it. It is called a fixed number of times.
  Communicator(const Options& options, int rank, int size, AllgatherCallback allgather);
  /// Joins a group of threads as rank `rank`, over the loopback transport.
  Communicator(const LocalGroup& group, int rank, const Options& options = {});
  /// Closes the communicator: waits until the other ranks close it too, but at most options.close_timeout_s.
  /// Never throws. What other ranks start and this one did not fails there, and the communicator with it.
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  /// Before the assignment, the communicator that is replaced is closed as by the destructor.
  Communicator& operator=(Communicator&&) noexcept;

  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] const Options& options() const;  ///< the values in effect
  [[nodiscard]] std::string describe() const;    ///< for people: transport, aggregators, lanes, placement

  /// Registers memory once, without a copy. To register it again while a handle lives is nearly free. The
  /// memory must stay mapped as long as a handle lives (see RegisteredBuffer). Communicators have
  /// registrations of their own, but those that are split from one another share them. A range that has an
  /// unmapped page is refused; pages that are not present yet are touched only if the transport pins them.
  /// Throws Error{system} with advice when the system refuses, for example because of the limit of locked
  /// memory. For memory of a GPU (nzcl/GPU.md): Error{unavailable} without a driver, {unsupported}.
  [[nodiscard]] RegisteredBuffer register_buffer(void* data, std::size_t bytes,
                                                 MemoryKind kind = MemoryKind::host);
  /// A stream of nzcl's on the GPU that has this registered memory, for callers who can make a stream wait
  /// but have no handle of their own to give: what it has been made to wait for comes before the input of
  /// requests that name it. It is the same at each call, from any thread, and lives as long as the
  /// communicator. Throws Error{invalid_argument} for other memory, and Error{system} with what the driver
  /// says.
  [[nodiscard]] void* device_stream(const RegisteredBuffer& buffer);

  [[nodiscard]] Work allreduce(const AllreduceRequest& request);
  /// This call has a name of its own, so that either request can be written as a braced list.
  [[nodiscard]] Work allreduce_sparse(const SparseAllreduceRequest& request);
  /// Compresses this rank's gradient by its state, and sums what all ranks send. The gradient is read before
  /// the call returns; the state belongs to nzcl until the operation has completed. A call that throws leaves
  /// the state as it was, or, if the communicator fails at that very moment, keeps the gradient in the
  /// residual. If the operation itself fails, what was sent is lost, as with every failed communicator:
  /// restore the state with the engine's checkpoint.
  [[nodiscard]] Work allreduce_compressed(const CompressedAllreduceRequest& request);
  /// Broadcast, reduce, reduce-scatter and allgather: see collectives.h for what the requests say.
  [[nodiscard]] Work broadcast(const BroadcastRequest& request);
  [[nodiscard]] Work reduce(const ReduceRequest& request);
  [[nodiscard]] Work reduce_scatter(const ReduceScatterRequest& request);
  [[nodiscard]] Work allgather(const AllgatherRequest& request);
  /// Returns when every rank has called it.
  void barrier();
  /// For code that checks a caller's arguments before it makes a request of them: takes the place, in the
  /// order of operations, of a call that this code refuses. Without it the next call of this rank would meet
  /// the present one of the others. If all ranks refuse, nothing happens. If the others start an operation
  /// there, it fails on every rank, and with it the communicator, with an error that names this rank and
  /// `reason`.
  void refuse(std::string_view reason);

  /// Collective over all ranks: makes new communicators, one for each colour, as MPI_Comm_split does. Ranks
  /// that pass the same colour get the same one, where they are ordered by key, and by their rank here if
  /// keys are equal. A rank that passes a negative colour (kNoColor) takes part in the call and gets an empty
  /// communicator. Dedicated aggregators serve the new communicators too.
  ///
  /// The ranks meet over their connections here, so neither a launcher nor the caller's allgather is needed
  /// again. A new communicator has the options, the transport and the registered memory of this one, and
  /// engine threads and channels of its own, so both may be in use at the same time and either may be closed
  /// first. If one fails, by abort() or a timeout, the other goes on; a process that dies fails every
  /// communicator that it is in. Its texts name ranks by their number in it.
  ///
  /// Operations in flight are not disturbed. Calls that come while another split is under way on another
  /// thread take their place in the order of the calls, as operations do: the n-th call of one rank meets the
  /// n-th call of all others. close() waits for them.
  ///
  /// Throws Error{timeout} on all ranks that came if a rank does not come within bootstrap_timeout_s, naming
  /// it, and on that rank when it comes; Error{invalid_usage} if a rank has closed this communicator. Neither
  /// fails it, and all ranks may try again.
  [[nodiscard]] Communicator split(int color, int key = 0);

  /// Collective over the ranks that are left: makes a communicator without the ranks that have died and those
  /// of `options.leave_out`, whose ranks are numbered anew in the old order. Nobody needs to know who has
  /// died: the ranks agree, also if more of them die meanwhile, and whichever these are. Dedicated
  /// aggregators that live serve the new communicator; if none is left, the ranks sum for themselves.
  ///
  /// It may be called once an operation has failed, in which case it waits until all buffers are handed back.
  /// If the communicator has not failed, it waits for the operations in flight on this rank, and the
  /// communicator fails with ErrorCode::aborted when all have called; nothing can be started on it any more.
  /// Either way the old communicator can only be closed or destroyed afterwards. Operations in flight on a
  /// rank that is left out may fail, so it should have finished them before the others call. The new one has
  /// the options, the transport and the registered memory of the old one, so buffers stay registered, and
  /// handles of them valid. Sums and averages are those of the ranks that are left. The state of a compressor
  /// serves the new one too.
  ///
  /// A rank that lives but does not call, because it is stopped or has other things to do, is left out after
  /// options.timeout, and its own call throws Error{aborted} then, as does that of a rank in leave_out.
  ///
  /// If a part of the ranks cannot be reached but may live on, as when a network has broken in two, only the
  /// larger part goes on, or of two equal ones the one with the lowest rank; in the other part the call
  /// throws Error{peer_failed}. A process that has ended does not count, as long as its host lives.
  ///
  /// Throws Error{mismatch} on all ranks if they leave out different ranks; Error{timeout} if an operation in
  /// flight did not end in time, or nobody decides; Error{invalid_usage} if this communicator has been shrunk
  /// already, or another thread is doing it; and on all ranks what keeps one of them from joining.
  [[nodiscard]] Communicator shrink(const ShrinkOptions& options = {});

  /// Collective over all ranks: makes a communicator with these ranks, which keep their numbers, and new
  /// ones, which are processes that start as those of a job with options.size ranks do, with the numbers from
  /// size() on (RANK and WORLD_SIZE, or Options::rank and world_size) and the job's secret. They need not
  /// know that they join others that are there already, and may start before the call, once these have met.
  ///
  /// The call waits for the operations in flight on this rank. When all have joined, the old communicator
  /// fails with ErrorCode::aborted, and can only be closed or destroyed. If not all join, the call fails on
  /// all ranks, and the old communicator is what it was; if it has dedicated aggregators, it has failed then,
  /// and shrink() goes on. New ranks that have come fail with an error, too.
  ///
  /// The new communicator has the options of the job's first one, which must suit those of the new ranks.
  /// Buffers stay registered, and handles of them valid; if the new ranks need another transport, they are
  /// registered with that as well. Sums and averages are those of all ranks; every state that follows from
  /// their number is the caller's, as is what the new ranks have to know: broadcast it.
  ///
  /// Throws Error{timeout} that names who did not come; Error{peer_failed} if a rank has died: shrink()
  /// first; Error{mismatch} if ranks ask for different sizes, or the new ones have other options;
  /// Error{invalid_argument} for a size or a place that cannot be; Error{unsupported} for the ranks of a
  /// LocalGroup; Error{invalid_usage} as shrink().
  [[nodiscard]] Communicator grow(const GrowOptions& options);

  [[nodiscard]] Statistics statistics() const;
  /// The error that failed the communicator, if any.
  [[nodiscard]] std::optional<Error> async_error() const;
  /// Fails the communicator on every rank. Pending and later operations report ErrorCode::aborted with
  /// `reason`.
  void abort(std::string_view reason);
  /// Closes as the destructor does, but reports the outcome: throws Error{timeout} if other ranks did not
  /// close in time. Later calls do nothing.
  void close();

 private:
  friend class CommunicatorState;
  explicit Communicator(std::unique_ptr<CommunicatorState> state) noexcept;
  CommunicatorState& state() const;
  void close_quietly() noexcept;
  std::unique_ptr<CommunicatorState> state_;
};

/// Serves one communicator as dedicated aggregator number `index` (0 .. options.aggregators-1), and every one
/// that is split from it or from those, until the workers of all have left. Throws the Error by which one of
/// them has failed, once all are over. This is what the program nzcl_aggregator calls. A communicator that
/// meets on its own needs aggregators of its own.
NZCL_API void serve_aggregator(const Options& options, int index);
/// Serves in the same way as a thread of a local group.
NZCL_API void serve_aggregator(const LocalGroup& group, int index, const Options& options = {});

}  // namespace nzcl

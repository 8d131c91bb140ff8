// One collective on one rank: its views of input and output, its bitmaps, and when it is over.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nzcl/indices.h"
#include "nzcl/packed_memory.h"
#include "nzcl/types.h"
#include "runtime/base/failure.h"
#include "runtime/base/small_array.h"
#include "runtime/base/spare_memory.h"
#include "runtime/operation/completion_bell.h"
#include "runtime/operation/input_check.h"
#include "runtime/operation/packed_positions.h"
#include "runtime/operation/result_coder.h"
#include "runtime/operation/run_walk.h"
#include "runtime/operation/staged_memory.h"
#include "runtime/operation/tile_input.h"
#include "runtime/operation/tile_output.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/plan/tuning.h"
#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Memory of a GPU, which the transport reaches and the host does not.
struct FarMemory {
  std::byte* base = nullptr;
  const verbs::MemoryRegion* region = nullptr;  // nullptr: there is none
};

/// Where the contribution's bytes lie: in a whole tensor, or as blocks of values one behind the other.
struct InputView {
  const std::byte* base = nullptr;
  const verbs::MemoryRegion* region = nullptr;
  bool sparse = false;  // `base` holds only the values of the blocks that this rank contributes
  /// For sparse input: the i-th contributed block, in ascending order of the tensor's blocks, is the
  /// order[i]-th block of values. If it is empty, the values are in ascending order already.
  std::vector<std::uint64_t> order = {};
  /// `base` holds the blocks of each slice one behind the other, from where the slice begins in the tensor.
  bool packed_slices = false;
  /// If there is any, slices of other members' lie there, as they would at `base`, and are sent from there.
  FarMemory far = {};
};

/// Where the result goes: into a whole tensor, or packed, which means only the union's blocks, one behind the
/// other.
struct OutputView {
  std::byte* base = nullptr;
  const verbs::MemoryRegion* region = nullptr;
  bool packed = false;
  std::uint64_t capacity = 0;  // of a packed output, in blocks
  IndexBuffer indices = {};    // of a packed output
  /// Makes room for a packed result that is larger; see SparseAllreduceRequest::packed_grow.
  std::function<PackedMemory(std::uint64_t blocks)> grow = {};
  SpareMemory* spare = nullptr;  // what is noted about a packed result comes from there; may be null
  /// Blocks outside of the union stay as they are there: they are zero already, or nobody reads them.
  bool absent_stay = false;
  /// If there is any, others write results there that are direct.
  FarMemory far = {};

  /// What others have to know to write at `base`, or at `far.base`.
  verbs::RemoteMemory remote(verbs::Level level) const;
};

/// One collective on one rank, shared by the caller and all lanes. The bitmaps of each slice begin at a word
/// of their own, and only one lane at a time touches the words of a slice. Everything else that changes is
/// atomic or under a lock.
class Operation {
 public:
  Operation(const SliceLayout& layout, const wire::OperationRecord& record, InputView input,
            OutputView output, int lanes);

  // --- Set by the call that starts the operation, before the lanes see it.
  std::uint64_t epoch = 0;
  std::uint32_t table_index = 0;
  std::int64_t begun_ns = 0;           // trace::now() when it was called
  int scan_streams = 1;                // how many streams scan_blocks() reads in turn
  std::chrono::nanoseconds timeout{};  // the operation fails after this long without progress
  const SliceLayout layout;
  const wire::OperationRecord record;  // of a slice, see record_of()
  const InputView input;
  const OutputView output;
  /// The registered memory that input and output lie in, kept until release_regions().
  std::array<std::shared_ptr<const verbs::MemoryRegion>, 2> regions;
  /// The caller's values in another order, if input.base leads there.
  std::vector<std::byte> own_values;
  /// Set if this rank has refused its caller's request. The operation then has neither input nor output. It
  /// only takes the request's place in the order, and tells the other ranks.
  /// A staged operation may have it later, see refuse_staged(): then it counts for slices that are there.
  std::unique_ptr<const wire::Refusal> refusal;
  CompletionBell* bell = nullptr;  // rung when it has finished; it outlives the lanes
  /// Sets the bells of this member's lanes, of which there are so many. They are rung when something is ready
  /// that a lane has asked for in vain.
  void ring_lanes(LaneBells* bells, int lanes);
  /// Set if input or output is staged, with await_staging(), before the lanes see the operation.
  std::shared_ptr<StagedMemory> staged;
  /// It stands for the operations that launches of a graph begin, and is never begun itself.
  bool captured = false;
  /// Set only with NZCL_CHECK=1.
  std::unique_ptr<const InputCheck> input_check;
  std::vector<std::uint64_t> chunk_begins;  // what `layout` refers to, if chunks differ in size
  /// Says which of how many ranks this is. Only collectives other than allreduce need it, and before anything
  /// below.
  void set_rank(int rank, int workers);
  /// Sets which blocks this rank contributes, so that nothing is scanned: those that are set in `bits`, which
  /// covers all blocks of its input, all of them, or none.
  void set_input_bitmap(std::span<const std::uint64_t> bits);
  void set_all_input();
  void set_no_input();
  /// For tiled operations: sets which elements this rank contributes, and their values.
  void set_input_stream(ElementStream stream);
  /// For tiled operations: sets what makes this rank's contribution while the operation runs.
  void set_input_source(std::shared_ptr<TileSource> source);
  /// For an operation whose tensor other operations exchange, as in a hierarchy: it does not finish before
  /// rest_done() has been called. It has no input of its own then.
  void set_rest();
  /// For tiled operations whose results are coded: sets what codes those that this rank owns.
  void set_result_coder(std::shared_ptr<ResultCoder> coder) { result_coder_ = std::move(coder); }

  // --- Of a staged operation. Its staging does not touch it any more after staging_done().
  /// Makes the lanes wait for every slice of the input that is staged. What else sets the input comes before.
  void await_staging();
  bool input_is_staged() const { return input_is_staged_; }
  /// Says that a slice of the input is there, and which blocks are in it; without `bits`, that is known
  /// already, or a lane finds out by a scan (`scanned` is false).
  void slice_staged(std::uint64_t slice, std::span<const std::uint64_t> bits, bool scanned);
  /// Before any slice is said to be there: refuses the caller's request after all, because of what it has
  /// turned out to be. (Otherwise set_input_bitmap() or set_input_stream() may be called then.)
  void refuse_staged(ErrorCode code, std::string_view why);
  /// For a lane that reads any of it at any time: ensure_scanned() of all slices.
  bool ensure_all_staged();
  /// Whether the lanes are done with the operation: its result is staged, or it has failed.
  bool exchanged() const { return exchanged_.load(std::memory_order_acquire); }
  /// Finishes the operation, with `failure` if there is one. Precondition: exchanged().
  void staging_done(const std::optional<Failure>& failure);

  // --- This rank's part in a slice.
  /// Whether it may contribute blocks, and whether it receives the result.
  bool contributes(std::uint64_t slice) const {
    return wire::contributors(record.collective, record.root(), layout.chunk_of(slice)).has(rank_);
  }
  bool receives(std::uint64_t slice) const {
    return !layout.is_meeting(slice) &&
           wire::receivers(record.collective, record.root(), layout.chunk_of(slice), workers_).has(rank_);
  }
  /// Where the slice's chunk begins in input and output, in bytes.
  std::uint64_t input_offset(std::uint64_t slice) const {
    return record.collective == wire::Collective::reduce_scatter ? chunk_offset(slice) : 0;
  }
  std::uint64_t output_offset(std::uint64_t slice) const {
    return record.collective == wire::Collective::allgather ? chunk_offset(slice) : 0;
  }
  /// Returns what this rank says about the operation where it is about this slice, to a member at that level:
  /// what is needed to write to this rank's output depends on where the writer is.
  wire::OperationRecord record_of(std::uint64_t slice, verbs::Level level = verbs::Level::between) const;

  // --- Input side.
  /// Whether this slice's result overwrites this rank's contribution to it.
  bool in_place(std::uint64_t slice) const {
    return contributes(slice) && input.base + input_offset(slice) == output.base + output_offset(slice);
  }
  /// Whether the slice's result belongs where no cache holds anything, and where none would keep it.
  bool output_is_cold(std::uint64_t slice) const {
    return !output.packed && layout.tensor_bytes() >= kLeastStreamedOutput && !in_place(slice);
  }
  DataType type() const { return static_cast<DataType>(record.type); }
  ReduceOp reduce_op() const { return static_cast<ReduceOp>(record.op); }
  /// Scans the slice, unless that has been done already. Returns false if another thread is scanning it right
  /// now, or if a source has not made it yet; the slice's lane, which asks, is rung when that is done.
  bool ensure_scanned(std::uint64_t slice);
  /// Does the part of ensure_scanned() that a thread can do ahead of the lanes.
  void scan_ahead(std::uint64_t slice);
  /// Called by whoever has had a source make something: rings the lanes that have asked for what is there
  /// now.
  void ring_for_made() noexcept;
  /// Input and output of a tiled operation. The functions about a slice's blocks, and about the walk over
  /// them, are for all other operations.
  const TileInput& tile_input() const { return *tile_input_; }
  TileOutput& tile_output() { return *tile_output_; }
  ResultCoder* result_coder() const { return result_coder_.get(); }
  /// Returns this rank's contribution to a slice that has been scanned.
  SliceView input_slice(std::uint64_t slice) { return {layout, slice, bits_of(Side::input, slice)}; }
  /// Walks over the contribution's bytes, as offsets from input.base.
  RunWalk input_walk(std::uint64_t slice);

  // --- Result side.
  /// Number of blocks that this rank's input covers.
  std::uint64_t contributed_blocks() const;
  /// Number of blocks that the result on this rank covers, whether it receives them or not.
  std::uint64_t result_blocks() const;
  /// Returns the memory for the slice's union bitmap. union_known() says that it has been written there.
  std::span<std::uint64_t> union_bits(std::uint64_t slice) { return bits_of(Side::result, slice); }
  SliceView union_slice(std::uint64_t slice) { return {layout, slice, union_bits(slice)}; }
  void union_known(std::uint64_t slice) { union_known(slice, union_slice(slice).count()); }
  /// The same for a caller that knows how many blocks the union has.
  void union_known(std::uint64_t slice, std::uint64_t blocks);
  /// Walks over the result's bytes, as offsets from output.base. Returns nothing while the result is packed
  /// and the union of an earlier slice is unknown, because the position of this slice is unknown then. The
  /// lane is rung when it is known.
  std::optional<RunWalk> output_walk(std::uint64_t slice, int lane);
  /// Returns how many of `bytes` bytes of the output, from `offset` on, may be written. A dense output has
  /// room for all of them, a packed one only for those within its capacity.
  std::uint64_t writable(std::uint64_t offset, std::uint64_t bytes) const;
  /// Keeps what lies at this offset of a packed output, beyond its capacity, for an output that may grow.
  bool keeps_overflow() const { return overflow_ != nullptr; }
  void keep_overflow(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Notes that a rank has refused its request. The slice has no result, and the operation will fail when all
  /// of its slices are over. Only the first refusal counts.
  void slice_refused(std::uint64_t slice, const wire::Refusal& why);
  /// Sets the blocks of the slice that no rank contributes to zero, if the output is dense and not also this
  /// rank's contribution. Precondition: the slice's union is known.
  void zero_absent(std::uint64_t slice);
  /// Says that nothing of a slice moves any more. The operation may be deleted after its last one. `written`:
  /// another member has written the result where this one's output is (OutputView::remote()).
  void slice_done(std::uint64_t slice, bool written = false) {
    if (staged) stage_result(slice, written && output.far.region != nullptr);
    part_done();
  }
  /// Counts a write that reads from input or output. The operation does not finish before local_write_done()
  /// has been called for it.
  void local_write_started() { add(parts_left_, 1); }
  void local_write_done() { part_done(); }

  /// What other operations have come to that have exchanged this one's tensor.
  struct Rest {
    std::vector<std::uint64_t> bits = {};           // of a dense result: its union
    std::uint64_t blocks = 0;                       // of the union
    std::shared_ptr<Operation> packed = nullptr;    // whose packed result is this one's
    std::optional<Failure> failure = std::nullopt;  // why they have failed
  };
  /// Called once for an operation with a rest, by any thread, when nothing of the others uses input or output
  /// any more.
  void rest_done(Rest rest);

  // --- Completion.
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  /// Finishes the operation with a failure, unless it has finished already. Precondition: no lane touches it
  /// any more. Its staging finishes one that is staged: soon, and with success if its result was there.
  void fail(const Failure& failure);
  std::optional<Failure> failure() const;
  /// Releases the regions of a finished operation, because nothing reads or writes through them any more. Any
  /// thread may call it, any number of times. It is slow if it deregisters memory. Precondition: finished().
  void release_regions();
  /// If there is an `input_check`, fails the operation if its input has changed since the call. It must be
  /// called before the caller learns that the operation has finished, because from then on the caller may
  /// change or free the input. Precondition: finished().
  void verify_input();
  /// Does what is left of a packed result: makes the output larger if it has to be, and writes the indices
  /// that have not been written. It must be called before the caller learns that the operation has succeeded,
  /// on the caller's thread. Throws what the caller's own function throws, and Error{invalid_argument} if
  /// that gives no memory. Precondition: finished(), or for its staging, exchanged().
  void complete_packed();
  /// Return the union bitmap of the whole result, and the indices of a packed one. Both are made on first
  /// use. Throw Error{invalid_usage} if the indices were written to the caller's memory and are not there any
  /// more, and Error{transport} if a peer has kept them from being right. Precondition: the operation has
  /// succeeded.
  std::span<const std::uint64_t> union_bitmap();
  std::span<const std::int64_t> packed_indices();

  // --- Statistics of this rank as a worker. Lanes count with add().
  std::atomic<std::uint64_t> input_blocks{0}, union_blocks{0}, bytes_sent{0}, bytes_received{0};
  /// Adds to a counter of this operation. The only slice of a small operation is touched by one lane, and
  /// then a load and a store are enough, which are several times cheaper than an atomic addition.
  void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) const {
    if (layout.slices() > 1 || has_rest_) {
      counter.fetch_add(n, std::memory_order_relaxed);
    } else {
      counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
  }

 private:
  /// What has become of the scan of a slice. Its lane has asked for one that is kAwaited while another thread
  /// was scanning it. Of a source, slices are either kUnscanned or kAwaited.
  enum Scan : std::uint8_t { kUnscanned, kScanning, kAwaited, kScanned };
  enum class Side : std::uint8_t { input, result };
  std::optional<std::uint64_t> changed_input_block();
  std::span<std::uint64_t> bits_of(Side side, std::uint64_t slice);
  std::uint64_t chunk_offset(std::uint64_t slice) const {
    return layout.chunk_begin(layout.chunk_of(slice)) * element_bytes(type());
  }
  void check_written_indices() const;
  std::uint64_t own_chunk_blocks() const;
  /// The number of the slice's first block among those of this rank's input or result.
  std::uint64_t first_block(Side side, std::uint64_t slice) const;
  void part_done();
  void stage_result(std::uint64_t slice, bool far) noexcept;
  bool try_scan(std::uint64_t slice);
  void scan_slice(std::uint64_t slice);
  bool ensure_made(std::uint64_t slice);
  void ring_lane_of(std::uint64_t slice) noexcept;
  void wait_for_scans() noexcept;
  void grow_packed(std::uint64_t blocks);
  void finish();
  void set_finished();
  void set_failure(Failure failure);

  int rank_ = 0, workers_ = 1;
  bool has_rest_ = false;
  bool input_is_staged_ = false;
  std::unique_ptr<TileInput> tile_input_;  // of a tiled operation, as the next one
  std::unique_ptr<TileOutput> tile_output_;
  std::shared_ptr<ResultCoder> result_coder_;
  // Small operations are frequent, and what they need lies in the object itself.
  SmallArray<std::uint64_t, 4> words_;             // bitmaps of all slices of the input, then of the union
  SmallArray<std::atomic<std::uint8_t>, 8> scan_;  // by slice: its Scan
  /// By slice, for sparse input: contributed blocks of earlier slices.
  std::vector<std::uint64_t> blocks_before_;
  PackedPositions positions_;  // of the slices of a packed result
  LaneBells* bells_ = nullptr;
  std::uint32_t lanes_ = 1;                // for which there are bells
  std::atomic<std::uint64_t> parts_left_;  // slices and local writes that are not done
  std::atomic<bool> finished_{false}, released_{false};
  std::atomic<bool> exchanged_{false};  // of a staged operation
  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  Rest rest_;
  std::atomic<bool> failed_{false};  // whether there is a failure_, for those that have no lock
  std::once_flag bitmap_once_, indices_once_, verified_once_, packed_once_;
  std::unique_ptr<PackedOverflow> overflow_;  // of an output that may grow
  std::vector<std::uint64_t> bitmap_;
  std::vector<std::int64_t> indices_;
};

}  // namespace nzcl::engine

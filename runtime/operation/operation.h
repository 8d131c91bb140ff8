// One collective on one rank: its views of input and output, its bitmaps, and when it is over.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "nzcl/types.h"
#include "runtime/base/failure.h"
#include "runtime/operation/input_check.h"
#include "runtime/operation/run_walk.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Where the contribution's bytes lie: in a tensor, or in blocks of values one behind the other.
struct InputView {
  const std::byte* base = nullptr;
  const verbs::MemoryRegion* region = nullptr;
  bool sparse = false;  // `base` holds only the values of the blocks that this rank contributes
  /// Sparse: the i-th contributed block, in ascending order of the tensor's blocks, is the order[i]-th of the
  /// values. Empty: the values are in ascending order already.
  std::vector<std::uint64_t> order = {};
};

/// Where the result goes: into a tensor, or packed: only the union's blocks, one behind the other.
struct OutputView {
  std::byte* base = nullptr;
  const verbs::MemoryRegion* region = nullptr;
  bool packed = false;
  std::uint64_t capacity = 0;  // packed: blocks that there is room for
};

/// Shared by the caller and all lanes. The bitmaps of each slice begin at a word of their own, and only one
/// lane at a time touches the words of a slice. Everything else that changes is atomic.
class Operation {
 public:
  Operation(const SliceLayout& layout, const wire::OperationRecord& record, InputView input,
            OutputView output, int lanes);

  // --- Set once by the call, before the lanes see the operation.
  std::uint64_t epoch = 0;
  std::uint32_t table_index = 0;
  std::int64_t begun_ns = 0;           // trace::now()
  int scan_streams = 1;                // of scan_blocks()
  std::chrono::nanoseconds timeout{};  // without progress for this long, it fails
  verbs::Clock::time_point started{};  // from when on that counts
  const SliceLayout layout;
  const wire::OperationRecord record;
  const InputView input;
  const OutputView output;
  /// What input and output lie in, if anything: kept until release_regions().
  std::array<std::shared_ptr<const verbs::MemoryRegion>, 2> regions;
  /// Set if this rank has refused its caller's request. The operation only takes the request's place in the
  /// order, and tells the other ranks; it has neither input nor output.
  std::optional<wire::Refusal> refusal;
  /// NZCL_CHECK=1; otherwise nothing.
  std::unique_ptr<const InputCheck> input_check;
  /// The input's bitmap is known without a scan. `bits` covers all blocks of the tensor.
  void set_input_bitmap(std::span<const std::uint64_t> bits);
  void set_all_input();
  void set_no_input();

  // --- Input side.
  bool in_place() const { return input.base == output.base; }
  DataType type() const { return static_cast<DataType>(record.type); }
  ReduceOp reduce_op() const { return static_cast<ReduceOp>(record.op); }
  /// Scans the slice, unless that has been done. False: another thread is scanning it right now.
  bool ensure_scanned(std::uint64_t slice);
  /// This rank's contribution to a scanned slice.
  SliceView input_slice(std::uint64_t slice) { return {layout, slice, bits_of(Side::input, slice)}; }
  /// The contribution's bytes, as offsets from input.base.
  RunWalk input_walk(std::uint64_t slice);

  // --- Result side.
  /// Where the slice's union bitmap belongs; union_known() says that it is there.
  std::span<std::uint64_t> union_bits(std::uint64_t slice) { return bits_of(Side::result, slice); }
  SliceView union_slice(std::uint64_t slice) { return {layout, slice, union_bits(slice)}; }
  void union_known(std::uint64_t slice);
  /// The result's bytes, as offsets from output.base; nothing while the result is packed and the union of an
  /// earlier slice is unknown, so that nobody can say where this one begins.
  std::optional<RunWalk> output_walk(std::uint64_t slice, int lane);
  /// Bytes of the output from `offset` on that may be written: all of a tensor, of packed blocks those within
  /// the capacity.
  std::uint64_t writable(std::uint64_t offset, std::uint64_t bytes) const;
  /// A rank has refused its request, so this operation will fail when all of its slices are over. The slice
  /// has no result. Only the first refusal counts.
  void slice_refused(std::uint64_t slice, const wire::Refusal& why);
  /// Out of place: sets what is in no rank's contribution to zero. Once the slice's union is known.
  void zero_absent(std::uint64_t slice);
  void slice_done() { part_done(); }
  /// A write that reads from input or output is on its way; while one is, the operation is not finished.
  void local_write_started() { parts_left_.fetch_add(1, std::memory_order_relaxed); }
  void local_write_done() { part_done(); }

  // --- Completion.
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  /// Finishes the operation with a failure. No lane may touch it any more. Only the first failure counts.
  void fail(const Failure& failure);
  std::optional<Failure> failure() const;
  /// Gives up the regions of a finished operation, because nothing reads or writes through them any more. Any
  /// thread may call it, also more than once. It is slow if it deregisters memory. Precondition: finished().
  void release_regions();
  /// With an `input_check`, fails the operation if its input has changed since the call. On behalf of a
  /// caller, before he learns that it has finished: from then on the input may change, or be gone.
  /// Precondition: finished().
  void verify_input();
  /// The union bitmap of the whole tensor and the packed indices, after success. They are made on first use.
  std::span<const std::uint64_t> union_bitmap();
  std::span<const std::int64_t> packed_indices();

  // --- Statistics of this rank as a worker.
  std::atomic<std::uint64_t> input_blocks{0}, union_blocks{0}, bytes_sent{0}, bytes_received{0};

 private:
  enum Scan : std::uint8_t { kUnscanned, kScanning, kScanned };
  struct PackedCursor {
    std::uint64_t slice = 0, blocks = 0;
  };
  enum class Side : std::uint8_t { input, result };
  std::span<std::uint64_t> bits_of(Side side, std::uint64_t slice);
  std::optional<std::uint64_t> packed_blocks_before(std::uint64_t slice, int lane);
  void part_done();
  void finish();

  std::vector<std::uint64_t> words_;  // the input's bitmap, then the union's
  std::unique_ptr<std::atomic<std::uint8_t>[]> scan_;
  std::vector<std::uint64_t> blocks_before_;  // sparse input: contributed blocks of earlier slices
  std::unique_ptr<std::atomic<std::int64_t>[]>
      union_counts_;                   // packed result: blocks per slice, -1 = unknown
  std::vector<PackedCursor> cursors_;  // per lane
  std::atomic<std::uint64_t> parts_left_;
  std::atomic<bool> finished_{false}, released_{false};
  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::once_flag bitmap_once_, indices_once_, verified_once_;
  std::vector<std::uint64_t> bitmap_;
  std::vector<std::int64_t> indices_;
};

}  // namespace nzcl::engine

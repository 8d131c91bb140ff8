// One collective on one rank: its views of input and output, its bitmaps, and when it is over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/bootstrap/control.h"
#include "runtime/engine/slice_layout.h"
#include "runtime/wire/message.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Where the blocks come from: the tensor itself, or values in the order of `place`.
struct InputView {
  const std::byte* base = nullptr;
  const verbs::MemoryRegion* region = nullptr;
  bool by_ordinal = false;           // sparse input: the i-th set block lies at base + place[i] * stride
  std::vector<std::uint64_t> place;  // by ordinal of the set block, ascending block index
  std::uint64_t stride = 0;          // bytes
};

/// Where the result goes: the tensor, or packed blocks.
struct OutputView {
  std::byte* base = nullptr;  // dense output or packed values
  const verbs::MemoryRegion* region = nullptr;
  bool packed = false;
  std::uint64_t capacity = 0;  // packed: blocks
  std::uint64_t stride = 0;    // packed: bytes between blocks
};

/// Shared by the caller and all lanes. Bitmaps are kept slice by slice, each slice's from a word of its own;
/// a slice's words are touched by one lane at a time. Everything else that changes is atomic.
class Operation {
 public:
  Operation(const SliceLayout& layout, const wire::OperationRecord& record, InputView input,
            OutputView output, int lanes);

  // --- Set once by the call, before the lanes see the operation.
  std::uint64_t epoch = 0;
  std::uint32_t table_index = 0;
  std::int64_t begun_ns = 0;  // trace::now()
  int scan_streams = 1;       // of scan_blocks()
  const SliceLayout layout;
  const wire::OperationRecord record;
  const InputView input;
  const OutputView output;
  /// Input bitmaps known without a scan. `bits` covers all blocks.
  void set_input_bitmap(std::span<const std::uint64_t> bits);
  void set_all_input();

  // --- Input side.
  bool in_place() const { return input.base == output.base; }
  DataType type() const { return static_cast<DataType>(record.type); }
  ReduceOp reduce_op() const { return static_cast<ReduceOp>(record.op); }
  /// Scans the slice unless that has been done; false: another thread is at it right now.
  bool ensure_scanned(std::uint64_t slice);
  std::span<const std::uint64_t> input_bits(std::uint64_t slice) { return bits_of(Side::input, slice); }
  /// Ordinal of the slice's first set block among all set blocks. Sparse input only.
  std::uint64_t first_ordinal(std::uint64_t slice) const { return first_ordinal_[slice]; }
  /// Bytes of the slice's set blocks.
  std::uint64_t stream_bytes(std::uint64_t slice, std::span<const std::uint64_t> bits) const;

  // --- Result side.
  std::span<std::uint64_t> union_bits(std::uint64_t slice) { return bits_of(Side::result, slice); }
  void union_known(std::uint64_t slice, std::uint64_t blocks);
  /// Packed result: index of the slice's first block in the packed values; nothing while the union of an
  /// earlier slice is unknown.
  std::optional<std::uint64_t> packed_place(std::uint64_t slice, int lane);
  void slice_done() { part_done(); }
  void local_write_started() { parts_left_.fetch_add(1, std::memory_order_relaxed); }
  void local_write_done() { part_done(); }

  // --- Completion.
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  /// Instead of the last part, once no lane touches the operation any more; the first failure counts.
  void fail(const bootstrap::Failure& failure);
  std::optional<bootstrap::Failure> failure() const;
  /// Contiguous union bitmap and packed indices, after success; made on first use.
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
  void part_done();
  void finish();

  std::vector<std::uint64_t> words_;  // the input's bitmap, then the union's
  std::unique_ptr<std::atomic<std::uint8_t>[]> scan_;
  std::vector<std::uint64_t> first_ordinal_;
  std::unique_ptr<std::atomic<std::int64_t>[]>
      union_counts_;                   // packed result: blocks per slice, -1 = unknown
  std::vector<PackedCursor> cursors_;  // per lane
  std::atomic<std::uint64_t> parts_left_;
  std::atomic<bool> finished_{false};
  mutable std::mutex failure_mutex_;
  std::optional<bootstrap::Failure> failure_;
  std::once_flag bitmap_once_, indices_once_;
  std::vector<std::uint64_t> bitmap_;
  std::vector<std::int64_t> indices_;
};

}  // namespace nzcl::engine

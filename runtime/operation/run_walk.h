// Walks the bytes of a slice's blocks, run by run, wherever they lie in a buffer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/operation/slice_view.h"

namespace nzcl::engine {

/// How the blocks of a slice lie in a buffer.
struct BlockOrder {
  enum class Kind : std::uint8_t {
    tensor,   // each block at its own offset in the tensor or chunk
    stream,   // blocks one behind the other, beginning `first` blocks behind `base`
    indexed,  // the slice's i-th block is the buffer's block number order[first + i]
  };
  Kind kind = Kind::tensor;
  std::uint64_t first = 0;
  const std::uint64_t* order = nullptr;
  std::uint64_t base = 0;  // of tensor and stream: where the slice's chunk begins in the buffer, in bytes
};

/// A position in a slice's stream. A *run* is as much of the stream as lies together in the buffer: blocks
/// that follow each other in the tensor, a whole packed stream, or a single block if the caller's values are
/// in an order of their own. Where `edges` is given, a run in a tensor also ends behind each block whose bit
/// is set in it. Copyable; slice, order and edges must outlive it.
class RunWalk {
 public:
  RunWalk() = default;
  RunWalk(const SliceView& slice, const BlockOrder& order, std::span<const std::uint64_t> edges = {});

  bool at_end() const { return run_bytes_ == 0; }
  /// The run's first block, counted within the slice.
  std::uint64_t block() const { return block_; }
  /// The offset of the position in the buffer, and the number of bytes from there to the end of the run.
  std::uint64_t offset() const { return offset_; }
  std::uint64_t run_bytes() const { return run_bytes_; }
  /// Returns true if there is a next run and it begins right where this one ends.
  bool continues() const;

  struct Ahead {
    std::uint64_t offset = 0, bytes = 0;
  };
  /// Returns the first block of the next run, for a caller that wants to prefetch it, or nothing if there is
  /// no next run.
  std::optional<Ahead> ahead() const;

  /// Moves the position on by `bytes`, at most run_bytes(). Returns true if that was the end of the run.
  bool advance(std::uint64_t bytes);

 private:
  void enter(std::uint64_t block);
  std::uint64_t end_of_run(std::uint64_t block) const;
  std::uint64_t offset_of(std::uint64_t block, std::uint64_t ordinal) const;

  SliceView slice_;
  BlockOrder order_;
  std::span<const std::uint64_t> edges_;
  // The run has the blocks from block_ to before end_, and the next run begins at next_.
  std::uint64_t block_ = 0, end_ = 0, next_ = 0;
  std::uint64_t ordinal_ = 0;  // how many present blocks of the slice lie before `block_`
  std::uint64_t offset_ = 0, run_bytes_ = 0;
};

}  // namespace nzcl::engine

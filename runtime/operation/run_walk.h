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
    tensor,   // each at its own offset in the tensor
    stream,   // one behind the other, from `first` blocks into the buffer on
    indexed,  // the i-th of the slice is the one with number order[first + i] in the buffer
  };
  Kind kind = Kind::tensor;
  std::uint64_t first = 0;
  const std::uint64_t* order = nullptr;
};

/// A position in a slice's stream. A *run* is as much of the stream as lies together in the buffer: blocks
/// that follow each other in the tensor, a whole packed stream, or a single block where the caller's order
/// has no neighbours. Where `edges` is given, a run ends also behind each block whose bit is set in it.
/// Copyable; the views that it was made from outlive it.
class RunWalk {
 public:
  RunWalk() = default;
  RunWalk(const SliceView& slice, const BlockOrder& order, std::span<const std::uint64_t> edges = {});

  bool at_end() const { return run_bytes_ == 0; }
  /// The first block of the run, within the slice.
  std::uint64_t block() const { return block_; }
  /// Where the position lies in the buffer, and the bytes from there to the end of the run.
  std::uint64_t offset() const { return offset_; }
  std::uint64_t run_bytes() const { return run_bytes_; }
  /// Whether there is a next run, and it begins right where this one ends.
  bool continues() const;

  struct Ahead {
    std::uint64_t offset = 0, bytes = 0;
  };
  /// The first block of the next run, for whoever wants to prefetch it. std::nullopt: there is no next run.
  std::optional<Ahead> ahead() const;

  /// Goes on by `bytes` <= run_bytes(). True: that was the end of the run.
  bool advance(std::uint64_t bytes);

 private:
  void enter(std::uint64_t block);
  std::uint64_t end_of_run(std::uint64_t block) const;
  std::uint64_t offset_of(std::uint64_t block, std::uint64_t ordinal) const;

  SliceView slice_;
  BlockOrder order_;
  std::span<const std::uint64_t> edges_;
  std::uint64_t block_ = 0, end_ = 0, next_ = 0;  // the run's blocks, and the next one that is there
  std::uint64_t ordinal_ = 0;                     // of `block_` among the slice's blocks that are there
  std::uint64_t offset_ = 0, run_bytes_ = 0;
};

}  // namespace nzcl::engine

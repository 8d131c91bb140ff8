// The collectives beside the allreduce: broadcast, reduce, reduce-scatter and allgather.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "nzcl/types.h"

namespace nzcl {

// What the requests below have in common, and share with AllreduceRequest:
//
// - Memory lies inside registered buffers, is aligned to its elements, and belongs to nzcl until the Work has
//   completed. An input is only read. Either may be on a GPU (nzcl/GPU.md); `stream` is the stream (a
//   CUstream, or a cudaStream_t) in whose order it is used, and null its default stream. Without such memory
//   it is null.
// - All ranks pass the same count, counts, type, op, root, block_elems and tag. If they differ, nzcl notices,
//   and the communicator fails with ErrorCode::mismatch and a text that shows both requests.
// - `bitmap`, if given, says which blocks of this rank's input may be non-zero: bit b%64 of word b/64. Blocks
//   whose bit is not set must be all +0.0, and are not read. Bits behind the last block count for nothing. It
//   is copied by the call. `dense` sends all blocks. Each rank decides for itself. With neither, nzcl scans
//   the input.
// - Work::union_bitmap() says which blocks of this rank's output are in the result; all others were set to
//   zero. On a rank without a result no bit is set.
// - Where one rank's data is copied, it arrives bit by bit as it was, -0.0 and NaNs included.
// - A timeout of 0 stands for the option's. Refused requests, timeouts and threads: see Communicator.

/// The root's data goes to all ranks.
struct BroadcastRequest {
  void* data = nullptr;     ///< count elements: the input on the root, the output on all other ranks
  std::uint64_t count = 0;  ///< elements
  DataType type = DataType::float32;
  int root = 0;
  std::uint64_t block_elems = 256;
  std::span<const std::uint64_t> bitmap = {};  ///< only the root's counts
  bool dense = false;                          ///< only the root's counts
  std::chrono::nanoseconds timeout{0};
  std::uint64_t tag = 0;
  void* stream = nullptr;
};

/// The sum of all ranks' inputs goes to the root.
struct ReduceRequest {
  const void* input = nullptr;  ///< count elements
  /// The root's: count elements; may equal input, but must not overlap it otherwise. Ignored on other ranks.
  void* output = nullptr;
  std::uint64_t count = 0;  ///< elements
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::uint64_t block_elems = 256;
  std::span<const std::uint64_t> bitmap = {};
  bool dense = false;
  std::chrono::nanoseconds timeout{0};
  std::uint64_t tag = 0;
  void* stream = nullptr;
};

/// The inputs consist of one chunk for each rank, one behind the other. Rank r gets the sum of the ranks'
/// chunks number r.
///
/// Blocks are counted chunk by chunk: chunk c begins with a block of its own, and its last block may be
/// partial. `bitmap` covers the blocks of all chunks, in their order, without gaps. The union bitmap covers
/// this rank's chunk.
struct ReduceScatterRequest {
  const void* input = nullptr;  ///< all chunks
  /// This rank's chunk. It may be where that lies in the input, but must not overlap the input otherwise.
  void* output = nullptr;
  std::uint64_t count = 0;                     ///< elements of every chunk; ignored if counts are given
  std::span<const std::uint64_t> counts = {};  ///< elements of each rank's chunk; copied by the call
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t block_elems = 256;
  std::span<const std::uint64_t> bitmap = {};
  bool dense = false;
  std::chrono::nanoseconds timeout{0};
  std::uint64_t tag = 0;
  void* stream = nullptr;
};

/// Every rank has one chunk, and gets those of all ranks, one behind the other in rank order.
///
/// Blocks are counted chunk by chunk: chunk c begins with a block of its own, and its last block may be
/// partial. `bitmap` covers this rank's chunk. The union bitmap covers the blocks of all chunks, in their
/// order, without gaps.
struct AllgatherRequest {
  /// This rank's chunk. It may be where that belongs in the output, but must not overlap the output
  /// otherwise.
  const void* input = nullptr;
  void* output = nullptr;                      ///< all chunks
  std::uint64_t count = 0;                     ///< elements of every chunk; ignored if counts are given
  std::span<const std::uint64_t> counts = {};  ///< elements of each rank's chunk; copied by the call
  DataType type = DataType::float32;
  std::uint64_t block_elems = 256;
  std::span<const std::uint64_t> bitmap = {};
  bool dense = false;
  std::chrono::nanoseconds timeout{0};
  std::uint64_t tag = 0;
  void* stream = nullptr;
};

}  // namespace nzcl

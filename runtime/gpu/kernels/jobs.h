// What a kernel is asked to do. Kernels for CUDA and for the CPU take the same structures, so nothing else is
// included here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nzcl::gpu {

/// Threads of a block.
inline constexpr unsigned kThreads = 512;

/// How a tensor is cut: slices of whole blocks, of which the last one of each kind may be shorter. The bits
/// of each slice begin at a word of their own.
struct Shape {
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 1;
  std::uint64_t slice_blocks = 1;

  constexpr std::uint64_t blocks() const { return (bytes + block_bytes - 1) / block_bytes; }
  constexpr std::uint64_t slices() const { return (blocks() + slice_blocks - 1) / slice_blocks; }
  constexpr std::uint64_t words_per_slice() const { return (slice_blocks + 63) / 64; }
  constexpr std::uint64_t words() const { return slices() * words_per_slice(); }
};

/// Finds the blocks of a tensor that are not zero, and packs those of each slice. A block is zero if no bit
/// of it is set, whatever its type is, so that -0.0 is kept. Pointers are those that the GPU uses.
struct PackJob {
  Shape shape;
  const std::byte* tensor = nullptr;
  std::byte* packed = nullptr;     // as large as the tensor; a slice's blocks begin where the slice would
  std::uint64_t* bits = nullptr;   // one for each block
  std::uint32_t* flags = nullptr;  // one for each slice, raised when it has been packed; or null
  std::uint32_t value = 0;         // what a flag is set to
  bool known = false;              // `bits` say already which blocks are to be packed
  bool checked = false;            // with `known`: those that are not zero are packed too, and their bits set
  bool in_places = false;          // blocks lie in `packed` where they do in the tensor
  std::byte* far = nullptr;        // in place of `packed` for slices whose byte in `is_far` is not 0
  const std::uint8_t* is_far = nullptr;  // or null, if there are none
  std::uint64_t* second_bits = nullptr;  // gets the bits too, unless it is null
  /// The kernel does nothing if this word has another value when it begins. There is none if it is null.
  const std::uint32_t* go = nullptr;
  std::uint32_t go_value = 0;
};

/// Packs the blocks of a tensor that are not zero, where blocks are small. A slice is a tile here, of at most
/// 65,536 blocks; it comes in the form that takes the fewest bytes. Pointers are those that the GPU uses.
struct TilesJob {
  Shape shape;
  const std::byte* tensor = nullptr;
  std::byte* packed = nullptr;  // as large as the tensor; a tile's blocks begin where the tile would
  /// Which blocks of a tile are packed, from the beginning of a word of its own on: their 16-bit numbers in
  /// ascending order if numbers_fit(), and otherwise one bit for each block, or nothing if all are.
  std::uint64_t* sets = nullptr;
  std::uint32_t* counts = nullptr;  // of each tile's blocks that are packed
  std::uint32_t* flags = nullptr;   // one for each tile, raised when all of the above is there; or null
  std::uint32_t value = 0;          // what a flag is set to

  /// Whether the numbers of so many blocks take no more bytes than the bits of all.
  static constexpr bool numbers_fit(std::uint64_t packed, std::uint64_t blocks) {
    return 16 * packed <= blocks;
  }
};

/// The most GPUs, or ranks, that read each other's memory.
inline constexpr unsigned kMostPeers = 8;

/// Where the contributions to a sum lie, and its results, by rank: addresses at which the reading GPU sees
/// them. It lies in pinned memory, because they become known when the kernels have been launched already.
struct PeerTable {
  const std::byte* contribution[kMostPeers];  // as large as the tensor, with each block at its place
  const std::uint64_t* bits[kMostPeers];
  const std::byte* result[kMostPeers];  // of the rank's share, with each block at its place
};

/// Ranks share the slices: rank r has the `slices_each` from r * slices_each on, as far as there are so many.
/// Returns where the share begins, in bytes.
constexpr std::uint64_t share_begin(const Shape& shape, std::uint64_t slices_each, std::uint64_t rank) {
  const std::uint64_t begin = rank * slices_each * shape.slice_blocks * shape.block_bytes;
  return begin < shape.bytes ? begin : shape.bytes;
}

/// Copies the blocks of some slices whose bits are set to their places in a tensor, from the same places in
/// `staged`, or in the results of the ranks that have summed them.
struct PlaceJob {
  Shape shape;
  std::uint64_t first_slice = 0;
  std::uint64_t slices = 0;
  std::byte* tensor = nullptr;
  const std::byte* staged = nullptr;
  const std::byte* far = nullptr;        // in place of `staged` for slices whose byte in `is_far` is not 0
  const std::uint8_t* is_far = nullptr;  // or null, if there are none
  const std::uint64_t* bits = nullptr;
  bool fill = false;                 // sets all other blocks to zero
  const PeerTable* peers = nullptr;  // in place of `staged`
  std::uint64_t slices_each = 1;
  /// The kernel does nothing if this word has another value when it begins. There is none if it is null.
  const std::uint32_t* go = nullptr;
  std::uint32_t go_value = 0;
};

/// Type and operation of a sum, with the numbers of nzcl::DataType and nzcl::ReduceOp.
enum class SumType : std::uint8_t { float32, float64, float16, bfloat16, int32, int64, uint8 };
inline constexpr unsigned kSumTypes = 7;
enum class SumOp : std::uint8_t { sum, avg, min, max };

/// Sums the blocks of one rank's share of the slices, of what all ranks have packed in places, in rank order,
/// and unites the bits of all slices.
struct SumJob {
  Shape shape;
  SumType type{};
  SumOp op{};
  std::uint32_t ranks = 0, rank = 0;
  std::uint64_t slices_each = 1;
  const PeerTable* peers = nullptr;
  std::byte* result = nullptr;          // of the share
  std::uint64_t* union_bits = nullptr;  // of all slices
  const std::uint32_t* go = nullptr;    // as above
  std::uint32_t go_value = 0;

  constexpr std::uint64_t result_bytes() const {
    return share_begin(shape, slices_each, rank + 1) - share_begin(shape, slices_each, rank);
  }
  /// What the threads of a block share: addresses, and the bits that all ranks have of a slice.
  constexpr std::uint64_t shared_words() const { return ranks * (2 + shape.words_per_slice()); }
};

/// How long a list is, as far as it has been copied or has to be.
struct ListSizes {
  std::uint64_t blocks = 0, value_bytes = 0, index_bytes = 0;
};

/// Copies a list, which is values and their indices.
struct ListJob {
  struct Part {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  Part values, indices;  // whose pointers may be null if there are no bytes to copy
  ListSizes sizes;       // the most there can be, if `found` says how much there is
  const ListSizes* found = nullptr;
  /// Where to write how many blocks have been copied. Nowhere if it is null.
  std::uint64_t* count = nullptr;
  /// Nothing is copied if this word has another value when the kernel begins. There is none if it is null.
  const std::uint32_t* go = nullptr;
  std::uint32_t go_value = 0;
  /// One for each of `runners` blocks of threads, raised when all that it copies is there; or null.
  std::uint32_t* flags = nullptr;
  std::uint32_t value = 0;  // what a flag is set to
  std::uint32_t runners = 1;
};

/// How many elements of a slice were selected, and how many reach the lower threshold.
struct SelectCounts {
  std::uint32_t selected = 0, lower = 0;
};

/// What is known of the k-th largest of many magnitudes, see MagnitudeRank in runtime/compress.
struct FoundRank {
  std::uint64_t ties = 0, equal = 0;
  std::uint32_t threshold = 0;
};

/// Finds it in three rounds, each of which counts how often some bits of a magnitude occur. Lies on the GPU.
struct RankSearch {
  static constexpr std::uint32_t kRounds = 3, kBuckets = 2048, kLastBuckets = 512;
  /// The lowest bit that a round looks at, and the lowest one that the rounds before have looked at.
  static constexpr std::uint32_t shift(std::uint32_t round) { return round == 0 ? 20 : round == 1 ? 9 : 0; }
  static constexpr std::uint32_t above(std::uint32_t round) { return round == 0 ? 31 : shift(round - 1); }

  std::uint64_t counts[kBuckets];
  FoundRank found;
};

/// What a kernel does of a step. They follow one another in a stream.
enum class SelectPass : std::uint8_t {
  put_back,  ///< writes into the residual what the host has written down
  square,    ///< sums the squares of each slice of the gradient
  clip,      ///< in one block of threads: what brings the gradient's norm down to the limit
  measure,   ///< finds the largest |G| of each bin
  rank,      ///< in one block of threads: begins a search, or ends a round of it
  count,     ///< counts the magnitudes of a round
  select     ///< adds the gradient, selects, and takes out what is selected
};
inline constexpr unsigned kSelectPasses = 7;

/// One step of a compressor: adds a gradient to a residual, selects elements, and takes them out. See
/// runtime/compress/README.md for the formulas, and select.h there for the same on the host. Each slice of
/// kSlice elements is one block of threads.
struct SelectJob {
  static constexpr std::uint32_t kSlice = 65536, kWords = kSlice / 64;
  /// The squares of so many elements are summed by a warp.
  static constexpr std::uint32_t kSquares = 2048;
  enum class By : std::uint8_t {
    threshold,   ///< |G| >= threshold
    rank,        ///< the same with the threshold that was found; of what equals it, only the first
    adacomp,     ///< what one more x brings to the largest magnitude of its bin
    block_rank,  ///< what is not 0 in the bins whose largest magnitude reaches the rank
    draw         ///< by chance, the same on all ranks
  };

  SelectPass pass = SelectPass::select;
  By by = By::threshold;
  std::uint64_t elements = 0;
  const float* gradient = nullptr;
  float* residual = nullptr;
  float* velocity = nullptr;  // null: no momentum
  float momentum = 0;
  float scale = 1;              // by which the residual is multiplied first
  bool fresh_residual = false;  // it holds nothing yet, and counts as zeros
  bool fresh_velocity = false;
  /// What the residual gets back is written down where what is selected is told.
  bool puts_back = false;
  // Of clipping; null: none.
  double* squares = nullptr;  // by slice
  float* factor = nullptr;    // by which the gradient is multiplied
  double most_norm = 0;
  // As the bits of floats.
  std::uint32_t threshold = 1, lower_threshold = 0;  // the lower one: 0, nothing is counted
  // Of bins.
  std::uint64_t bins = 0;
  const std::uint32_t* bin_ends = nullptr;    // offsets in the slice
  const std::uint64_t* first_bins = nullptr;  // by slice, and behind the last one
  std::uint32_t* maxima = nullptr;            // by bin; null: nobody wants them
  // Of ranks.
  RankSearch* search = nullptr;
  std::uint32_t* last_counts = nullptr;  // those of the last round, by slice
  std::uint32_t round = 0;
  std::uint64_t wanted = 0;
  /// If no more than so many too many equal the threshold, all of them are selected.
  std::uint64_t more_ties = 0;
  // Of draws, see runtime/base/mix.h.
  std::uint64_t key = 0, draw_below = 0;
  // In pinned memory. What is told of a slice begins where the slice does.
  std::uint16_t* offsets = nullptr;
  float* values = nullptr;
  SelectCounts* counts = nullptr;  // by slice
  FoundRank* found = nullptr;      // null: nobody wants it
  std::uint32_t* flags = nullptr;  // by slice, raised when all of the above is there
  std::uint32_t value = 0;

  constexpr std::uint64_t slices() const { return (elements + kSlice - 1) / kSlice; }
  /// Blocks of threads.
  constexpr std::uint64_t runners() const {
    return pass == SelectPass::clip || pass == SelectPass::rank ? 1 : slices();
  }
  /// Calls f(pointer, bytes) for each of the arrays, of which some may be null.
  constexpr void each_array(auto f) {
    f(gradient, elements * sizeof *gradient);
    f(residual, elements * sizeof *residual);
    f(velocity, elements * sizeof *velocity);
    f(squares, slices() * sizeof *squares);
    f(factor, sizeof *factor);
    f(bin_ends, bins * sizeof *bin_ends);
    f(first_bins, (slices() + 1) * sizeof *first_bins);
    f(maxima, bins * sizeof *maxima);
    f(search, sizeof *search);
    f(last_counts, slices() * RankSearch::kLastBuckets * sizeof *last_counts);
    f(offsets, elements * sizeof *offsets);
    f(values, elements * sizeof *values);
    f(counts, slices() * sizeof *counts);
    f(found, sizeof *found);
    f(flags, slices() * sizeof *flags);
  }
};

/// The most words of bits that a slice may have where they are not known: they lie in the memory that the
/// threads of a block share, of which every GPU has at least 48 KiB.
inline constexpr std::uint64_t kMostSliceWords = 2048;
/// Whether a sum of so many ranks has room there.
constexpr bool fits_sum(const Shape& shape, std::uint32_t ranks) {
  const SumJob job{.shape = shape, .ranks = ranks};
  return ranks <= kMostPeers && job.shared_words() <= kMostSliceWords;
}
/// Words of a slice's bits are counted in groups.
inline constexpr std::uint64_t kGroupWords = 64;

/// What the threads of a block share: the bits of a slice, and how many blocks are set before each word and
/// in each group of words.
constexpr std::uint64_t shared_bytes(std::uint64_t words) {
  const std::uint64_t groups = (words + kGroupWords - 1) / kGroupWords;
  return words * sizeof(std::uint64_t) + (words + groups) * sizeof(std::uint32_t);
}

/// The widest unit, in bytes, by which memory can be read and written that begins and ends at these numbers
/// of bytes: 16, 8, 4, 2 or 1.
constexpr unsigned unit_bytes(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  const std::uint64_t all = a | b | c | d | 16;
  return static_cast<unsigned>(all & (~all + 1));
}

}  // namespace nzcl::gpu

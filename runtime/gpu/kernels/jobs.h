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
  std::uint32_t* flags = nullptr;  // one for each slice, raised when it has been packed
  std::uint32_t value = 0;         // what a flag is set to
  bool known = false;              // `bits` say already which blocks are to be packed
};

/// Copies the blocks of some slices whose bits are set to their places in a tensor, from the same places in
/// `staged`.
struct PlaceJob {
  Shape shape;
  std::uint64_t first_slice = 0;
  std::uint64_t slices = 0;
  std::byte* tensor = nullptr;
  const std::byte* staged = nullptr;
  const std::uint64_t* bits = nullptr;
  bool fill = false;  // sets all other blocks to zero
  /// The kernel does nothing if this word has another value when it begins. There is none if it is null.
  const std::uint32_t* go = nullptr;
  std::uint32_t go_value = 0;
};

/// The most words of bits that a slice may have where they are not known: they lie in the memory that the
/// threads of a block share, of which every GPU has at least 48 KiB.
inline constexpr std::uint64_t kMostSliceWords = 2048;
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

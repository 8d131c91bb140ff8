// The checks of NZCL_CHECK=1: they find out whether a caller keeps the promises that nzcl otherwise takes on
// trust.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nzcl::engine {

/// How an input is cut into blocks. If it consists of several chunks, one behind the other, each begins with
/// a block of its own.
struct InputBlocks {
  std::vector<std::span<const std::byte>> chunks;
  std::uint64_t block_bytes = 1;

  std::uint64_t blocks() const;
  /// Number of blocks before a chunk.
  std::uint64_t blocks_before(std::size_t chunk) const;
};

/// Returns the first block whose bit is not set although some of its bytes are not zero.
std::optional<std::uint64_t> first_hidden_block(const InputBlocks& input,
                                                std::span<const std::uint64_t> bitmap);

/// What to tell the caller of such a block.
std::string hidden_text(std::uint64_t block);

/// Remembers an input as one checksum of 8 bytes for each block. The constructor and first_change() each read
/// the whole input once. The input must outlive the object. A change goes unnoticed if the block's checksum
/// stays the same, or if the old bytes are back when first_change() is called.
class InputCheck {
 public:
  explicit InputCheck(InputBlocks input);

  /// Returns the first block that has changed. It passes over blocks whose bit is set in `written`, because
  /// results may lie there by now: bit b stands for block `written_from` + b.
  std::optional<std::uint64_t> first_change(std::span<const std::uint64_t> written,
                                            std::uint64_t written_from = 0) const;

 private:
  const InputBlocks input_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace nzcl::engine

// NZCL_CHECK=1: finds out whether a caller keeps the promises that nzcl otherwise takes on trust.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nzcl::engine {

/// The first block whose bit is not set although some of its bytes are not zero.
std::optional<std::uint64_t> first_hidden_block(std::span<const std::byte> input, std::uint64_t block_bytes,
                                                std::span<const std::uint64_t> bitmap);

/// Remembers an input block by block, as checksums of 8 bytes. Making one and asking it reads the whole input
/// once each. The input outlives it. A change goes unnoticed if the block's checksum stays the same, or if
/// the block is as it was again when it is asked.
class InputCheck {
 public:
  InputCheck(std::span<const std::byte> input, std::uint64_t block_bytes);

  /// The first block that has changed, but for those whose bit is set in `written`, which may be empty: there
  /// results may lie now.
  std::optional<std::uint64_t> first_change(std::span<const std::uint64_t> written) const;

 private:
  std::span<const std::byte> block(std::uint64_t index) const;

  const std::span<const std::byte> input_;
  const std::uint64_t block_bytes_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace nzcl::engine

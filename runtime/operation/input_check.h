// The checks of NZCL_CHECK=1: they find out whether a caller keeps the promises that nzcl otherwise takes on
// trust.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nzcl::engine {

/// Returns the first block whose bit is not set although some of its bytes are not zero.
std::optional<std::uint64_t> first_hidden_block(std::span<const std::byte> input, std::uint64_t block_bytes,
                                                std::span<const std::uint64_t> bitmap);

/// Remembers an input as one checksum of 8 bytes for each block. The constructor and first_change() each read
/// the whole input once. The input must outlive the object. A change goes unnoticed if the block's checksum
/// stays the same, or if the old bytes are back when first_change() is called.
class InputCheck {
 public:
  InputCheck(std::span<const std::byte> input, std::uint64_t block_bytes);

  /// Returns the first block that has changed. It passes over blocks whose bit is set in `written`, because
  /// results may lie there by now. `written` may be empty.
  std::optional<std::uint64_t> first_change(std::span<const std::uint64_t> written) const;

 private:
  std::span<const std::byte> block(std::uint64_t index) const;

  const std::span<const std::byte> input_;
  const std::uint64_t block_bytes_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace nzcl::engine

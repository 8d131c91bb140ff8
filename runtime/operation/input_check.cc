#include "runtime/operation/input_check.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/scan.h"

namespace nzcl::engine {
namespace {

std::uint64_t blocks_in(std::uint64_t bytes, std::uint64_t block_bytes) {
  return bytes / block_bytes + (bytes % block_bytes != 0);
}

/// Mixes a word into a checksum. Every step can be undone, so a change of a single word always changes the
/// checksum.
std::uint64_t mixed(std::uint64_t sum, std::uint64_t word) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  return std::rotl((sum ^ word) * kOdd, 31);
}

std::uint64_t sum_of(std::span<const std::byte> bytes) {
  std::uint64_t sum = bytes.size(), word = 0;
  for (; bytes.size() >= sizeof word; bytes = bytes.subspan(sizeof word)) {
    std::memcpy(&word, bytes.data(), sizeof word);
    sum = mixed(sum, word);
  }
  word = 0;
  if (!bytes.empty()) std::memcpy(&word, bytes.data(), bytes.size());
  return mixed(sum, word);
}

}  // namespace

std::optional<std::uint64_t> first_hidden_block(std::span<const std::byte> input, std::uint64_t block_bytes,
                                                std::span<const std::uint64_t> bitmap) {
  std::vector<std::uint64_t> found(words_for(blocks_in(input.size(), block_bytes)));
  scan_blocks(input.data(), input.size(), block_bytes, found, 1);
  for (std::uint64_t w = 0; w < found.size(); ++w) {
    const std::uint64_t hidden = found[w] & ~bitmap[w];
    if (hidden != 0) return w * 64 + static_cast<std::uint64_t>(std::countr_zero(hidden));
  }
  return std::nullopt;
}

InputCheck::InputCheck(std::span<const std::byte> input, std::uint64_t block_bytes)
    : input_(input), block_bytes_(block_bytes), sums_(blocks_in(input.size(), block_bytes)) {
  for (std::uint64_t b = 0; b < sums_.size(); ++b) sums_[b] = sum_of(block(b));
}

std::optional<std::uint64_t> InputCheck::first_change(std::span<const std::uint64_t> written) const {
  for (std::uint64_t b = 0; b < sums_.size(); ++b) {
    if (!written.empty() && test_bit(written, b)) continue;
    if (sum_of(block(b)) != sums_[b]) return b;
  }
  return std::nullopt;
}

std::span<const std::byte> InputCheck::block(std::uint64_t index) const {
  const std::uint64_t begin = index * block_bytes_;
  return input_.subspan(begin, std::min<std::uint64_t>(block_bytes_, input_.size() - begin));
}

}  // namespace nzcl::engine

#include "runtime/operation/input_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/base/divide.h"

namespace nzcl::engine {
namespace {

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

/// Calls visit(index, bytes) for each block until it returns false.
template <typename Visit>
void for_each_block(const InputBlocks& input, Visit visit) {
  std::uint64_t index = 0;
  for (auto rest : input.chunks) {
    while (!rest.empty()) {
      const auto block = rest.first(std::min<std::uint64_t>(input.block_bytes, rest.size()));
      if (!visit(index++, block)) return;
      rest = rest.subspan(block.size());
    }
  }
}

/// Precondition: there is at least one byte.
bool is_zero(std::span<const std::byte> bytes) {
  return bytes.front() == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

bool is_set(std::span<const std::uint64_t> bits, std::uint64_t index) {
  return index / 64 < bits.size() && test_bit(bits, index);
}

}  // namespace

std::uint64_t InputBlocks::blocks() const { return blocks_before(chunks.size()); }

std::uint64_t InputBlocks::blocks_before(std::size_t chunk) const {
  std::uint64_t sum = 0;
  for (std::size_t c = 0; c < chunk; ++c) sum += ceil_div(chunks[c].size(), block_bytes);
  return sum;
}

std::optional<std::uint64_t> first_hidden_block(const InputBlocks& input,
                                                std::span<const std::uint64_t> bitmap) {
  std::optional<std::uint64_t> hidden;
  for_each_block(input, [&](std::uint64_t index, std::span<const std::byte> block) {
    if (!test_bit(bitmap, index) && !is_zero(block)) hidden = index;
    return !hidden;
  });
  return hidden;
}

std::string hidden_text(std::uint64_t block) {
  return fmt::format(
      "block {} of the input is not all zero bytes, and its bit in the bitmap is not set; -0.0 is no zero "
      "here",
      block);
}

InputCheck::InputCheck(InputBlocks input) : input_(std::move(input)) {
  sums_.reserve(input_.blocks());
  for_each_block(input_, [this](std::uint64_t, std::span<const std::byte> block) {
    sums_.push_back(sum_of(block));
    return true;
  });
}

std::optional<std::uint64_t> InputCheck::first_change(std::span<const std::uint64_t> written,
                                                      std::uint64_t written_from) const {
  std::optional<std::uint64_t> changed;
  for_each_block(input_, [&](std::uint64_t index, std::span<const std::byte> block) {
    const bool may_change = index >= written_from && is_set(written, index - written_from);
    if (!may_change && sum_of(block) != sums_[index]) changed = index;
    return !changed;
  });
  return changed;
}

}  // namespace nzcl::engine

#include "perf/example_training/consensus.h"

#include <algorithm>
#include <bit>

namespace train {

Consensus::Consensus(nzcl::Communicator& communicator)
    : communicator_(communicator),
      words_(kMaxSums * static_cast<std::size_t>(communicator.size())),
      buffer_(communicator.register_buffer(words_.data(), words_.size() * sizeof(std::uint64_t))) {}

bool Consensus::same_everywhere(std::uint64_t value) {
  const auto all = gather({&value, 1});
  return std::ranges::all_of(all, [value](std::uint64_t other) { return other == value; });
}

void Consensus::sum(std::span<double> values) {
  std::array<std::uint64_t, kMaxSums> mine{};
  std::ranges::transform(values, mine.begin(), [](double v) { return std::bit_cast<std::uint64_t>(v); });
  const auto all = gather(std::span(mine).first(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0;
    for (std::size_t at = i; at < all.size(); at += values.size())
      values[i] += std::bit_cast<double>(all[at]);
  }
}

std::span<const std::uint64_t> Consensus::gather(std::span<const std::uint64_t> words) {
  const auto all = std::span(words_).first(words.size() * static_cast<std::size_t>(communicator_.size()));
  std::ranges::fill(all, 0);
  std::ranges::copy(words, all.begin() + static_cast<std::ptrdiff_t>(words.size()) * communicator_.rank());
  constexpr std::size_t kInts = sizeof(std::uint64_t) / sizeof(std::int32_t);
  nzcl::Work work = communicator_.allreduce({.input = all.data(),
                                             .output = all.data(),
                                             .count = kInts * all.size(),
                                             .type = nzcl::DataType::int32,
                                             .block_elems = kInts * words.size()});
  work.wait();
  return all;
}

}  // namespace train

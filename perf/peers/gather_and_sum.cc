#include "perf/peers/gather_and_sum.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace perf::peers {

GatherAndSum::GatherAndSum(int ranks, std::uint32_t elements, Allgather gather)
    : elements_(elements),
      gather_(std::move(gather)),
      counts_(static_cast<std::size_t>(ranks)),
      parts_(static_cast<std::size_t>(ranks)),
      merged_(new Pair[most_pairs(elements) + 1]),
      scratch_(new Pair[most_pairs(elements) + 1]),
      dense_(new float[elements]) {}

std::uint64_t GatherAndSum::take_sent_bytes() { return std::exchange(sent_, 0); }

/// Fills parts_, and returns the number of pairs in all of them.
std::size_t GatherAndSum::gather(Stream own) {
  gather_.counts(own.size(), counts_);
  const std::size_t pairs = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  if (pairs > room_) {
    all_.reset(new Pair[pairs]);
    room_ = pairs;
  }
  gather_.streams(own, all_.get(), counts_);
  sent_ += own.size_bytes() * (counts_.size() - 1);
  const Pair* next = all_.get();
  for (std::size_t r = 0; r < counts_.size(); ++r) {
    parts_[r] = {next, counts_[r]};
    next += counts_[r];
  }
  return pairs;
}

Vector GatherAndSum::run(Stream own, bool dense) {
  const std::size_t pairs = gather(own);
  if (!dense && pairs <= most_pairs(elements_))
    return {.pairs = sum_of(parts_, merged_.get(), scratch_.get()), .values = {}};
  sum_densely(parts_, {dense_.get(), elements_});
  return {.pairs = {}, .values = {dense_.get(), elements_}};
}

}  // namespace perf::peers

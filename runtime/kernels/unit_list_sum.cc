#include "runtime/kernels/unit_list_sum.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace nzcl {

UnitListSum::UnitListSum() {
  lists_.reserve(kMostLists);
  offsets_.reserve(kMostListed);
  runs_.reserve(kMostListed);
}

void UnitListSum::start(DataType type, ReduceOp op, int ranks, std::size_t unit_elements) {
  reduce_ = reduce_kernel(type, op);
  ranks_ = ranks;
  unit_elements_ = unit_elements;
  unit_bytes_ = unit_elements * element_bytes(type);
  lists_.clear();
}

std::size_t UnitListSum::unite() {
  assert(lists_.size() <= kMostLists);
  constexpr std::uint64_t kEnd = ~std::uint64_t{0};
  std::array<std::size_t, kMostLists> taken{};
  const auto next = [&](std::size_t list) {
    const auto& offsets = lists_[list].offsets;
    return taken[list] < offsets.size() ? offsets[taken[list]] : kEnd;
  };
  offsets_.clear();
  runs_.clear();
  while (true) {
    std::uint64_t least = kEnd;
    for (std::size_t list = 0; list < lists_.size(); ++list) least = std::min(least, next(list));
    if (least == kEnd) return offsets_.size();
    Run run{.holders = 0, .units = 1};
    for (std::size_t list = 0; list < lists_.size(); ++list) {
      const bool holds = next(list) == least;
      run.holders |= std::uint32_t{holds} << list;
      taken[list] += holds;
    }
    offsets_.push_back(static_cast<std::uint32_t>(least));
    if (!runs_.empty() && runs_.back().holders == run.holders) {
      ++runs_.back().units;
    } else {
      runs_.push_back(run);
    }
  }
}

std::size_t UnitListSum::emit(std::byte* packed, std::uint32_t* offsets) const {
  std::ranges::copy(offsets_, offsets);
  std::array<const std::byte*, kMostLists> values{}, sources{};
  for (std::size_t list = 0; list < lists_.size(); ++list) values[list] = lists_[list].values;
  for (const Run& run : runs_) {
    std::size_t count = 0;
    for (std::size_t list = 0; list < lists_.size(); ++list) {
      if ((run.holders >> list & 1) == 0) continue;
      sources[count++] = values[list];
      values[list] += run.units * unit_bytes_;
    }
    reduce_(packed, sources.data(), count, run.units * unit_elements_,
            {.ranks = ranks_, .with_zero = count < static_cast<std::size_t>(ranks_)});
    packed += run.units * unit_bytes_;
  }
  return offsets_.size();
}

}  // namespace nzcl

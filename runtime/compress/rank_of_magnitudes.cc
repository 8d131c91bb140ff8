#include "runtime/compress/rank_of_magnitudes.h"

#include <algorithm>

namespace nzcl::compress {

void MagnitudeRank::begin(std::uint64_t k) {
  wanted_ = k;
  prefix_ = 0;
  shift_ = k > 0 ? kFirstShift : -1;
  above_ = 31;
  std::ranges::fill(counts_, std::uint64_t{0});
}

void MagnitudeRank::add(std::span<const MagnitudeBits> magnitudes) noexcept {
  const std::uint32_t mask = (1u << (above_ - shift_)) - 1;
  const std::uint64_t prefix = std::uint64_t{prefix_} >> above_;
  for (const MagnitudeBits bits : magnitudes) {
    if (std::uint64_t{bits} >> above_ == prefix) ++counts_[bits >> shift_ & mask];
  }
}

void MagnitudeRank::end_round() noexcept {
  std::size_t bucket = std::size_t{1} << (above_ - shift_);
  while (bucket > 0 && counts_[bucket - 1] < wanted_) wanted_ -= counts_[--bucket];
  equal_ = bucket == 0 ? 0 : counts_[bucket - 1];
  std::ranges::fill(counts_, std::uint64_t{0});
  if (bucket == 0) {  // there are fewer than k magnitudes; the first round finds that out
    prefix_ = 0, wanted_ = 0, shift_ = -1;
    return;
  }
  prefix_ |= static_cast<MagnitudeBits>(bucket - 1) << shift_;
  above_ = shift_;
  shift_ = shift_ == 0 ? -1 : std::max(0, shift_ - kBits);
}

}  // namespace nzcl::compress

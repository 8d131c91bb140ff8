#include "runtime/exchange/contributions/slice_sum.h"

#include <algorithm>

#include "runtime/base/cold_memory.h"

namespace nzcl::engine {

SliceSum::SliceSum(LaneContext& context, wire::Priority priority, Intake& intake)
    : context_(context),
      intake_(intake),
      union_(new std::uint64_t[context.slot_bytes(priority) / 2 / 8 + 1]),
      edges_(new std::uint64_t[context.slot_bytes(priority) / 2 / 8 + 1]) {
  const auto ranks = static_cast<std::size_t>(context.config.members.workers);
  holders_.reserve(ranks);
  pointers_.reserve(ranks);
}

void SliceSum::start(IncomingSlice& s) {
  slice_ = &s;
  if (s.layout->tiled()) {
    walk_ = {};
    result_bytes_ = summed_bytes_ = 0;
    return;
  }
  const auto type = static_cast<DataType>(s.record.type);
  copies_ = wire::copies(s.record.collective);
  reduce_ = reduce_kernel(type, copies_ ? ReduceOp::sum : static_cast<ReduceOp>(s.record.op));
  element_bytes_ = element_bytes(type);
  const std::uint64_t words = s.words();
  unite(words);
  result_bytes_ = result().stream_bytes();
  summed_bytes_ = 0;
  walk_ = RunWalk(result(), {}, {edges_.get(), words});
  find_holders();
}

void SliceSum::unite(std::uint64_t words) {
  std::fill_n(union_.get(), words, 0);
  std::fill_n(edges_.get(), words, 0);
  for (int rank = 0; rank < context_.config.members.workers; ++rank) {
    const auto bits = intake_.bits(*slice_, rank);
    for (std::uint64_t w = 0; w < words; ++w) {
      union_[w] |= bits[w];
      edges_[w] |= ends_of_runs(bits, w);
    }
  }
}

void SliceSum::find_holders() {
  holders_.clear();
  local_holds_ = false;
  if (walk_.at_end()) return;
  for (int rank = 0; rank < context_.config.members.workers; ++rank) {
    if (!test_bit(intake_.bits(*slice_, rank), walk_.block())) continue;
    holders_.push_back(rank);
    local_holds_ |= context_.is_self(rank);
  }
}

/// Collects where the holders' next bytes lie. Returns how many bytes all of them have in one piece, at most
/// `limit`, or 0 if some holder's bytes have not arrived.
std::uint64_t SliceSum::gather(std::uint64_t limit) {
  pointers_.clear();
  for (const int rank : holders_) {
    const auto bytes = intake_.next(*slice_, rank);
    if (bytes.empty()) return 0;
    pointers_.push_back(bytes.data());
    limit = std::min<std::uint64_t>(limit, bytes.size());
  }
  return limit;
}

SliceSum::Step SliceSum::sum_into(std::byte* to, std::uint64_t room) {
  const std::uint64_t bytes = gather(std::min(walk_.run_bytes(), room));
  if (bytes == 0) return {};
  if (local_holds_) {
    if (const auto ahead = slice_->local_walk.ahead())
      prefetch_to_read(slice_->local->input.base + ahead->offset, ahead->bytes);
  }
  if (copies_ && pointers_.front() == to) return advance(bytes);  // in place, so it is there already
  const int ranks = copies_ ? 1 : context_.config.members.workers;
  const bool with_zero = static_cast<int>(pointers_.size()) < ranks;
  reduce_(to, pointers_.data(), pointers_.size(), bytes / element_bytes_,
          {.ranks = ranks, .with_zero = with_zero});
  return advance(bytes);
}

SliceSum::Step SliceSum::skip(std::uint64_t room) {
  const std::uint64_t bytes = gather(std::min(walk_.run_bytes(), room));
  return bytes == 0 ? Step{} : advance(bytes);
}

SliceSum::Step SliceSum::advance(std::uint64_t bytes) {
  for (const int rank : holders_) intake_.consume(*slice_, rank, bytes);
  summed_bytes_ += bytes;
  const bool stretch_continues = bytes < walk_.run_bytes() || walk_.continues();
  if (walk_.advance(bytes)) find_holders();
  return {bytes, !stretch_continues};
}

}  // namespace nzcl::engine

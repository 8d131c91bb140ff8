#include "runtime/operation/run_walk.h"

#include <algorithm>

namespace nzcl::engine {

RunWalk::RunWalk(const SliceView& slice, const BlockOrder& order, std::span<const std::uint64_t> edges)
    : slice_(slice), order_(order), edges_(edges) {
  enter(slice.next(0));
}

std::uint64_t RunWalk::end_of_run(std::uint64_t block) const {
  switch (order_.kind) {
    case BlockOrder::Kind::stream:
      return slice_.blocks();
    case BlockOrder::Kind::indexed:
      return block + 1;
    case BlockOrder::Kind::tensor:
      break;
  }
  const std::uint64_t absent = slice_.next_absent(block);
  return edges_.empty() ? absent : std::min(next_set(edges_, block, absent) + 1, absent);
}

std::uint64_t RunWalk::offset_of(std::uint64_t block, std::uint64_t ordinal) const {
  const std::uint64_t block_bytes = slice_.layout().block_bytes();
  switch (order_.kind) {
    case BlockOrder::Kind::stream:
      return order_.base + (order_.first + ordinal) * block_bytes;
    case BlockOrder::Kind::indexed:
      return order_.order[order_.first + ordinal] * block_bytes;
    case BlockOrder::Kind::tensor:
      break;
  }
  return order_.base + slice_.tensor_offset(block);
}

void RunWalk::enter(std::uint64_t block) {
  block_ = block;
  if (block == slice_.blocks()) {
    end_ = next_ = block;
    run_bytes_ = 0;
    return;
  }
  end_ = end_of_run(block);
  next_ = slice_.next(end_);
  offset_ = offset_of(block, ordinal_);
  run_bytes_ =
      order_.kind == BlockOrder::Kind::stream ? slice_.stream_bytes() : slice_.bytes(block, end_ - block);
}

bool RunWalk::continues() const {
  return order_.kind == BlockOrder::Kind::tensor && next_ == end_ && next_ < slice_.blocks();
}

std::optional<RunWalk::Ahead> RunWalk::ahead() const {
  if (next_ == slice_.blocks()) return std::nullopt;
  return Ahead{offset_of(next_, ordinal_ + (end_ - block_)), slice_.bytes(next_, 1)};
}

bool RunWalk::advance(std::uint64_t bytes) {
  offset_ += bytes;
  run_bytes_ -= bytes;
  if (run_bytes_ > 0) return false;
  ordinal_ += end_ - block_;
  enter(next_);
  return true;
}

}  // namespace nzcl::engine

// One rank's call of one request: its memory, the call itself, and whether the result is the plain one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "tests/stress/problem.h"

namespace nzcl::stress {

/// Memory with a guard behind it, which nobody may write to, and a part of its own in front, so that it
/// begins anywhere. What reads behind its end is left to AddressSanitizer: inputs have no guard.
class Memory {
 public:
  Memory() = default;
  Memory(std::size_t front, std::size_t bytes, std::size_t guard);
  std::byte* data() { return all_.data() + front_; }
  std::size_t size() const { return all_.size() - front_ - guard_; }
  bool guard_is_whole() const;

 private:
  std::vector<std::byte> all_;
  std::size_t front_ = 0, guard_ = 0;
};

/// It must outlive the operation that it has started.
class RankCall {
 public:
  /// `draw` is the rank's own: how it calls need not be the same on all ranks.
  RankCall(Communicator& communicator, const Problem& problem, Draw& draw);
  RankCall(const RankCall&) = delete;
  RankCall& operator=(const RankCall&) = delete;

  /// Makes the call.
  void start();
  /// Waits for the end in some way, and compares. Returns what is wrong, or "".
  std::string finish();

 private:
  const Request& request() const { return problem_.request; }
  const RankPart& part() const { return problem_.parts[static_cast<std::size_t>(rank_)]; }
  void place_input();
  void place_packed();
  Work call();
  Work call_allreduce();
  Work call_sparse();
  Work call_collective();
  void wait();
  std::string check_error(const Error& error) const;
  std::string check_result();
  std::string check_dense();
  std::string check_packed();
  std::string check_union(std::size_t chunk, std::uint64_t first, std::span<const std::uint64_t> bits) const;
  std::byte* moved(std::byte* pointer) const;

  Communicator& communicator_;
  const Problem& problem_;
  Draw& draw_;
  const int rank_;
  bool in_place_ = false;
  Memory input_, output_, grown_;
  std::byte* in_ = nullptr;   // where the input begins
  std::byte* out_ = nullptr;  // where the result begins
  std::vector<std::uint64_t> bitmap_, counts_;
  IndexType given_type_ = IndexType::int64, packed_type_ = IndexType::int64;
  Memory given_indices_, packed_indices_, grown_indices_;
  std::uint64_t capacity_ = 0;
  bool grows_ = false;
  RegisteredBuffer registered_in_, registered_out_;
  Work work_;
  std::string refusal_;  // what the call itself threw
};

}  // namespace nzcl::stress

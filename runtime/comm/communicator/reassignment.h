// What becomes of the operations in flight when a dedicated aggregator is lost and the ranks go on without
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nzcl::comm {

/// What one rank knows of its operations, when nothing moves any more.
struct OperationsInFlight {
  /// In the order of the letters in kLetters.
  enum class State : std::uint8_t {
    ended,    // its result may have been used, and its input overwritten by the caller
    whole,    // its input is what it was
    spoiled,  // results may have been written over its input
    unkept,   // it cannot be made once more: a compressor or a GPU had its input, or it was refused
  };
  static constexpr std::string_view kLetters = "ewsu";

  std::uint64_t first = 0;    // the number of the first one in `states`; all before have ended
  std::vector<State> states;  // from that one to the last one that this rank has begun

  std::uint64_t end() const { return first + states.size(); }
  std::string encode() const;
  /// Throws Error{mismatch} for what is none. `who` has said it.
  static OperationsInFlight decode(std::string_view text, std::string_view who);
};

/// What all ranks make of that, alike. An operation begins once more if no rank has ended it, because that
/// rank may have given the buffers back, and if all of them have their inputs. In place, results are only
/// written when the input of every rank is there, so as long as one rank has not begun, no input is spoiled.
class Reassignment {
 public:
  /// One entry for each rank.
  explicit Reassignment(std::vector<OperationsInFlight> ranks) : ranks_(std::move(ranks)) {}

  /// Behind the last operation that any rank has begun.
  std::uint64_t end() const;
  /// Why this operation, which not all ranks have ended, cannot begin once more; or nothing.
  std::optional<std::string> why_not(std::uint64_t operation) const;

 private:
  std::vector<OperationsInFlight> ranks_;
};

}  // namespace nzcl::comm

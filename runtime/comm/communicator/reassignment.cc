#include "runtime/comm/communicator/reassignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "nzcl/error.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {

using State = OperationsInFlight::State;

std::string OperationsInFlight::encode() const {
  std::string text = fmt::format("{} ", first);
  for (const State state : states) text += kLetters[static_cast<std::size_t>(state)];
  return text;
}

OperationsInFlight OperationsInFlight::decode(std::string_view text, std::string_view who) {
  OperationsInFlight result;
  const char* const end = text.data() + text.size();
  const auto [space, error] = std::from_chars(text.data(), end, result.first);
  const std::string_view letters(space, static_cast<std::size_t>(end - space));
  bool good = error == std::errc() && letters.starts_with(' ') &&
              letters.size() <= engine::kMaxOperations + 1 &&
              result.first < UINT64_MAX - engine::kMaxOperations;
  for (std::size_t i = 1; good && i < letters.size(); ++i) {
    const auto at = kLetters.find(letters[i]);
    good = at != kLetters.npos;
    result.states.push_back(static_cast<State>(at));
  }
  if (!good)
    throw Error(ErrorCode::mismatch, fmt::format("{} told of its operations in a way that this version does "
                                                 "not understand",
                                                 who));
  return result;
}

std::uint64_t Reassignment::end() const {
  std::uint64_t end = 0;
  for (const auto& rank : ranks_) end = std::max(end, rank.end());
  return end;
}

std::optional<std::string> Reassignment::why_not(std::uint64_t operation) const {
  std::optional<std::size_t> ended, spoiled, unkept;
  bool all_have_begun = true;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const OperationsInFlight& rank = ranks_[r];
    if (operation >= rank.end()) {
      all_have_begun = false;
      continue;
    }
    const State state = operation < rank.first ? State::ended : rank.states[operation - rank.first];
    if (state == State::ended) ended = ended.value_or(r);
    if (state == State::spoiled) spoiled = spoiled.value_or(r);
    if (state == State::unkept) unkept = unkept.value_or(r);
  }
  if (ended) return fmt::format("rank {} has ended it", *ended);
  if (unkept)
    return fmt::format("rank {} cannot: a compressor or a GPU had its input, or it had refused the call",
                       *unkept);
  if (spoiled && all_have_begun)
    return fmt::format(
        "rank {} sums in place, and has no input any more (on_aggregator_loss=preserve keeps it)", *spoiled);
  return std::nullopt;
}

}  // namespace nzcl::comm

// Remembers which algorithm was chosen for which operation.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "runtime/plan/algorithm.h"

namespace nzcl::engine {

/// Answers as choose_algorithm() does, with the same configuration each time. Engines repeat a few shapes in
/// every step, and predicting costs takes a large part of the time of a small operation. Any thread may call
/// it; a thread that finds another one inside chooses anew instead of waiting.
class AlgorithmMemo {
 public:
  /// `config` must outlive the memo.
  explicit AlgorithmMemo(const EngineConfig& config) : config_(config) {}

  /// Throws what choose_algorithm() throws, and remembers nothing then.
  wire::Algorithm choose(wire::OperationRecord record, Algorithm asked) {
    record.tag = 0;  // it changes from step to step, and nothing follows from it
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return choose_algorithm(config_, record, asked);
    Choice& choice = choices_[place_of(record)];
    if (!choice.valid || choice.asked != asked || !same_bytes(choice.record, record))
      choice = {true, asked, record, choose_algorithm(config_, record, asked)};
    return choice.algorithm;
  }

 private:
  struct Choice {
    bool valid = false;
    Algorithm asked = Algorithm::automatic;
    wire::OperationRecord record;
    wire::Algorithm algorithm = wire::Algorithm::push;
  };
  static constexpr std::size_t kChoices = 16;

  static std::size_t place_of(const wire::OperationRecord& record) {
    return ((record.count ^ record.block_elems) * 0x9e3779b97f4a7c15) >> 60;  // Fibonacci hashing
  }
  static_assert(kChoices == 16, "place_of() gives four bits");
  static bool same_bytes(const wire::OperationRecord& a, const wire::OperationRecord& b) {
    static_assert(std::has_unique_object_representations_v<wire::OperationRecord>);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }

  const EngineConfig& config_;
  std::mutex mutex_;
  std::array<Choice, kChoices> choices_;
};

}  // namespace nzcl::engine

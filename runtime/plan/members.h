// Who is who in a communicator. Members are numbered: first the workers (a worker's number is its rank), then
// the dedicated aggregators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace nzcl::engine {

struct Members {
  int self = 0;
  int workers = 1;
  int dedicated = 0;  // dedicated aggregators; 0 = every worker is an aggregator too
  /// By member: the rank that messages call it by, in a communicator that is a part of another one's work.
  /// nullptr: its own.
  std::shared_ptr<const std::vector<int>> known_as{};

  int count() const { return workers + dedicated; }
  int aggregators() const { return dedicated ? dedicated : workers; }
  int aggregator_member(int aggregator) const { return dedicated ? workers + aggregator : aggregator; }
  int aggregator_of(int member) const { return dedicated ? member - workers : member; }
  bool is_worker(int member) const { return member < workers; }
  bool is_aggregator(int member) const { return dedicated ? member >= workers : true; }

  /// The number by which messages call it: its rank, or number as an aggregator.
  int number(int member) const {
    if (known_as) return (*known_as)[static_cast<std::size_t>(member)];
    return is_worker(member) ? member : member - workers;
  }
  /// Returns a name for messages, such as "rank 3" or "aggregator 1".
  std::string name(int member) const {
    return (is_worker(member) ? "rank " : "aggregator ") + std::to_string(number(member));
  }
};

}  // namespace nzcl::engine

// Who is who in a communicator. Members are numbered: first the workers (a worker's number is its rank), then
// the dedicated aggregators.
#pragma once

#include <cstdint>
#include <string>

namespace nzcl::engine {

struct Members {
  int self = 0;
  int workers = 1;
  int dedicated = 0;  // dedicated aggregators; 0 = every worker is an aggregator too

  int count() const { return workers + dedicated; }
  int aggregators() const { return dedicated ? dedicated : workers; }
  int aggregator_member(int aggregator) const { return dedicated ? workers + aggregator : aggregator; }
  bool is_worker(int member) const { return member < workers; }
  bool is_aggregator(int member) const { return dedicated ? member >= workers : true; }

  /// Returns a name for messages, such as "rank 3" or "aggregator 1".
  std::string name(int member) const {
    return is_worker(member) ? "rank " + std::to_string(member)
                             : "aggregator " + std::to_string(member - workers);
  }
};

}  // namespace nzcl::engine

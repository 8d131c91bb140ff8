// One communicator, and random requests on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nzcl::stress {

struct RoundReport {
  std::string setting;
  std::vector<std::string> requests;
  std::vector<std::string> errors;  // none if all results are the plain ones
};

/// Everything that is drawn follows from the seed. What does not is how threads meet.
RoundReport run_round(std::uint64_t seed);

}  // namespace nzcl::stress

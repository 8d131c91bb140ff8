// What a loopback endpoint can be told to do to its traffic. Counted in polls and writes, never in time: runs
// repeat.
#pragma once

#include <cstdint>
#include <optional>

#include "verbs/transport.h"

namespace nzcl::verbs {

struct LoopbackFaults {
  std::uint64_t seed = 1;
  std::uint32_t delay_polls = 0;  // a write takes up to so many polls of its sender; without Limits::ordered
                                  // writes overtake each other
  std::uint32_t accept_at_most = 0;  // post() takes a random number of writes, 1 to this many; 0 = all
  std::optional<std::uint64_t>
      fail_at;  // this write of the endpoint (from 0), and all later ones, are lost and reported as failed
  std::optional<std::uint64_t> stall_at;  // this one and all later ones are lost without a word
};

struct LoopbackOptions {
  LoopbackOptions() {
    limits = {.max_segments = 4,
              .max_write_bytes = 1 << 20,
              .max_posted = 64,
              .ordered = false,
              .costs = {.segment = 4 << 10, .write = 16 << 10, .foreign_byte = 0}};
  }
  Limits limits;
  LoopbackFaults faults;
};

}  // namespace nzcl::verbs

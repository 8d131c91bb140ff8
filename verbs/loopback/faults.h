// The faults that a loopback endpoint can be told to inject. They are counted in polls and writes and never
// in time, so that a run can be repeated exactly.
#pragma once

#include <cstdint>
#include <optional>

#include "verbs/transport.h"

namespace nzcl::verbs {

struct LoopbackFaults {
  std::uint64_t seed = 1;
  /// Each write takes a random number of its sender's polls, at most this many, before it lands. Without
  /// Limits::ordered, later writes may land before it.
  std::uint32_t delay_polls = 0;
  /// post() accepts a random number of writes, between 1 and this many; 0: all of them.
  std::uint32_t accept_at_most = 0;
  /// The write of this number, counted from 0, and all later ones are lost and reported as failed.
  std::optional<std::uint64_t> fail_at;
  /// The write of this number and all later ones are lost and never reported.
  std::optional<std::uint64_t> stall_at;
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

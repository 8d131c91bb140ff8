#include "tests/stress/setting.h"

#include <fmt/format.h>

namespace nzcl::stress {

test::Setting draw_setting(Draw& draw) {
  test::Setting s;
  s.transport = draw.pick<const char*>({"loopback", "loopback", "shm", "cma"});
  s.ranks = draw.pick({1, 2, 2, 3, 3, 4, 5, 8});
  if (s.transport == "loopback" && draw.chance(0.25)) s.dedicated = draw.number(1, 2);
  Options& o = s.options;
  o.log_level = "off";
  o.pin = "off";
  o.timeout_s = 300;  // under sanitizers, and beside other tests
  o.close_timeout_s = 300;
  o.bootstrap_timeout_s = 300;
  o.lanes = draw.pick({1, 1, 2, 3});
  o.tune.scan_threads = draw.number(0, 2);
  o.tune.slot_bytes = draw.pick<std::uint64_t>({0, 4 << 10, 8 << 10, 16 << 10, 16 << 10, 64 << 10});
  o.tune.channel_slots = draw.pick({0, 0, 1, 2, 4, 32});
  o.tune.max_segments = draw.pick({0, 0, 1, 2, 3, 16});
  o.tune.slice_bytes = draw.pick<std::uint64_t>({0, 0, 1, 4 << 10, 32 << 10, 128 << 10});
  o.tune.gather_bytes = draw.pick<std::uint64_t>({0, 0, 1, 256, 1 << 30});
  o.tune.direct_bytes = draw.pick<std::uint64_t>({0, 0, 1, 1024, 1 << 30});
  o.wire_type = draw.pick<const char*>({"as_is", "as_is", "as_is", "float16", "bfloat16"});
  o.tune.format =
      draw.pick<const char*>({"auto", "auto", "auto", "bitmap", "offsets", "gaps", "runs", "rice"});
  o.tune.staging = draw.pick<const char*>({"auto", "cached", "streamed"});
  o.sum_order = draw.pick<const char*>({"rank", "any"});
  o.tune.packed_density = draw.pick({0.001, 0.01, 0.5});
  o.check = draw.chance(0.25) ? 1 : 0;
  if (s.dedicated == 0)
    o.algorithm = draw.pick<const char*>({"auto", "auto", "auto", "push", "doubling", "merging"});
  return s;
}

std::string text_of(const test::Setting& s) {
  const Options& o = s.options;
  return fmt::format(
      "{} ranks over {}, {} dedicated aggregators, lanes {}, scan threads {}, slots {} of {} "
      "bytes, "
      "segments {}, slice {}, gather {}, direct {}, wire type {}, format {}, staging {}, sum order {}, "
      "packed "
      "density {}, check {}, algorithm {}",
      s.ranks, s.transport, s.dedicated, o.lanes, o.tune.scan_threads, o.tune.channel_slots,
      o.tune.slot_bytes, o.tune.max_segments, o.tune.slice_bytes, o.tune.gather_bytes, o.tune.direct_bytes,
      o.wire_type, o.tune.format, o.tune.staging, o.sum_order, o.tune.packed_density, o.check, o.algorithm);
}

}  // namespace nzcl::stress

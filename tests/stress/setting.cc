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
  o.scan_threads = draw.number(0, 2);
  o.scan_streams = draw.number(1, 4);
  o.slot_bytes = draw.pick<std::uint64_t>({0, 4 << 10, 8 << 10, 16 << 10, 16 << 10, 64 << 10});
  o.channel_slots = draw.pick({0, 0, 1, 2, 4, 32});
  o.max_segments = draw.pick({0, 0, 1, 2, 3, 16});
  o.slice_bytes = draw.pick<std::uint64_t>({0, 0, 1, 4 << 10, 32 << 10, 128 << 10});
  o.gather_bytes = draw.pick<std::uint64_t>({0, 0, 1, 256, 1 << 30});
  o.direct_bytes = draw.pick<std::uint64_t>({0, 0, 1, 1024, 1 << 30});
  o.wire_type = draw.pick<const char*>({"as_is", "as_is", "as_is", "float16", "bfloat16"});
  o.format = draw.pick<const char*>({"auto", "auto", "auto", "bitmap", "offsets", "gaps", "runs", "rice"});
  o.staging = draw.pick<const char*>({"auto", "cached", "streamed"});
  o.sum_order = draw.pick<const char*>({"rank", "any"});
  o.packed_density = draw.pick({0.001, 0.01, 0.5});
  o.check = draw.chance(0.25) ? 1 : 0;
  if (s.dedicated == 0)
    o.algorithm = draw.pick<const char*>({"auto", "auto", "auto", "push", "doubling", "merging"});
  return s;
}

std::string text_of(const test::Setting& s) {
  const Options& o = s.options;
  return fmt::format(
      "{} ranks over {}, {} dedicated aggregators, lanes {}, scan threads {} streams {}, slots {} of {} "
      "bytes, "
      "segments {}, slice {}, gather {}, direct {}, wire type {}, format {}, staging {}, sum order {}, "
      "packed "
      "density {}, check {}, algorithm {}",
      s.ranks, s.transport, s.dedicated, o.lanes, o.scan_threads, o.scan_streams, o.channel_slots,
      o.slot_bytes, o.max_segments, o.slice_bytes, o.gather_bytes, o.direct_bytes, o.wire_type, o.format,
      o.staging, o.sum_order, o.packed_density, o.check, o.algorithm);
}

}  // namespace nzcl::stress

#include "tests/stress/setting.h"

#include <fmt/format.h>

#include "runtime/options/table.h"

namespace nzcl::stress {

test::Setting draw_setting(Draw& draw) {
  test::Setting s;
  s.transport = draw.pick<const char*>({"loopback", "loopback", "shm", "cma"});
  s.ranks = draw.pick({1, 2, 2, 3, 3, 4, 5, 8});
  if (s.transport == "loopback" && draw.chance(0.25)) s.dedicated = draw.number(1, 2);
  Options& o = s.options;
  o.log_level = LogLevel::off;
  o.pin = Pinning::off;
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
  o.wire_type =
      draw.pick({WireType::as_is, WireType::as_is, WireType::as_is, WireType::float16, WireType::bfloat16});
  o.tune.format =
      draw.pick({IndexFormat::automatic, IndexFormat::automatic, IndexFormat::automatic, IndexFormat::bitmap,
                 IndexFormat::offsets, IndexFormat::gaps, IndexFormat::runs, IndexFormat::rice});
  o.tune.staging = draw.pick({Staging::automatic, Staging::cached, Staging::streamed});
  o.sum_order = draw.pick({SumOrder::rank, SumOrder::any});
  o.tune.packed_density = draw.pick({0.001, 0.01, 0.5});
  o.check = draw.chance(0.25) ? 1 : 0;
  o.checksum = draw.chance(0.25) ? 1 : 0;
  if (s.dedicated == 0)
    o.algorithm = draw.pick({Algorithm::automatic, Algorithm::automatic, Algorithm::automatic,
                             Algorithm::push, Algorithm::doubling, Algorithm::merging});
  return s;
}

std::string text_of(const test::Setting& s) {
  const Options defaults;
  std::string text =
      fmt::format("{} ranks over {}, {} dedicated aggregators", s.ranks, s.transport, s.dedicated);
  for (const auto list : {settings(), tunings()})
    for (const Setting& setting : list) {
      const std::string value = setting.text(s.options);
      if (value != setting.text(defaults)) text += fmt::format(", {} {}", setting.name, value);
    }
  return text;
}

}  // namespace nzcl::stress

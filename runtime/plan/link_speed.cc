#include "runtime/plan/link_speed.h"

#include <fmt/format.h>

#include "runtime/plan/tuning.h"

namespace nzcl::engine {

LinkSpeed own_link(double option_gbps, double device_gbps) {
  if (option_gbps > 0) return {option_gbps, LinkSpeed::Source::option};
  if (device_gbps > 0) return {device_gbps, LinkSpeed::Source::device};
  return {};
}

LinkSpeed slowest_link(const std::vector<LinkSpeed>& links) {
  LinkSpeed slowest{.gbps = kAssumedGbps};
  for (const LinkSpeed& link : links) {
    if (link.source == LinkSpeed::Source::assumed) continue;
    if (slowest.source == LinkSpeed::Source::assumed || link.gbps < slowest.gbps) slowest = link;
  }
  return slowest;
}

std::string text_of(const LinkSpeed& speed) {
  const char* how = "";
  switch (speed.source) {
    case LinkSpeed::Source::assumed:
      how = "assumed, because no device says it: set NZCL_LINK_GBPS";
      break;
    case LinkSpeed::Source::device:
      how = "as the device says";
      break;
    case LinkSpeed::Source::option:
      how = "as option link_gbps says";
      break;
  }
  return fmt::format("{:g} Gb/s ({})", speed.gbps, how);
}

}  // namespace nzcl::engine

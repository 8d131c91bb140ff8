#include "perf/scale/links.h"

#include <algorithm>
#include <initializer_list>

namespace perf::scale {

Links::Links(const LinkPlan& plan)
    : plan_(plan), hosts_(1 + *std::max_element(plan.host_of.begin(), plan.host_of.end())) {
  const int racks = 1 + rack(hosts_ - 1);
  links_.resize(2 * static_cast<std::size_t>(hosts_ + racks));
  const double byte = 8 / plan.bits_per_second;
  for (int h = 0; h < hosts_; ++h) {
    for (const Kind kind : {Kind::out, Kind::in}) links_[index(h, kind)].byte = byte;
  }
  for (int r = 0; r < racks; ++r) {
    const int hosts = plan.rack_hosts > 0 ? std::min(plan.rack_hosts, hosts_ - r * plan.rack_hosts) : hosts_;
    for (const Kind kind : {Kind::rack_out, Kind::rack_in})
      links_[index(r, kind)].byte = byte * plan.oversubscription / hosts;
  }
}

std::size_t Links::index(int number, Kind kind) const {
  const bool of_rack = kind == Kind::rack_out || kind == Kind::rack_in;
  const bool in = kind == Kind::in || kind == Kind::rack_in;
  return 2 * static_cast<std::size_t>(number + (of_rack ? hosts_ : 0)) + (in ? 1 : 0);
}

Way Links::way(int from, int to) const {
  Way way;
  if (same_host(from, to)) return way;
  const auto add = [&](int number, Kind kind) {
    way.link[way.links++] = static_cast<std::uint16_t>(index(number, kind));
  };
  add(host(from), Kind::out);
  if (rack(host(from)) != rack(host(to))) {
    add(rack(host(from)), Kind::rack_out);
    add(rack(host(to)), Kind::rack_in);
  }
  add(host(to), Kind::in);
  return way;
}

Time Links::pass(Way& way, std::uint64_t bytes, Time now) {
  Link& link = links_[way.link[way.next]];
  const std::uint64_t frames =
      std::max<std::uint64_t>(1, (bytes + plan_.frame_bytes - 1) / plan_.frame_bytes);
  const std::uint64_t on_wire = bytes + frames * plan_.frame_header;
  const Time begin = std::max(now, link.free);
  const Time taken = plan_.message + seconds(static_cast<double>(on_wire) * link.byte);
  // The link may be faster than the one before, and then has to wait for the last byte.
  const Time end = std::max(begin + taken, way.last_byte);
  link.free = end;
  link.bytes += on_wire;
  const Time delay = way.next++ == 0 ? plan_.delay : Time{};
  way.last_byte = end + delay;
  return begin + delay;
}

}  // namespace perf::scale

#include "runtime/comm/join/node_and_link.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "nzcl/error.h"
#include "runtime/base/json_text.h"
#include "runtime/kernels/scan.h"
#include "runtime/kernels/scan_streams.h"

namespace nzcl::comm {

using engine::LinkSpeed;
using nlohmann::json;

namespace {

constexpr int kMostNodes = 1 << 16;  // far above what any machine has
constexpr int kSources = 3;          // LinkSpeed::Source

}  // namespace

std::string NodeAndLink::encode() const {
  return json_text({{"node", node},
                    {"gbps", link.gbps},
                    {"source", static_cast<int>(link.source)},
                    {"scan_streams", scan_streams}});
}

namespace {

/// A whole number from `least` to `most`. Others, which would not fit an int, throw.
int int_of(const json& number, int least, int most) {
  if (!number.is_number_integer() || number < least || number > most)
    throw Error(ErrorCode::mismatch,
                fmt::format("{} is not one of {} .. {}", json_text(number), least, most));
  return number.get<int>();
}

}  // namespace

NodeAndLink NodeAndLink::decode(const std::string& text, const std::string& who) {
  try {
    const json j = json::parse(text);
    NodeAndLink e;
    e.node = int_of(j.at("node"), -1, kMostNodes);
    e.link.source = static_cast<LinkSpeed::Source>(int_of(j.at("source"), 0, kSources - 1));
    e.link.gbps = j.at("gbps");
    e.scan_streams = int_of(j.at("scan_streams"), 0, kMaxScanStreams);
    const bool known = e.link.source != LinkSpeed::Source::assumed;
    if (!std::isfinite(e.link.gbps) || (known ? e.link.gbps <= 0 : e.link.gbps != 0))
      throw Error(ErrorCode::mismatch, fmt::format("a link cannot have {} Gb/s", e.link.gbps));
    return e;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::mismatch,
                fmt::format("{} described its node and link in a way that cannot be: {}", who, error.what()));
  }
}

int measure_scan_streams(const engine::Membership& membership) {
  const engine::Members& members = membership.members;
  for (int member = 0; member < members.self; ++member) {
    if (members.is_worker(member) && membership.hosts.together(member, members.self)) return 0;
  }
  return members.is_worker(members.self) ? fastest_scan_streams() : 0;
}

void enter_nodes_and_links(const std::vector<std::string>& told, engine::Membership& membership) {
  membership.nodes.clear();
  membership.links.clear();
  for (const int position : membership.position_of) {
    const auto p = static_cast<std::size_t>(position);
    const NodeAndLink e = NodeAndLink::decode(told[p], membership.names[p]);
    const int member = static_cast<int>(membership.nodes.size());
    membership.nodes.push_back(e.node);
    membership.links.push_back(e.link);
    if (e.scan_streams > 0 && membership.hosts.together(member, membership.members.self))
      membership.scan_streams = e.scan_streams;
  }
}

}  // namespace nzcl::comm

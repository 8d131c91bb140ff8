#include "runtime/placement/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "nzcl/error.h"

namespace nzcl::placement {
namespace {

// One lane moves and adds at about the speed of one core's memory traffic, so that few suffice; the rest of
// the machine is the caller's.
constexpr int kCoresPerLane = 4, kMostLanes = 4;
// A few cores saturate a socket's memory; more scan threads would only take cores from the caller.
constexpr int kCoresPerScanThread = 4, kMostScanThreads = 4;
// Long enough to catch the answer of a peer on a fast network without a sleep in between, short beside any
// computation.
constexpr std::chrono::microseconds kSpin{50};
// A caller that has a core of its own, but shares it with the member's threads, which stand back while it
// drives: some polls, each a fraction of what giving way to nobody takes. With two ranks on two cores 8 bytes
// took 2.2 instead of 2.6 us over cma (medians of 6 starts); where ranks share a core, 1 us of polling cost
// 2 us.
constexpr std::chrono::microseconds kCallerSpin{4};

std::string cpus_text(const std::vector<int>& cpus) {
  if (cpus.empty()) return "none";
  if (cpus.front() < 0) return fmt::format("{}, not pinned", cpus.size());
  return fmt::format("{} on cpu {}", cpus.size(), fmt::join(cpus, ","));
}

}  // namespace

int auto_lanes(int own_cores) { return std::clamp(own_cores / kCoresPerLane, 1, kMostLanes); }

Placement plan(const Topology& topology, const PlacementRequest& r) {
  if (r.local_ranks < 1 || r.local_rank < 0 || r.local_rank >= r.local_ranks || r.lanes < 0 ||
      r.scan_threads < -1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("placement: local rank {} of {}, {} lanes, {} scan threads", r.local_rank,
                            r.local_ranks, r.lanes, r.scan_threads));
  }
  const auto cores = static_cast<int>(topology.cores.size());
  // Share i of n: cores [i*cores/n, (i+1)*cores/n); with more members than cores a share may be empty, and
  // its member uses core i*cores/n with others.
  int first = static_cast<int>(static_cast<long>(r.local_rank) * cores / r.local_ranks);
  int end = static_cast<int>((static_cast<long>(r.local_rank) + 1) * cores / r.local_ranks);
  const auto near = std::ranges::equal_range(topology.cores.begin() + first, topology.cores.begin() + end,
                                             r.node, {}, &Core::node);
  if (!near.empty()) {
    first = static_cast<int>(near.begin() - topology.cores.begin());
    end = static_cast<int>(near.end() - topology.cores.begin());
  }
  const int own = cores < r.local_ranks ? 0 : end - first;  // with nobody else's thread on them

  Placement result;
  const int lanes = r.lanes > 0 ? r.lanes : auto_lanes(own);
  const int scans =
      r.scan_threads >= 0 ? r.scan_threads : std::clamp(own / kCoresPerScanThread, 0, kMostScanThreads);
  const bool roomy = own >= lanes + scans + 1;  // one core at least stays the caller's
  const bool pin = r.pin == "on" || (r.pin == "auto" && roomy);
  // From the end of the share backwards; a share that is too small is gone round again.
  const auto cpu = [&](int i) {
    return pin ? topology.cores[static_cast<std::size_t>(std::max(first, end - 1 - i % std::max(1, own)))].cpu
               : -1;
  };
  for (int i = 0; i < lanes; ++i) result.lane_cpus.push_back(cpu(i));
  for (int i = 0; i < scans; ++i) result.scan_cpus.push_back(cpu(lanes + i));
  if (roomy) result.spin = kSpin;
  if (own >= 1) result.caller_spin = roomy ? kSpin : kCallerSpin;
  const auto share = std::span(topology.cores)
                         .subspan(static_cast<std::size_t>(std::min(first, cores - 1)),
                                  static_cast<std::size_t>(std::max(own, 1)));
  if (r.node >= 0) {
    result.node = r.node;
  } else if (std::ranges::all_of(share, [&](const Core& c) { return c.node == share.front().node; })) {
    result.node = share.front().node;
  }
  result.text = fmt::format(
      "{} of {} cores; lanes: {}; scan threads: {}; {}", own > 0 ? std::to_string(own) : "a part of 1", cores,
      cpus_text(result.lane_cpus), cpus_text(result.scan_cpus),
      result.spin.count()          ? fmt::format("polls {} us before sleeping", result.spin.count())
      : result.caller_spin.count() ? fmt::format("callers poll {} us", result.caller_spin.count())
                                   : "yields and sleeps at once");
  return result;
}

}  // namespace nzcl::placement

#include "runtime/placement/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "nzcl/error.h"

namespace nzcl::placement {
namespace {

// A lane moves and adds data about as fast as one core can read and write memory, so a few lanes suffice. The
// other cores are left to the caller.
constexpr int kCoresPerLane = 4, kMostLanes = 4;
// A few cores use up the memory bandwidth of a socket. More scan threads would only take cores from the
// caller.
constexpr int kCoresPerScanThread = 4, kMostScanThreads = 4;
// Long enough for a peer on a fast network to answer before the thread goes to sleep, and short in comparison
// with any computation of the caller.
constexpr std::chrono::microseconds kSpin{50};
// A waiting caller polls this long where its rank has a core of its own. It shares that core only with its
// own rank's threads, which stand back while it drives, so a few polls cost less than giving way would. Where
// ranks share a core, every poll delays the rank that is waited for. perf/results/tuning.md has figures.
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
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("placement: cannot plan for local rank {} of {} with {} lanes and {} scan threads",
                    r.local_rank, r.local_ranks, r.lanes, r.scan_threads));
  }
  const auto cores = static_cast<int>(topology.cores.size());
  // Member i of n gets the cores [i*cores/n, (i+1)*cores/n). If there are more members than cores, this range
  // may be empty, and then the member shares core i*cores/n with others.
  int first = static_cast<int>(static_cast<long>(r.local_rank) * cores / r.local_ranks);
  int end = static_cast<int>((static_cast<long>(r.local_rank) + 1) * cores / r.local_ranks);
  const auto near = std::ranges::equal_range(topology.cores.begin() + first, topology.cores.begin() + end,
                                             r.node, {}, &Core::node);
  if (!near.empty()) {
    first = static_cast<int>(near.begin() - topology.cores.begin());
    end = static_cast<int>(near.end() - topology.cores.begin());
  }
  const int own = cores < r.local_ranks ? 0 : end - first;  // cores that no other member uses

  Placement result;
  const int lanes = r.lanes > 0 ? r.lanes : auto_lanes(own);
  const int scans =
      r.scan_threads >= 0 ? r.scan_threads : std::clamp(own / kCoresPerScanThread, 0, kMostScanThreads);
  const bool roomy = own >= lanes + scans + 1;  // at least one core is left to the caller
  const bool pin = r.pin == Pinning::on || (r.pin == Pinning::automatic && roomy);
  // Threads get the cores of the share from its end backwards. If there are too few, cores are used again.
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

// Allreduces by hierarchy, for tests: so many ranks in a row count as one host, as the option host_ranks
// says.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/base/bitmap.h"
#include "tests/system/misuse.h"
#include "tests/system/oracle.h"
#include "tests/system/ranks.h"

namespace nzcl::test {

struct Hosts {
  int ranks, host_ranks;
};

inline Setting by_hierarchy(const Hosts& hosts, const char* transport = "loopback", int lanes = 1) {
  Setting s = quick(hosts.ranks);
  s.options.timeout_s = 3600;  // nothing here may need the timeout to end
  s.transport = transport;
  s.options.lanes = lanes;
  s.options.algorithm = Algorithm::hierarchy;
  s.options.tune.host_ranks = hosts.host_ranks;
  return s;
}

/// The plain result: of each host, and then of all.
inline Expected sum_by_hosts(const Problem& p, int host_ranks) {
  Expected expected{std::vector<std::uint64_t>(words_for(p.blocks())), std::vector<std::byte>(p.bytes())};
  std::vector<std::vector<std::byte>> inputs;
  for (int r = 0; r < p.ranks; ++r) inputs.push_back(make_input(p, r));
  const ReduceOp op = p.op == ReduceOp::avg ? ReduceOp::sum : p.op;
  const std::size_t e = element_bytes(p.type);
  const auto reduce = [&](const std::vector<std::vector<std::byte>>& parts, std::size_t of, std::uint64_t n) {
    std::vector<const std::byte*> sources;
    for (const auto& part : parts) sources.push_back(part.data());
    return reference_reduce(p.type, op, sources, n, {.ranks = p.ranks, .with_zero = parts.size() < of});
  };
  for (std::uint64_t b = 0; b < p.blocks(); ++b) {
    const std::uint64_t n = std::min(p.block, p.count - b * p.block), at = b * p.block * e;
    std::vector<std::vector<std::byte>> of_hosts;
    std::size_t hosts = 0;
    for (int first = 0; first < p.ranks; first += host_ranks, ++hosts) {
      const int last = std::min(first + host_ranks, p.ranks);
      std::vector<std::vector<std::byte>> of_ranks;
      for (int r = first; r < last; ++r) {
        const auto from = inputs[static_cast<std::size_t>(r)].begin() + static_cast<std::ptrdiff_t>(at);
        if (holds(p, r, b)) of_ranks.emplace_back(from, from + static_cast<std::ptrdiff_t>(n * e));
      }
      if (!of_ranks.empty()) of_hosts.push_back(reduce(of_ranks, static_cast<std::size_t>(last - first), n));
    }
    if (of_hosts.empty()) continue;
    set_bit(std::span(expected.bits), b);
    auto sum = reduce(of_hosts, hosts, n);
    if (p.op == ReduceOp::avg) {
      const std::byte* const all = sum.data();
      sum = reference_reduce(p.type, p.op, std::span(&all, 1), n, {.ranks = p.ranks, .with_zero = false});
    }
    std::memcpy(expected.data.data() + at, sum.data(), sum.size());
  }
  return expected;
}

inline bool is_unfit(const Problem& p) { return p.type == DataType::uint8 && p.op == ReduceOp::avg; }

}  // namespace nzcl::test

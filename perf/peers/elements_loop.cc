#include "perf/peers/elements_loop.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "perf/allreduce/problem.h"

namespace perf::peers {
namespace {

using allreduce::Problem;

Problem problem_of(const peer& peer, const ElementsCommandLine& command, double density) {
  return {.count = command.elements, .block = 1, .density = density, .ranks = peer.ranks};
}

std::vector<Pair> stream_of(const Problem& problem, int rank) {
  std::vector<Pair> pairs;
  for (std::uint64_t i = 0; i < problem.count; ++i) {
    if (!problem.holds(rank, i)) continue;
    pairs.push_back({static_cast<std::uint32_t>(i), static_cast<float>(Problem::value(rank, i))});
  }
  return pairs;
}

/// The plain sum, which every result is compared with.
std::vector<float> sum_of_all(const Problem& problem) {
  std::vector<float> sum(problem.count);
  for (std::uint64_t i = 0; i < problem.count; ++i) {
    for (int r = 0; r < problem.ranks; ++r) sum[i] += problem.holds(r, i) ? Problem::value(r, i) : 0.0f;
  }
  return sum;
}

/// Elements that are not the expected ones, and pairs that are out of order.
std::size_t wrong_in(const Vector& result, const std::vector<float>& expected) {
  std::size_t wrong = 0;
  if (result.dense()) {
    for (std::size_t i = 0; i < expected.size(); ++i) wrong += result.values[i] != expected[i];
    return wrong;
  }
  std::uint64_t next = 0;  // the least index that the next pair may have
  for (const Pair p : result.pairs) {
    if (p.index < next || p.index >= expected.size()) {
      ++wrong;
      continue;
    }
    for (; next < p.index; ++next) wrong += expected[next] != 0;
    wrong += p.value != expected[next++];
  }
  for (; next < expected.size(); ++next) wrong += expected[next] != 0;
  return wrong;
}

/// Overwrites a result, so that the next one cannot be right because of what this one left behind. The memory
/// is the algorithm's own, and not the caller's `own`.
void spoil(const Vector& result, Stream own) {
  if (result.dense()) {
    std::memset(const_cast<float*>(result.values.data()), 0xff, result.values.size_bytes());
  } else if (result.pairs.data() != own.data() && !result.pairs.empty()) {
    std::memset(const_cast<Pair*>(result.pairs.data()), 0xff, result.pairs.size_bytes());
  }
}

struct Row {
  std::vector<double> seconds;  // of each timed operation on the slowest rank
  double cpu_seconds = 0, wire_bytes = 0, wrong = 0;
  bool came_dense = false;
};

Row measure(const peer& peer, const SparseAllreduce& algorithm, Stream own, bool dense,
            const std::vector<float>& expected, const ElementsCommandLine& command) {
  Row row;
  Vector result;
  for (int k = -command.warm_up; k < command.iterations; ++k) {
    if (k == 0) {
      spoil(result, own);
      algorithm.take_sent_bytes();
    }
    peer.barrier();
    const double cpu_before = cpu_seconds(), begin = wall_seconds();
    result = algorithm.run(own, dense);
    const double took = wall_seconds() - begin;
    if (k >= 0) {
      row.seconds.push_back(took);
      row.cpu_seconds += cpu_seconds() - cpu_before;
    }
    peer.barrier();  // the rest must not take a core from ranks that still work
    if (k == 0) row.wrong = static_cast<double>(wrong_in(result, expected));
  }
  row.came_dense = result.dense();
  if (dense && !result.dense()) row.wrong += 1;
  row.wire_bytes = static_cast<double>(algorithm.take_sent_bytes()) / command.iterations;
  row.seconds.push_back(row.wire_bytes);
  peer.gather_most(row.seconds.data(), row.seconds.size());
  row.wire_bytes = row.seconds.back();
  row.seconds.pop_back();
  double sums[] = {row.wrong, row.cpu_seconds / command.iterations};
  peer.gather_sum(sums, 2);
  row.wrong = sums[0], row.cpu_seconds = sums[1];
  return row;
}

void print(const SparseAllreduce& algorithm, double density, bool dense, const Row& row, bool first) {
  std::printf(
      "%s\n{\"name\": \"%s\", \"density\": %.9g, \"output\": \"%s\", \"came_dense\": %s, \"times_us\": [",
      first ? "" : ",", algorithm.name.c_str(), density, dense ? "dense" : "packed",
      row.came_dense ? "true" : "false");
  for (std::size_t k = 0; k < row.seconds.size(); ++k)
    std::printf("%s%.3f", k ? ", " : "", row.seconds[k] * 1e6);
  std::printf("], \"cpu_s\": %.6f, \"wire_bytes\": %.0f, \"wrong\": %.0f}", row.cpu_seconds, row.wire_bytes,
              row.wrong);
}

/// A whole number from `least` to `most`.
long number(const char* text, long least, long most, const char* usage) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end != text && *end == 0 && value >= least && value <= most) return value;
  std::fprintf(stderr, "%s is not a whole number from %ld to %ld\nusage: %s\n", text, least, most, usage);
  std::exit(2);
}

}  // namespace

ElementsCommandLine parse_elements_command_line(int argc, char** argv, const char* usage) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s\n", usage);
    std::exit(2);
  }
  ElementsCommandLine command{
      .elements = static_cast<std::uint32_t>(number(argv[1], 1, 0x7fffffff, usage)),
      .iterations = static_cast<int>(number(argv[2], 1, 1 << 20, usage)),
      .warm_up = static_cast<int>(number(argv[3], 0, 1 << 20, usage)),
      .densities = {},
  };
  for (const char* next = argv[4]; *next;) {
    char* end = nullptr;
    const double density = std::strtod(next, &end);
    if (end == next || (*end != 0 && *end != ',') || !(density >= 0 && density <= 1)) {
      std::fprintf(stderr, "%s is not a list of numbers from 0 to 1\nusage: %s\n", argv[4], usage);
      std::exit(2);
    }
    command.densities.push_back(density);
    next = *end ? end + 1 : end;
  }
  return command;
}

void measure_elements(const peer& peer, const std::vector<SparseAllreduce>& algorithms,
                      const ElementsCommandLine& command) {
  bool first = true;
  if (peer.rank == 0) std::printf("{\"results\": [");
  for (const double density : command.densities) {
    const Problem problem = problem_of(peer, command, density);
    const std::vector<Pair> own = stream_of(problem, peer.rank);
    const std::vector<float> expected = sum_of_all(problem);
    double mean = static_cast<double>(own.size()) / command.elements / peer.ranks;
    peer.gather_sum(&mean, 1);
    for (const SparseAllreduce& algorithm : algorithms) {
      for (const bool dense : {false, true}) {
        const Row row = measure(peer, algorithm, own, dense, expected, command);
        if (peer.rank == 0) print(algorithm, mean, dense, row, first);
        first = false;
      }
    }
  }
  if (peer.rank == 0) std::printf("\n]}\n");
}

}  // namespace perf::peers

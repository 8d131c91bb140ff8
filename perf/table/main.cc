// nzcl_table_perf: how long do few rows take in a large table?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <random>
#include <set>
#include <vector>

#include "nzcl/communicator.h"
#include "perf/local_ranks.h"

namespace perf {
namespace {

struct Settings {
  int ranks = 2;
  std::vector<std::uint64_t> tables{1'000'000, 10'000'000, 100'000'000, 1'000'000'000};
  std::uint64_t width = 128, rows = 10'000;
  int iterations = 20, warm_up = 5;
};

/// So many different rows of a table, which each rank draws for itself.
std::vector<std::int64_t> draw(const Settings& s, std::uint64_t table, int rank) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 1);
  std::uniform_int_distribution<std::uint64_t> any(0, table - 1);
  std::set<std::int64_t> rows;
  while (rows.size() < std::min(s.rows, table)) rows.insert(static_cast<std::int64_t>(any(random)));
  return {rows.begin(), rows.end()};
}

void run(const Settings& s) {
  nzcl::Communicator comm;
  const auto ranks = static_cast<std::uint64_t>(comm.size());
  std::vector<float> values(s.rows * s.width, 1), packed(ranks * s.rows * s.width);
  std::vector<std::int64_t> packed_rows(ranks * s.rows);
  const auto in = comm.register_buffer(values.data(), values.size() * sizeof(float));
  const auto out = comm.register_buffer(packed.data(), packed.size() * sizeof(float));
  if (comm.rank() == 0) {
    fmt::print("# {} ranks, {} rows of {} floats each\n", ranks, s.rows, s.width);
    fmt::print("{:>12} {:>10} {:>10} {:>10} {:>12}\n", "table (rows)", "least (us)", "median", "union (rows)",
               "sent (B)");
  }
  for (const std::uint64_t table : s.tables) {
    const auto rows = draw(s, table, comm.rank());
    std::vector<double> times;
    for (int i = 0; i < s.warm_up + s.iterations; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      nzcl::Work work = comm.allreduce_sparse({.values = values.data(),
                                               .indices = rows,
                                               .count = table * s.width,
                                               .block_elems = s.width,
                                               .packed_values = packed.data(),
                                               .packed_capacity = ranks * s.rows,
                                               .packed_indices = packed_rows.data()});
      work.wait();
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (i >= s.warm_up) times.push_back(took.count());
      if (i + 1 < s.warm_up + s.iterations || comm.rank() != 0) continue;
      std::ranges::sort(times);
      fmt::print("{:>12} {:>10.1f} {:>10.1f} {:>10} {:>12}\n", table, times.front(), times[times.size() / 2],
                 work.packed_indices().size(), work.statistics().bytes_sent);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace perf

int main(int argc, char** argv) {
  CLI::App app{
      "Times sparse allreduces of few rows, drawn at random, out of tables of several sizes, with packed "
      "results. The time is rank 0's, per operation."};
  perf::Settings s;
  app.add_option("--ranks", s.ranks, "Start so many ranks on this machine; 0: use the launcher's")
      ->take_last()  // run_local_ranks() adds another one
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
  app.add_option("--tables", s.tables, "Rows of the tables")->delimiter(',')->capture_default_str();
  app.add_option("--rows", s.rows, "Rows that each rank has")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--width", s.width, "Floats of a row")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("-n,--iters", s.iterations, "Timed operations per table")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("-w,--warmup_iters", s.warm_up, "Operations before them")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    if (s.ranks > 0) return perf::run_local_ranks(s.ranks, argc, argv);
    perf::run(s);
  } catch (const std::exception& error) {
    fmt::print(stderr, "nzcl_table_perf: {}\n", error.what());
    return 1;
  }
}

// Random requests of all kinds, with random options, types, block sizes and forms of call, on several ranks:
// every result is compared with a plain one. Each round has a seed of its own, with which it can be run
// again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <random>

#include "tests/stress/round.h"

namespace {

void print_failure(std::uint64_t seed, const nzcl::stress::RoundReport& report) {
  fmt::print("FAILED: seed {}\n  {}\n", seed, report.setting);
  for (const auto& error : report.errors) fmt::print("  {}\n", error);
  for (std::size_t i = 0; i < report.requests.size(); ++i)
    fmt::print("  request {}: {}\n", i, report.requests[i]);
  fmt::print("  again: --seed {} --rounds 1\n", seed);
}

int run(std::uint64_t seed, std::uint64_t rounds, double seconds, bool verbose) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t done = 0, requests = 0, failed = 0;
  fmt::print("seed {}\n", seed);
  std::fflush(stdout);
  while (seconds > 0 ? std::chrono::steady_clock::now() < end : done < rounds) {
    if (verbose) {
      fmt::print("round with seed {}\n", seed + done);
      std::fflush(stdout);
    }
    const auto report = nzcl::stress::run_round(seed + done);
    if (!report.errors.empty()) print_failure(seed + done, report);
    std::fflush(stdout);
    failed += report.errors.empty() ? 0 : 1;
    requests += report.requests.size();
    ++done;
  }
  fmt::print("{} rounds with {} requests, {} failed\n", done, requests, failed);
  return failed == 0 && done > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares random requests of all kinds with a plain oracle");
  std::uint64_t seed = std::random_device()(), rounds = 100;
  double seconds = 0;
  bool verbose = false;
  app.add_option("--seed", seed, "Of the first round; the next ones count up. By default drawn")
      ->capture_default_str();
  app.add_option("--rounds", rounds, "Number of rounds")->capture_default_str();
  app.add_option("--seconds", seconds, "Rounds until so much time is over, instead");
  app.add_flag("--verbose", verbose, "Print the seed of each round when it begins");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(seed, rounds, seconds, verbose);
  } catch (const std::exception& e) {
    fmt::print("error: {}\n", e.what());
    return 1;
  }
}

// nzcl_switch_simulation: what would the switch exchange do with many ranks on fast links?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "runtime/switch/simulation/assumptions.h"
#include "runtime/switch/simulation/simulation.h"

namespace nzcl::simulation {
namespace {

struct Arguments {
  Scene scene;
  std::vector<int> workers{16, 64, 256, 1024};
  std::vector<double> densities{1, 0.1, 0.01}, losses{0, 0.1, 1};
  double gigabits = 100, round_trip_us = 10, limit_ms = 20;
};

std::chrono::nanoseconds nanoseconds(double count) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(count));
}

std::string assumptions() {
  std::string text = "What is assumed:\n";
  for (const char* sentence : kAssumptions) text += fmt::format("- {}\n", sentence);
  return text;
}

void add_cases(CLI::App& app, Arguments& a) {
  app.add_option("-w,--workers", a.workers, "Numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, 65534))
      ->capture_default_str();
  app.add_option("-d,--density", a.densities, "Shares of the blocks that a rank holds")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("-l,--loss", a.losses, "Packets of a hundred that are lost, in each direction")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 50.0))
      ->capture_default_str();
  const std::map<std::string, Overlap> overlaps{{"all", Overlap::all}, {"random", Overlap::random}};
  app.add_option(
         "-o,--overlap", a.scene.overlap,
         "all: the ranks hold the same blocks; random: each rank draws its own, so that with many ranks "
         "some rank holds nearly every block")
      ->transform(CLI::CheckedTransformer(overlaps));
}

void add_network(CLI::App& app, Arguments& a) {
  app.add_option("-r,--rate", a.gigabits, "Gb/s of each rank's link")
      ->check(CLI::Range(0.001, 10000.0))
      ->capture_default_str();
  app.add_option("-t,--round-trip", a.round_trip_us,
                 "From a rank to the switch and back without any queue, us")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  app.add_option("--mtu", a.scene.mtu, "Bytes of an IPv4 packet")
      ->check(CLI::Range(256, 9000))
      ->capture_default_str();
  app.add_option("--slots", a.scene.slots, "Slots of the switch; 0: as many as nzcl_aggregator has")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_sizes(CLI::App& app, Arguments& a) {
  app.add_option("-b,--bytes", a.scene.most_bytes,
                 "Size of the tensor, as far as --packets allows; default: 64M")
      ->transform(CLI::AsSizeValue(false));
  app.add_option(
         "--packets", a.scene.most_packets,
         "The tensor is halved until all ranks together send at most so many packets with values, which "
         "bounds how long a simulation takes; default: 1M")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--limit", a.limit_ms, "Simulated ms after which an allreduce is given up")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app.add_option("--block", a.scene.block_elements, "Elements of a block")
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  app.add_option("--seed", a.scene.seed, "What losses and inputs are drawn from")->capture_default_str();
}

void print_head(const Arguments& a) {
  fmt::print(
      "# {} Gb/s, round trip {} us, MTU {}, blocks of {} int32, {}; simulated time\n", a.gigabits,
      a.round_trip_us, a.scene.mtu, a.scene.block_elements,
      a.scene.overlap == Overlap::all ? "all ranks hold the same blocks" : "each rank draws its blocks");
  fmt::print("{:>8} {:>8} {:>7} {:>9} {:>6} {:>9} {:>10} {:>10} {:>8} {:>10} {:>7}\n", "#workers", "density",
             "lost, %", "MiB", "slots", "slot MiB", "time, us", "S/B, us", "of it, %", "again, %", "#wrong");
}

/// An allreduce that was given up has no time.
void print_row(const Case& c, const Outcome& o) {
  const std::string time = o.ended ? fmt::format("{:.1f}", o.seconds * 1e6) : "given up";
  const std::string share = o.ended ? fmt::format("{:.1f}", 100 * o.bound / o.seconds) : "-";
  const std::string again = o.ended ? fmt::format("{:.1f}", 100 * o.repeated) : "-";
  fmt::print("{:>8} {:>8} {:>7} {:>9.3f} {:>6} {:>9.3f} {:>10} {:>10.1f} {:>8} {:>10} {:>7}\n", c.workers,
             c.density, c.loss * 100, static_cast<double>(o.bytes) / (1 << 20), o.slots,
             static_cast<double>(o.slot_bytes) / (1 << 20), time, o.bound * 1e6, share, again, o.wrong);
  std::fflush(stdout);
}

/// Returns whether all sums were right.
bool run(const Arguments& a) {
  bool right = true;
  print_head(a);
  for (const int workers : a.workers) {
    for (const double density : a.densities) {
      for (const double loss : a.losses) {
        const Case c{workers, density, loss / 100};
        const Outcome o = simulate(a.scene, c);
        print_row(c, o);
        if (!o.failure.empty()) fmt::print(stderr, "nzcl_switch_simulation: {}\n", o.failure);
        right = right && o.failure.empty() && o.wrong == 0;
      }
    }
  }
  return right;
}

}  // namespace
}  // namespace nzcl::simulation

int main(int argc, char** argv) {
  using namespace nzcl::simulation;
  CLI::App app{
      "What the switch exchange would do with many ranks on fast links: its state machines, as they are, on "
      "a "
      "simulated network with a clock of its own. The machine's speed changes nothing but how long you "
      "wait.\n"
      "Every result on every rank is compared with a plain sum."};
  app.footer(assumptions());
  Arguments arguments;
  add_cases(app, arguments);
  add_network(app, arguments);
  add_sizes(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    arguments.scene.bits_per_second = arguments.gigabits * 1e9;
    arguments.scene.round_trip = nanoseconds(arguments.round_trip_us * 1e3);
    arguments.scene.limit = nanoseconds(arguments.limit_ms * 1e6);
    return run(arguments) ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "nzcl_switch_simulation: {}\n", error.what());
    return 1;
  }
}

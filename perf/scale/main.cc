// nzcl_scale_simulation: what would an allreduce of thousands of ranks on hundreds of hosts take?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "perf/scale/assumptions.h"
#include "perf/scale/simulation.h"

namespace perf::scale {
namespace {

using nzcl::Algorithm;

struct Arguments {
  Scene scene;
  std::vector<int> ranks{16, 64, 256}, per_host{1};
  std::vector<std::uint64_t> sizes{8, 64 << 10, 1 << 20};
  std::vector<double> densities{1};
  std::vector<Algorithm> algorithms{Algorithm::automatic};
  double delay_us = 2, message_ns = 0, step_us = 40, memory_gib = 0;
};

std::string assumptions() {
  std::string text = "What is assumed:\n";
  for (const char* sentence : kAssumptions) text += fmt::format("- {}\n", sentence);
  return text;
}

void add_cases(CLI::App& app, Arguments& a) {
  app.add_option("-n,--ranks", a.ranks, "Numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  app.add_option("--per-host", a.per_host, "Numbers of ranks on each host")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("-b,--bytes", a.sizes, "Sizes of the tensor; default: 8,64K,1M")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  app.add_option("-d,--density", a.densities, "Shares of the blocks that a rank holds")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  const std::map<std::string, Algorithm> algorithms{{"auto", Algorithm::automatic},
                                                    {"push", Algorithm::push},
                                                    {"doubling", Algorithm::doubling},
                                                    {"merging", Algorithm::merging},
                                                    {"hierarchy", Algorithm::hierarchy}};
  app.add_option("-a,--algorithm", a.algorithms, "auto: as nzcl chooses; default: auto")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(algorithms));
  const std::map<std::string, Overlap> overlaps{{"all", Overlap::all}, {"random", Overlap::random}};
  app.add_option("-o,--overlap", a.scene.overlap,
                 "all: the ranks hold the same blocks; random: each draws its own; default: random")
      ->transform(CLI::CheckedTransformer(overlaps));
  const std::map<std::string, nzcl::SumOrder> orders{{"rank", nzcl::SumOrder::rank},
                                                     {"any", nzcl::SumOrder::any}};
  app.add_option("--sum-order", a.scene.sum_order, "The order of sums, as NZCL_SUM_ORDER; default: rank")
      ->transform(CLI::CheckedTransformer(orders));
  app.add_option("--block", a.scene.block_elements, "Elements of a block, of 4 bytes each")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", a.scene.seed, "What the tensors are drawn from")->capture_default_str();
}

void add_network(CLI::App& app, Arguments& a) {
  app.add_option("-r,--rate", a.scene.gigabits, "Rate of each host's link, in either direction, in Gb/s")
      ->check(CLI::Range(0.001, 1e4))
      ->capture_default_str();
  app.add_option("-t,--delay", a.delay_us, "From host to host without any queue, us")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  app.add_option("--message", a.message_ns, "That each message takes of a link beside its bytes, ns")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--rack", a.scene.rack_hosts, "Hosts at one switch; 0: all of them")
      ->check(CLI::Range(0, 8192))
      ->capture_default_str();
  app.add_option("--oversubscription", a.scene.oversubscription,
                 "How many times the hosts of a rack could send what its link to the spine takes")
      ->check(CLI::Range(1.0, 64.0))
      ->capture_default_str();
  const std::map<std::string, Transport> transports{{"ibverbs", Transport::ibverbs}, {"tcp", Transport::tcp}};
  app.add_option("--transport", a.scene.transport, "Between hosts: ibverbs or tcp; default: ibverbs")
      ->transform(CLI::CheckedTransformer(transports));
}

void add_model(CLI::App& app, Arguments& a) {
  app.add_option("--step", a.step_us, "From the end of a hierarchy's step until the next one begins, us")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_flag("--one-core", a.scene.one_core, "All lanes of a rank share a core");
  app.add_option("--meet", a.scene.most_ranks_that_meet, "The most ranks of a hierarchy that has its meeting")
      ->check(CLI::Range(0, 8192))
      ->capture_default_str();
  app.add_option("--memory", a.memory_gib,
                 "GiB that the simulation may take; 0: three quarters of what is available now")
      ->check(CLI::Range(0.0, 4096.0))
      ->capture_default_str();
  app.add_option("--coarse", a.scene.coarseness,
                 "For how many bytes each byte of values stands, which makes large tensors fit into memory")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
}

/// What the machine has available, in bytes.
double available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  for (double kib = 0; meminfo >> name >> kib; meminfo.ignore(64, '\n')) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

void print_head(const Arguments& a) {
  fmt::print(
      "# {} Gb/s, {} us, blocks of {} float32, {}{}; simulated time\n", a.scene.gigabits, a.delay_us,
      a.scene.block_elements,
      a.scene.overlap == Overlap::all ? "all ranks hold the same blocks" : "each rank draws its blocks",
      a.scene.coarseness > 1 ? fmt::format(", each byte stands for {}", a.scene.coarseness) : "");
  fmt::print("{:>6} {:>6} {:>10} {:>8} {:>10} {:>11} {:>10} {:>10} {:>10} {:>8} {:>9} {:>7}\n", "#ranks",
             "hosts", "bytes", "density", "algorithm", "time, us", "left, KB", "least, KB", "bound, us",
             "of it, %", "messages", "#wrong");
}

/// What came to no end has no time.
void print_row(const Case& c, const Outcome& o) {
  const bool ended = o.failure.empty();
  const std::string time = ended ? fmt::format("{:.1f}", o.seconds * 1e6) : "-";
  const std::string share = ended ? fmt::format("{:.1f}", 100 * o.bound / o.seconds) : "-";
  fmt::print("{:>6} {:>6} {:>10} {:>8} {:>10} {:>11} {:>10.1f} {:>10.1f} {:>10.1f} {:>8} {:>9} {:>7}\n",
             c.ranks, c.hosts, c.bytes, c.density, nzcl::name_of(o.algorithm), time,
             static_cast<double>(o.host_bytes) / 1e3, o.bound_bytes / 1e3, o.bound * 1e6, share, o.messages,
             o.wrong);
  std::fflush(stdout);
}

std::vector<Case> cases_of(const Arguments& a) {
  std::vector<Case> cases;
  for (const int ranks : a.ranks) {
    for (const int per_host : a.per_host) {
      for (const std::uint64_t size : a.sizes) {
        for (const double density : a.densities) {
          for (const Algorithm algorithm : a.algorithms)
            cases.push_back({ranks, (ranks + per_host - 1) / per_host, size, density, algorithm});
        }
      }
    }
  }
  return cases;
}

/// Returns whether all sums were right.
bool run(const Arguments& a) {
  bool right = true;
  print_head(a);
  for (const Case& c : cases_of(a)) {
    const Outcome o = simulate(a.scene, c);
    print_row(c, o);
    if (!o.failure.empty()) fmt::print(stderr, "nzcl_scale_simulation: {}\n", o.failure);
    right = right && o.failure.empty() && o.wrong == 0;
  }
  return right;
}

}  // namespace
}  // namespace perf::scale

int main(int argc, char** argv) {
  using namespace perf::scale;
  CLI::App app{
      "What an allreduce of many ranks on many hosts would take: the library's own state machines, on "
      "simulated links with a clock of their own. The machine's speed changes nothing but how long you "
      "wait.\n"
      "Every result on every rank is compared with a plain sum."};
  app.footer(assumptions());
  Arguments arguments;
  add_cases(app, arguments);
  add_network(app, arguments);
  add_model(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    arguments.scene.delay = seconds(arguments.delay_us * 1e-6);
    arguments.scene.link_message = seconds(arguments.message_ns * 1e-9);
    arguments.scene.step = seconds(arguments.step_us * 1e-6);
    const double memory =
        arguments.memory_gib > 0 ? arguments.memory_gib * (1 << 30) : 0.75 * available_memory();
    arguments.scene.most_memory = static_cast<std::uint64_t>(memory);
    return run(arguments) ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "nzcl_scale_simulation: {}\n", error.what());
    return 1;
  }
}

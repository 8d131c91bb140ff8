// nzcl_info: shows what nzcl finds on this machine, and what it would do there.
#include <fmt/format.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "nzcl/error.h"
#include "nzcl/nzcl.h"
#include "runtime/bootstrap/factory.h"
#include "runtime/bootstrap/random_secret.h"
#include "runtime/gpu/find_gpu.h"
#include "runtime/kernels/targets.h"
#include "runtime/options/help.h"
#include "runtime/options/resolve.h"
#include "runtime/placement/core_distance.h"
#include "runtime/placement/plan.h"
#include "runtime/placement/topology.h"
#include "runtime/plan/link_speed.h"
#include "runtime/tools/explain.h"
#include "verbs/mixed/pair.h"
#include "verbs/transport.h"

#ifdef NZCL_HAVE_XDP
#include "runtime/switch/xdp/kernel_switch.h"
#endif

namespace nzcl {
namespace {

struct Arguments {
  bool markdown = false;
  bool new_secret = false;
  std::string topology;  // "": that of this machine
  int local_ranks = 0;   // 0: the number that the launcher tells, or 1 if it tells none
  /// Size, density and ranks of the allreduce to explain, if one is asked for.
  std::tuple<std::uint64_t, double, int> explained;
  tools::Question question;
};

void print_transports() {
  fmt::print("Transports\n");
  for (const auto& t : verbs::list_transports()) {
    const std::string speed = t.link_gbps > 0 ? fmt::format(", {:g} Gb/s", t.link_gbps) : "";
    fmt::print("  {:<14} {:<4} {}{}\n", t.name, t.available ? "yes" : "no", t.detail, speed);
  }
}

/// The link that this machine's device would have in a communicator of several hosts.
verbs::DeviceOptions way_out(const Options& options) {
  const std::string between = verbs::between_hosts(options.transport);
  return {.transport = between == "auto" ? "tcp" : between,
          .interface = options.interface,
          .one_host = false,
          .numa_node = options.numa_node,
          .gid_index = options.gid_index};
}

void print_link(const Options& options) {
  const verbs::DeviceOptions device = way_out(options);
  const engine::LinkSpeed own = engine::own_link(options.link_gbps, verbs::link_gbps(device));
  fmt::print(
      "\nLink to other hosts, by which exchanges are chosen (the slowest of all members' counts)\n  {}: {}\n",
      device.transport, text_of(engine::slowest_link({own})));
}

/// Whether nzcl_switch can work here.
void print_kernel_switch() {
#ifdef NZCL_HAVE_XDP
  const tools::xdp::Possible possible = tools::xdp::is_possible();
#else
  const struct {
    bool yes;
    const char* detail;
  } possible{false,
             "this build has no nzcl_switch, because clang, bpftool or libbpf was missing, or NZCL_XDP or "
             "NZCL_SWITCH off"};
#endif
  fmt::print("\nSums inside the kernel (XDP, for NZCL_ALGORITHM=switch)\n  {:<3} {}\n",
             possible.yes ? "yes" : "no", possible.detail);
}

void print_gpus() {
  fmt::print("\nGPUs (for memory that is registered as a device's)\n");
  for (const std::string& line : gpu::describe_gpus()) fmt::print("  {}\n", line);
}

void print_kernels() {
  std::string others;
  for (const std::string& target : kernel_targets()) others += " " + target;
  fmt::print("\nKernels\n  {} (usable here:{})\n", active_kernel_target(), others);
}

void print_placement(const Arguments& arguments, const Options& options,
                     const bootstrap::LaunchEnvironment& launch) {
  const auto topology = arguments.topology.empty() ? placement::read_topology()
                                                   : placement::read_saved_topology(arguments.topology);
  fmt::print("\nTopology\n  {}; cpus {}\n", topology.text, topology.cpus);
  const int ranks = arguments.local_ranks > 0 ? arguments.local_ranks : std::max(1, launch.local_size);
  fmt::print("\nPlacement of {} rank(s) on these cores\n", ranks);
  for (int r = 0; r < ranks; ++r) {
    const auto plan = placement::plan(topology, {.local_rank = r,
                                                 .local_ranks = ranks,
                                                 .lanes = options.lanes,
                                                 .scan_threads = options.tune.scan_threads,
                                                 .pin = options.pin,
                                                 .node = options.numa_node});
    fmt::print("  rank {}: {}\n", r, plan.text);
  }
}

/// The first and the last of the cores that this process may use.
void print_core_distance() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  fmt::print("\nDistance of cores (staging=auto measures it between the ranks as they run)\n");
  if (cpus.size() < 2) {
    fmt::print("  one core\n");
    return;
  }
  fmt::print("  {}\n", placement::describe_core_distance({cpus.front(), cpus.back()}));
}

void print_bootstrap(const Options& options, const bootstrap::LaunchEnvironment& launch) {
  fmt::print("\nBootstrap\n  launcher: {}{}\n", launch.launcher.empty() ? "none found" : launch.launcher,
             launch.pmix ? ", with PMIx" : "");
  try {
    const auto choice = bootstrap::choose(options, launch, bootstrap::Role::worker, -1);
    using Kind = bootstrap::Choice::Kind;
    switch (choice.kind) {
      case Kind::self:
        fmt::print("  a single rank\n");
        break;
      case Kind::socket:
        fmt::print("  position {} of {}, socket {}:{} ({})\n", choice.position, choice.size, choice.host,
                   choice.port, choice.why);
        break;
      case Kind::file:
        fmt::print("  position {} of {}, file {}\n", choice.position, choice.size,
                   choice.path.empty() ? choice.why : choice.path);
        break;
      case Kind::pmix:
        fmt::print("  through PMIx\n");
        break;
    }
  } catch (const Error& e) {
    fmt::print("  {}\n", e.what());
  }
}

void print_options(const Resolved& resolved) {
  fmt::print("\nOptions\n{}", describe_options(resolved));
  for (const std::string& warning : resolved.warnings) fmt::print("  warning: {}\n", warning);
}

void print_explanation(const Arguments& arguments, const Options& options) {
  const auto topology = arguments.topology.empty() ? placement::read_topology()
                                                   : placement::read_saved_topology(arguments.topology);
  tools::Question question = arguments.question;
  std::tie(question.bytes, question.density, question.ranks) = arguments.explained;
  if (question.cores == 0) question.cores = static_cast<int>(topology.cores.size());
  question.cache_bytes = topology.cache_bytes;
  if (question.hosts > 1) question.device_gbps = verbs::link_gbps(way_out(options));
  fmt::print("{}", tools::explain(question, options));
}

void add_explain(CLI::App& app, Arguments& arguments) {
  tools::Question& question = arguments.question;
  CLI::Option* explain =
      app.add_option(
             "--explain", arguments.explained,
             "Print only how nzcl would exchange such an allreduce, and why, with the predicted time of "
             "each way; for example 64M,0.1,4. The density is the request's expected_density, and 0 if it "
             "has "
             "none")
          ->delimiter(',')
          ->type_name("SIZE,DENSITY,RANKS")
          ->transform(CLI::AsSizeValue(false).application_index(0))
          ->check(CLI::Range(0.0, 1.0).application_index(1))
          ->check(CLI::Range(1, 4096).application_index(2));
  const auto with_explain = [&](const char* name, auto& value, const char* help, auto least, auto most) {
    app.add_option(name, value, help)->needs(explain)->check(CLI::Range(least, most))->capture_default_str();
  };
  with_explain("--hosts", question.hosts, "Hosts that the ranks are spread over", 1, 4096);
  with_explain("--cores", question.cores, "Cores of each host; 0: as many as this machine has", 0, 65536);
  with_explain("--block", question.block_elems, "Elements of a block", std::uint64_t{1},
               std::uint64_t{1} << 32);
  app.add_flag("--packed", question.packed, "The result is packed, as a stream's may be")->needs(explain);
  std::map<std::string, DataType> types;
  std::string names;
  for (int t = 0; t < kDataTypes; ++t) {
    types.emplace(name_of(static_cast<DataType>(t)), static_cast<DataType>(t));
    names += (t == 0 ? "" : ", ") + std::string(name_of(static_cast<DataType>(t)));
  }
  app.add_option("--type", question.type, "Type of the elements; default: float32")
      ->needs(explain)
      ->transform(CLI::CheckedTransformer(types).description(names));
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Shows transports (and why one is not available), kernels, topology, placement, bootstrap, and options "
      "with their origins.",
      "nzcl_info");
  app.add_flag("--options-markdown", arguments.markdown, "Print only the table of options, in Markdown");
  app.add_flag("--new-secret", arguments.new_secret, "Print only a new random text for NZCL_SECRET");
  app.add_option("--topology", arguments.topology,
                 "Plan for another machine: a file saved by lstopo (*.xml), or a description such as "
                 "\"pack:2 [numa] core:16 pu:2\"");
  app.add_option("--local-ranks", arguments.local_ranks,
                 "The number of ranks to plan for; default: what the launcher says, else 1")
      ->check(CLI::Range(1, 4096));
  add_explain(app, arguments);
  CLI11_PARSE(app, argc, argv);
  if (arguments.markdown) {
    fmt::print("{}", options_markdown());
    return 0;
  }
  if (arguments.new_secret) {
    fmt::print("{}\n", bootstrap::random_secret());
    return 0;
  }
  const Resolved resolved = resolve({}, process_environment, process_variables());
  if (app.count("--explain") > 0) {
    print_explanation(arguments, resolved.options);
    return 0;
  }
  const auto launch = bootstrap::read_launch_environment(process_environment);
  fmt::print("nzcl {}\n\n", nzclGetVersion());
  print_transports();
  print_link(resolved.options);
  print_kernel_switch();
  print_kernels();
  print_gpus();
  print_placement(arguments, resolved.options, launch);
  if (arguments.topology.empty()) print_core_distance();
  print_bootstrap(resolved.options, launch);
  print_options(resolved);
  return 0;
}

}  // namespace
}  // namespace nzcl

int main(int argc, char** argv) {
  try {
    return nzcl::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nzcl_info: %s\n", e.what());
    return 1;
  }
}

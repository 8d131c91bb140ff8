// nzcl_switch: a dedicated aggregator that sums inside the kernel. It joins one communicator as
// nzcl_aggregator does, and leaves the packets to a program at network interfaces.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>

#include "nzcl/communicator.h"
#include "nzcl/options.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/factory.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "runtime/options/validate.h"
#include "runtime/switch/port.h"
#include "runtime/switch/switch_wing.h"
#include "runtime/switch/tuning.h"
#include "runtime/switch/xdp/kernel_switch.h"

namespace nzcl::tools::xdp {
namespace {

struct Arguments {
  Settings settings;
  int index = -1;
  std::string pass;
};

void add_options(CLI::App& app, Arguments& a) {
  CLI::Option* interface =
      app.add_option("--interface", a.settings.interfaces,
                     "Network interfaces through which the ranks' packets come, one rank behind each")
          ->delimiter(',');
  app.add_option("--index", a.index,
                 "The number of this aggregator, from 0; not needed if one mpirun or srun starts workers and "
                 "aggregators together")
      ->check(CLI::Range(0, 1023));
  const std::map<std::string, Mode> modes{
      {"auto", Mode::automatic}, {"native", Mode::native}, {"generic", Mode::generic}};
  app.add_option("--mode", a.settings.mode,
                 "How the program is attached. native: in the driver; on veth, this needs an MTU of at most "
                 "3506, and a program at the other ends (--pass). generic: everywhere, up to an MTU of 9000. "
                 "auto: native where the driver can")
      ->transform(CLI::CheckedTransformer(modes));
  app.add_option("--slots", a.settings.slots, "Slots of each pool")
      ->check(CLI::Range(engine::slot_pool::kLeastSlots, engine::slot_pool::kMostSlots))
      ->capture_default_str();
  app.add_option(
         "--pools", a.settings.pools,
         "Pools that may be in use at the same time. A communicator, and each part that is split off, "
         "needs two for each lane")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  app.add_option("--drop", a.settings.drop_one_of,
                 "For tests of loss: drop one of so many packets of the ranks");
  app.add_flag("--times", a.settings.times,
               "Measure how long the programs run, on all cores together, and print it at the end");
  app.add_option("--pass", a.pass,
                 "Only attach a program to this interface that passes everything on, and leave it there. The "
                 "workers' ends of veth pairs need it if the switch's ends are native")
      ->excludes(interface);
}

void serve(const Arguments& a) {
  Options options = options_from_environment();
  options.algorithm = Algorithm::switch_;
  validate(options);
  set_log_level(options.log_level);
  const auto in_kernel = KernelSwitch::load(a.settings);
  fmt::print("nzcl_switch: sums at {}; {} pools of {} slots\n", in_kernel->describe(), a.settings.pools,
             a.settings.slots);
  std::fflush(stdout);
  const auto tell_counts = [&] {
    const Counts c = in_kernel->counts();
    fmt::print(
        "nzcl_switch: {} contributions, {} sums; {} answered again, {} answered to wait, {} of these "
        "elsewhere than at their rank's place; {} late, {} refused, {} not whole; {} moves of ranks, {} "
        "results sent where no rank was\n",
        c.added, c.completed, c.answered, c.waiting, c.elsewhere, c.late, c.refused, c.not_whole, c.moved,
        c.stray);
    if (a.settings.times)
      fmt::print("nzcl_switch: the programs ran for {:.3f} s\n",
                 std::chrono::duration<double>(c.run_time).count());
  };
  try {
    using bootstrap::Role;
    comm::CommunicatorCore::join(options, bootstrap::make_meeting(options, Role::aggregator, a.index),
                                 {Role::aggregator, a.index, engine::slot_pool::make_switch_wing(in_kernel)})
        ->serve();
  } catch (...) {
    tell_counts();
    throw;
  }
  tell_counts();
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Serves one communicator, and all that are split from it, as a dedicated aggregator whose sums are "
      "made "
      "by a program in the kernel, at network interfaces: the packets of the switch exchange never leave it. "
      "The ranks need NZCL_ALGORITHM=switch and NZCL_AGGREGATORS=1. Needs root. All other options are as for "
      "workers (nzcl_info shows them, and whether this is possible here).\nExit status: 0: the workers have "
      "left; 1: a communicator has failed.",
      "nzcl_switch");
  add_options(app, arguments);
  CLI11_PARSE(app, argc, argv);
  if (!arguments.pass.empty()) {
    pass_everything(arguments.pass);
    return 0;
  }
  if (arguments.settings.interfaces.empty()) {
    std::fprintf(stderr,
                 "nzcl_switch: --interface A,B,... is missing: where do the ranks' packets come in?\n");
    return 1;
  }
  serve(arguments);
  return 0;
}

}  // namespace
}  // namespace nzcl::tools::xdp

int main(int argc, char** argv) {
  try {
    return nzcl::tools::xdp::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nzcl_switch: %s\n", e.what());
    return 1;
  }
}

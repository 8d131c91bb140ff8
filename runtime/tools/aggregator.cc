// nzcl_aggregator: the program of a dedicated aggregator, which serves one communicator, and those that are
// split from it, until their workers leave.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "nzcl/communicator.h"

int main(int argc, char** argv) {
  int index = -1;
  bool slot_pools = false;
  CLI::App app(
      "Serves one communicator as a dedicated aggregator, and all that are split from it, until the workers "
      "have "
      "left them. A communicator that meets by itself needs aggregators of its own, with its NZCL_SESSION. "
      "Workers and aggregators must have the same "
      "value of NZCL_AGGREGATORS, the number of aggregators. All other options are as for workers (nzcl_info "
      "shows them).\nExit status: 0: the workers have left; 1: a communicator has failed.",
      "nzcl_aggregator");
  app.add_option("--index", index,
                 "The number of this aggregator, from 0; not needed if one mpirun or srun starts workers and "
                 "aggregators together")
      ->check(CLI::Range(0, 1023));
  app.add_flag(
      "--switch", slot_pools,
      "Sum packets in slot pools; the same as NZCL_ALGORITHM=switch, which the workers must have. As many "
      "cores as NZCL_LANES says share the slots");
  CLI11_PARSE(app, argc, argv);
  try {
    nzcl::Options options = nzcl::options_from_environment();
    if (slot_pools) options.algorithm = nzcl::Algorithm::switch_;
    nzcl::serve_aggregator(options, index);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nzcl_aggregator: %s\n", e.what());
    return 1;
  }
}

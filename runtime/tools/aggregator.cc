// nzcl_aggregator: a dedicated aggregator's process. Serves one communicator until its workers leave.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "nzcl/communicator.h"

int main(int argc, char** argv) {
  int index = -1;
  CLI::App app(
      "Serves as a dedicated aggregator until the workers leave. NZCL_AGGREGATORS says how many there are, "
      "on workers and aggregators alike; the "
      "rest of the settings are those of the workers (nzcl_info shows them).\nExit status: 0 = the workers "
      "left; 1 = the communicator failed.",
      "nzcl_aggregator");
  app.add_option("--index", index,
                 "Which aggregator this is, from 0; not needed where one mpirun or srun starts workers and "
                 "aggregators together")
      ->check(CLI::Range(0, 1023));
  CLI11_PARSE(app, argc, argv);
  try {
    nzcl::serve_aggregator(nzcl::options_from_environment(), index);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nzcl_aggregator: %s\n", e.what());
    return 1;
  }
}

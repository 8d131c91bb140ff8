// nzcl_core_to_core: how far apart are two cores?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <nlohmann/json.hpp>

#include "runtime/placement/core_distance.h"

int main(int argc, char** argv) {
  CLI::App app{
      "How far apart two cores of this host are: the round trip of a cache line, and the GB/s of messages "
      "that one core stores and the other one reads.\n"
      "Cores that share a cache have a round trip of some 60 ns; then messages are read fastest out of the "
      "writer's cache. Cores that share none have one of 200 ns and more; then messages are read fastest "
      "that were streamed past the caches."};
  nzcl::placement::CpuPair pair;
  bool json = false, brief = false;
  app.add_option("first", pair.first, "Number of a logical CPU")->capture_default_str();
  app.add_option("second", pair.second, "Number of another one")->capture_default_str();
  app.add_flag("--round_trip_only", brief, "Do not measure messages, which takes some 50 ms");
  app.add_flag("--json", json, "Print JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    using nzcl::placement::Storing;
    if (!brief && !json) {
      fmt::print("{}\n", nzcl::placement::describe_core_distance(pair));
      return 0;
    }
    nlohmann::ordered_json found{{"round_trip_ns", nzcl::placement::round_trip_ns(pair)}};
    if (!brief) {
      found["cached_gbs"] = nzcl::placement::message_gbs(pair, Storing::cached);
      found["streamed_gbs"] = nzcl::placement::message_gbs(pair, Storing::streamed);
    }
    if (json) {
      fmt::print("{}\n", found.dump());
      return 0;
    }
    fmt::print("round trip between CPUs {} and {}: {:.0f} ns\n", pair.first, pair.second,
               found["round_trip_ns"].get<double>());
  } catch (const std::exception& error) {
    fmt::print(stderr, "nzcl_core_to_core: {}\n", error.what());
    return 1;
  }
}

// The main program of nzcl_write_bw and nzcl_write_lat. It is compiled once for each.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nzcl/error.h"
#include "perf/write/bandwidth.h"
#include "perf/write/latency.h"

namespace perf::write {
namespace {

using nlohmann::ordered_json;

constexpr const char* kRule =
    "---------------------------------------------------------------------------------------";

void print_head(const Session& session) {
  const Settings& s = session.settings();
  const bool bandwidth = s.test == Test::bandwidth;
  fmt::print("{}\n{:>40} {}{} Test\n", kRule, "RDMA_Write",
             bandwidth && s.bidirectional ? "Bidirectional " : "", bandwidth ? "BW" : "Latency");
  fmt::print(" Transport       : {:<20} Device          : {}\n", s.transport, session.device().name());
  if (bandwidth)
    fmt::print(" Number of qps   : {:<20} TX depth        : {}\n Post list       : {:<20} ", s.queue_pairs,
               s.depth, s.post_list);
  fmt::print(" Immediate       : {:<20} Waiting         : {}\n{}\n", s.immediate ? "yes" : "no",
             s.events ? "events" : "polling", kRule);
  if (bandwidth) {
    const char* unit = s.gbits ? "Gb/sec" : "MiB/sec";
    fmt::print(" {:<10} {:<14} {:<19} {:<21} {}\n", "#bytes", "#iterations", fmt::format("BW peak[{}]", unit),
               fmt::format("BW average[{}]", unit), "MsgRate[Mpps]");
  } else {
    fmt::print(" {:<10} {:<14} {:<12} {:<12} {:<16} {:<12} {:<14} {:<20} {}\n", "#bytes", "#iterations",
               "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]",
               "99% percentile[usec]", "99.9% percentile[usec]");
  }
  std::fflush(stdout);
}

ordered_json report(const Settings& s, const BandwidthResult& r) {
  const double unit = s.gbits ? 1e9 / 8 : 1 << 20;
  fmt::print(" {:<10} {:<14} {:<19.2f} {:<21.2f} {:.6f}\n", r.size, r.iterations, r.peak / unit,
             r.average / unit, r.messages / 1e6);
  return {{"MsgSize", r.size},
          {"n_iterations", r.iterations},
          {"BW_peak", r.peak / unit},
          {"BW_average", r.average / unit},
          {"MsgRate", r.messages / 1e6}};
}

ordered_json report(const Settings&, const LatencyResult& r) {
  fmt::print(" {:<10} {:<14} {:<12.2f} {:<12.2f} {:<16.2f} {:<12.2f} {:<14.2f} {:<20.2f} {:.2f}\n", r.size,
             r.iterations, r.min, r.max, r.typical, r.average, r.stdev, r.p99, r.p999);
  return {{"MsgSize", r.size},      {"n_iterations", r.iterations}, {"t_min", r.min},     {"t_max", r.max},
          {"t_typical", r.typical}, {"t_avg", r.average},           {"t_stdev", r.stdev}, {"t_99%", r.p99},
          {"t_99.9%", r.p999}};
}

void write_json(const Session& session, const ordered_json& results) {
  const Settings& s = session.settings();
  const ordered_json all{{"test_info",
                          {{"test", s.test == Test::bandwidth ? "RDMA_Write_BW" : "RDMA_Write_Latency"},
                           {"transport", s.transport},
                           {"device", session.device().name()},
                           {"unit", s.test == Test::latency ? "usec"
                                    : s.gbits               ? "Gb/sec"
                                                            : "MiB/sec"},
                           {"qp", s.queue_pairs},
                           {"tx_depth", s.depth},
                           {"post_list", s.post_list},
                           {"with_imm", s.immediate},
                           {"bidirectional", s.bidirectional}}},
                         {"results", results}};
  std::ofstream file(s.json_file);
  file << all.dump(2) << '\n';
  if (!file.flush()) throw nzcl::Error(nzcl::ErrorCode::system, "cannot write " + s.json_file);
}

int run(const Settings& settings) {
  Session session(settings);
  print_head(session);
  ordered_json results = ordered_json::array();
  for (const std::uint32_t size : settings.sizes()) {
    results.push_back(settings.test == Test::bandwidth
                          ? report(session.settings(), measure_bandwidth(session, size))
                          : report(session.settings(), measure_latency(session, size)));
    std::fflush(stdout);
  }
  fmt::print("{}\n", kRule);
  if (settings.write_json) write_json(session, results);
  return 0;
}

}  // namespace
}  // namespace perf::write

int main(int argc, char** argv) {
  try {
    const auto command = perf::write::parse_command_line(perf::write::Test::NZCL_WRITE_TEST, argc, argv);
    return command.exit_status ? *command.exit_status : perf::write::run(command.settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
    return 1;
  }
}

#include "perf/write/settings.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace perf::write {

using nlohmann::json;

std::vector<std::uint32_t> Settings::sizes() const {
  if (!all_sizes) return {size};
  std::vector<std::uint32_t> all;
  for (std::uint32_t s = 2; s <= 1u << 23; s *= 2) all.push_back(s);
  return all;
}

std::string Settings::shared() const {
  return json{{"test", test == Test::bandwidth ? "bandwidth" : "latency"},
              {"transport", transport},
              {"size", size},
              {"all", all_sizes},
              {"iters", iterations},
              {"duration", duration_s},
              {"qp", queue_pairs},
              {"tx-depth", depth},
              {"with_imm", immediate},
              {"bidirectional", bidirectional},
              {"rdma_cm", device.rdma_cm}}
      .dump();
}

std::string differences(const std::string& here, const std::string& there) {
  const json a = json::parse(here), b = json::parse(there);
  std::string text;
  for (const auto& [name, value] : a.items()) {
    const json other = b.value(name, json());
    if (other != value)
      text +=
          fmt::format("{}{}: {} here, {} there", text.empty() ? "" : "; ", name, value.dump(), other.dump());
  }
  return text;
}

namespace {

/// What the command line says in another form than the settings.
struct Texts {
  bool ignored = false;
  std::uint32_t inline_bytes = 0;
  int mtu = 0;
};

/// Where the other side is, and over which device it is reached.
void add_device(CLI::App& app, Settings& s) {
  app.add_option("host", s.host, "The server; none: be the server")->capture_default_str();
  app.add_option(
      "--transport", s.transport,
      "cma, shm, tcp, ibverbs or a libfabric provider; default: ibverbs with an RDMA device, else tcp");
  app.add_option("-d,--ib-dev", s.device.interface,
                 "Device (ibverbs: mlx5_0, mlx5_0:1, interface or address; tcp: interface or address)");
  app.add_option("-x,--gid-index", s.device.gid_index,
                 "ibverbs: entry of the GID table; -1: RoCEv2, IPv4 first")
      ->check(CLI::Range(-1, 255));
  app.add_option("-p,--port", s.port, "TCP port of the server")->check(CLI::Range(1, 65535));
}

void add_sizes(CLI::App& app, Settings& s) {
  app.add_option("-s,--size", s.size, "Bytes per write")->check(CLI::Range(1, 1 << 30));
  app.add_flag("-a,--all", s.all_sizes, "All sizes from 2 to 2^23");
  app.add_option("-n,--iters", s.iterations, "Writes per size")
      ->check(CLI::Range(std::uint64_t{5}, std::uint64_t{1} << 40));
}

/// How the device is set up.
void add_device_settings(CLI::App& app, Settings& s, Texts& t) {
  app.add_option("-I,--inline_size", t.inline_bytes,
                 "ibverbs: writes up to so many bytes go inline; 0: nzcl's own choice")
      ->check(CLI::Range(0, 4096));
  app.add_option("-m,--mtu", t.mtu, "ibverbs: path MTU; 0: the port's active one")
      ->check(CLI::IsMember({0, 256, 512, 1024, 2048, 4096}));
  app.add_flag("-R,--rdma_cm", s.device.rdma_cm, "ibverbs: connect through rdma_cm");
}

/// How both sides wait, and where the results go.
void add_habits(CLI::App& app, Settings& s, Texts& t) {
  app.add_flag("-e,--events", s.events, "Sleep until something arrives, instead of polling");
  app.add_flag("--with_imm", s.immediate, "Every write carries an immediate");
  app.add_flag("-F,--CPU-freq", t.ignored,
               "Accepted and ignored: clocks do not depend on the CPU's frequency here");
  app.add_flag("--out_json", s.write_json, "Write the results as JSON");
  app.add_option("--out_json_file", s.json_file, "to this file");
}

void add_bandwidth(CLI::App& app, Settings& s) {
  app.add_option("-D,--duration", s.duration_s, "Run each size for so many seconds instead of -n writes")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("-q,--qp", s.queue_pairs, "Endpoints side by side")->check(CLI::Range(1, 256));
  app.add_option("-t,--tx-depth", s.depth, "Writes under way per endpoint")->check(CLI::Range(1, 4096));
  app.add_option("-l,--post_list", s.post_list, "Writes per post")->check(CLI::Range(1, 64));
  app.add_flag("-b,--bidirectional", s.bidirectional, "Both sides write; the sum is shown");
  app.add_flag("--report_gbits", s.gbits, "Gb/s instead of MiB/s");
}

}  // namespace

CommandLine parse_command_line(Test test, int argc, char** argv) {
  const bool bandwidth = test == Test::bandwidth;
  Settings s;
  s.test = test;
  if (!bandwidth) s.size = 2, s.iterations = 1000;
  Texts t;

  CLI::App app(bandwidth
                   ? "Bandwidth of one-sided writes over any of nzcl's transports, with perftest's habits.\n"
                     "Start it without a host on one side, then with that side's host on the other."
                   : "Latency of one-sided writes over any of nzcl's transports, with perftest's habits.\n"
                     "Start it without a host on one side, then with that side's host on the other.",
               bandwidth ? "nzcl_write_bw" : "nzcl_write_lat");
  app.set_help_flag("-h,--help", "Print this help message and exit");
  app.option_defaults()->always_capture_default();
  add_device(app, s);
  add_sizes(app, s);
  add_device_settings(app, s, t);
  add_habits(app, s, t);
  if (bandwidth) add_bandwidth(app, s);
  try {
    app.parse(argc, argv);
    if (s.events && !bandwidth && !s.immediate)
      throw CLI::ValidationError("-e", "without --with_imm nothing arrives to wake up for");
    if (s.post_list > s.depth) throw CLI::ValidationError("-l", "more than --tx-depth");
  } catch (const CLI::ParseError& error) {
    return {s, app.exit(error) == 0 ? 0 : 2};
  }
  s.device.inline_bytes = t.inline_bytes;
  s.device.mtu = t.mtu;
  return {s, std::nullopt};
}

}  // namespace perf::write

// Command line of nzcl_write_bw and nzcl_write_lat. Flags that perftest has mean what they mean there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verbs/transport.h"

namespace perf::write {

enum class Test { bandwidth, latency };

struct Settings {
  Test test = Test::bandwidth;
  std::string host;       // of the server; empty: this is the server
  std::string transport;  // empty: ibverbs if this host has an RDMA device, else tcp
  nzcl::verbs::DeviceOptions device;
  int port = 18515;
  std::uint32_t size = 65536;
  bool all_sizes = false;
  std::uint64_t iterations = 5000;
  double duration_s = 0;  // above 0: the time that a size runs, instead of a number of iterations
  int queue_pairs = 1;
  int depth = 128;  // writes in flight per queue pair
  int post_list = 1;
  bool immediate = false;
  bool events = false;
  bool bidirectional = false;
  bool gbits = false;
  bool write_json = false;
  std::string json_file = "perftest_out.json";

  bool server() const { return host.empty(); }
  /// With -a the powers of two up to 2^23, as in perftest; otherwise the one size.
  std::vector<std::uint32_t> sizes() const;
  /// The options on which both sides must agree, as JSON.
  std::string shared() const;
};

struct CommandLine {
  Settings settings;
  std::optional<int> exit_status;  // the command line has been answered already
};
CommandLine parse_command_line(Test test, int argc, char** argv);

/// The options that differ, with both values, such as "size: 65536 here, 4096 there". Empty if none differs.
std::string differences(const std::string& here, const std::string& there);

}  // namespace perf::write

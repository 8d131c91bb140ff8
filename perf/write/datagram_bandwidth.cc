// nzcl_datagram_bw: bandwidth of unreliable datagrams over UDP or UD, with perftest's habits. The client
// sends, and the server says again and again how far it has got, so that no more than --tx-depth are under
// way.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "perf/write/meeting.h"
#include "runtime/bootstrap/host_address.h"
#include "verbs/datagram/datagram.h"

namespace perf::write {
namespace {

using namespace nzcl;  // NOLINT: a program, not a header
using bootstrap::Clock;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kBatch = 32;
/// After this time without news from the server, what is under way counts as lost.
constexpr milliseconds kPatience{50};
constexpr verbs::PeerId kServer = 0, kClient = 1;

struct Settings {
  std::string host;  // of the server; empty: this is the server
  std::string kind = "udp";
  std::string device;
  int port = 18515;
  std::uint32_t size = 1024;
  std::uint64_t iterations = 100000;
  std::uint64_t depth = 128;

  verbs::PeerId self() const { return host.empty() ? kServer : kClient; }
  verbs::PeerId peer() const { return 1 - self(); }
};

/// The first bytes of every datagram.
struct Numbers {
  std::uint64_t number = 0;    // of the client's datagram; from the server: the next one that it expects
  std::uint64_t received = 0;  // from the server: how many have come
};

/// Opens a port and connects it to the other side's.
std::unique_ptr<verbs::DatagramPort> open(const Settings& s, Meeting& meeting) {
  const auto say = [&](const json& mine) { return json::parse(meeting.exchange(mine.dump())); };
  const json mine{{"kind", s.kind}, {"size", s.size}, {"iters", s.iterations}};
  const json other = say({{"options", mine}, {"host", bootstrap::host_id()}});
  if (other.at("options") != mine)
    throw Error(ErrorCode::mismatch, "the two sides were given different options: " + mine.dump() +
                                         " here, " + other.at("options").dump() + " there");
  verbs::DatagramOptions options{.kind = s.kind == "ud" ? verbs::DatagramKind::ud : verbs::DatagramKind::udp,
                                 .interface = s.device};
  options.one_host = other.at("host") == bootstrap::host_id();
  options.device.interface = s.device;
  // If a host has several devices, the two sides take different ones.
  options.device.local_rank = options.one_host ? static_cast<int>(s.self()) : 0;
  auto port = verbs::open_datagram_port(options);
  if (s.size > port->max_bytes())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("-s {}: datagrams have at most {} bytes here", s.size, port->max_bytes()));
  std::vector<std::string> addresses(2);
  addresses[s.peer()] = say(port->address()).get<std::string>();
  port->connect(addresses);
  say("connected");
  return port;
}

/// The server's side: takes what comes, and answers each batch.
void receive_all(verbs::DatagramPort& port, const Settings& s) {
  Numbers answer;
  std::array<verbs::ArrivedDatagram, kBatch> arrived;
  auto last = Clock::now();
  while (answer.number < s.iterations || Clock::now() - last < 2 * kPatience) {
    const std::size_t n = port.receive(arrived);
    for (std::size_t i = 0; i < n; ++i) {
      Numbers theirs;
      std::memcpy(&theirs, arrived[i].bytes.data(), sizeof theirs);
      answer.number = std::max(answer.number, theirs.number + 1);
      ++answer.received;
    }
    if (n == 0) {
      if (Clock::now() - last > seconds(30)) throw Error(ErrorCode::timeout, "nothing came for 30 s");
      continue;
    }
    last = Clock::now();
    const verbs::Datagram d{kClient, std::as_bytes(std::span(&answer, 1))};
    port.send({&d, 1});
  }
}

struct Result {
  double seconds = 0;
  std::uint64_t received = 0;
};

/// The client's side. The last datagram is sent until it has been answered.
Result send_all(verbs::DatagramPort& port, const Settings& s) {
  std::vector<std::byte> bytes(kBatch * s.size);
  std::array<verbs::Datagram, kBatch> batch;
  std::array<verbs::ArrivedDatagram, kBatch> arrived;
  Numbers heard;
  std::uint64_t next = 0;
  const auto begin = Clock::now();
  auto last = begin;
  while (heard.number < s.iterations) {
    std::size_t n = 0;
    for (; n < kBatch && next + n < s.iterations && next + n < heard.number + s.depth; ++n) {
      const std::span packet = std::span(bytes).subspan(n * s.size, s.size);
      const Numbers mine{next + n, 0};
      std::memcpy(packet.data(), &mine, sizeof mine);
      batch[n] = {kServer, packet};
    }
    next += port.send(std::span(batch).first(n));
    const std::size_t came = port.receive(arrived);
    for (std::size_t i = 0; i < came; ++i) {
      Numbers theirs;
      std::memcpy(&theirs, arrived[i].bytes.data(), sizeof theirs);
      if (theirs.received > heard.received) heard = theirs;
    }
    const auto now = Clock::now();
    if (came > 0) last = now;
    if (now - last < kPatience) continue;
    if (now - last > seconds(30)) throw Error(ErrorCode::timeout, "the server did not answer for 30 s");
    heard.number = next;  // the rest is lost
    if (next == s.iterations) heard.number = --next;
  }
  return {std::chrono::duration<double>(Clock::now() - begin).count(), heard.received};
}

int run(const Settings& s) {
  Meeting meeting({s.host, s.port});
  const auto port = open(s, meeting);
  if (s.self() == kServer) {
    receive_all(*port, s);
  } else {
    const Result r = send_all(*port, s);
    const double rate = static_cast<double>(r.received) / r.seconds;
    const std::uint64_t lost = s.iterations - std::min(s.iterations, r.received);
    fmt::print(" {:<10} {:<14} {:<21} {:<15} {}\n", "#bytes", "#iterations", "BW average[MiB/sec]",
               "MsgRate[Mpps]", "lost");
    fmt::print(" {:<10} {:<14} {:<21.2f} {:<15.6f} {}\n", s.size, s.iterations, rate * s.size / (1 << 20),
               rate / 1e6, lost);
  }
  return 0;
}

}  // namespace
}  // namespace perf::write

int main(int argc, char** argv) {
  perf::write::Settings s;
  CLI::App app(
      "Bandwidth of unreliable datagrams, which the switch exchange of nzcl uses.\n"
      "Start it without a host on one side, then with that side's host on the other.",
      "nzcl_datagram_bw");
  app.option_defaults()->always_capture_default();
  app.add_option("host", s.host, "The server; none: be the server")->capture_default_str();
  app.add_option("--kind", s.kind, "udp, or ud: a UD queue pair of an RDMA device")
      ->check(CLI::IsMember({"udp", "ud"}));
  app.add_option("-d,--ib-dev", s.device, "ud: device (mlx5_0, mlx5_0:1); udp: interface or address");
  app.add_option("-p,--port", s.port, "TCP port of the server")->check(CLI::Range(1, 65535));
  app.add_option("-s,--size", s.size, "Bytes of a datagram")->check(CLI::Range(16, 65507));
  app.add_option("-n,--iters", s.iterations, "Datagrams")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40));
  app.add_option("-t,--tx-depth", s.depth, "Datagrams under way")->check(CLI::Range(1, 4096));
  try {
    app.parse(argc, argv);
    return perf::write::run(s);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
    return 1;
  }
}

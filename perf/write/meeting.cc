#include "perf/write/meeting.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "nzcl/error.h"
#include "nzcl/options.h"
#include "runtime/bootstrap/factory.h"

namespace perf::write {

using nzcl::Error;
using nzcl::ErrorCode;
using nzcl::bootstrap::Clock;
using std::chrono::duration;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// A server that has just ended may keep its port for a moment.
constexpr seconds kPortPatience{2};
constexpr milliseconds kPortPause{50};

/// Returns 0 if this process may listen there, or else why not.
int error_of_listening(const std::string& host, int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  const bool listens =
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && ::listen(fd, 1) == 0;
  const int error = listens ? 0 : errno;
  ::close(fd);
  return error;
}

/// The meeting itself would wait for the port until its time is over, which is a day.
void require_port(const std::string& host, int port) {
  const auto limit = Clock::now() + kPortPatience;
  int error = error_of_listening(host, port);
  for (; error == EADDRINUSE && Clock::now() < limit; error = error_of_listening(host, port))
    std::this_thread::sleep_for(kPortPause);
  if (error == 0) return;
  const bool taken = error == EADDRINUSE;
  throw Error(
      ErrorCode::unavailable,
      fmt::format("cannot listen on {} port {}: {}{}", host, port, std::generic_category().message(error),
                  taken ? "; end the program that has it, or give both sides another port with -p" : ""));
}

}  // namespace

Meeting::Meeting(Place place) : place_(std::move(place)), patience_(hours(24)) {
  nzcl::Options options = nzcl::options_from_environment();
  options.bootstrap = nzcl::Bootstrap::socket;
  options.rank = place_.server() ? 0 : 1;
  options.world_size = 2;
  options.master_port = place_.port;
  // Without a secret the server listens for this host only.
  options.master_addr = !place_.server() ? place_.host : options.secret.empty() ? "127.0.0.1" : "0.0.0.0";
  if (place_.server()) {
    require_port(options.master_addr, place_.port);
    fmt::print("Waiting for the client on {} port {}{}\n", options.master_addr, place_.port,
               options.secret.empty() ? " (beyond this host: set NZCL_SECRET on both sides)" : "");
    std::fflush(stdout);
  } else {
    patience_ = std::chrono::duration_cast<Clock::duration>(
        duration<double>(std::min(60.0, options.bootstrap_timeout_s)));
  }
  meeting_ = nzcl::bootstrap::make_meeting(options, nzcl::bootstrap::Role::worker, -1);
}

void Meeting::meet() {
  try {
    control_ = nzcl::bootstrap::ControlPlane::join(*meeting_, Clock::now() + patience_);
  } catch (const Error& e) {
    if (place_.server() || e.code() != ErrorCode::timeout) throw;
    throw Error(e.code(),
                fmt::format("no server of this program answers at {} port {}: start it there without a "
                            "host, or, if another program has the port, give both sides another "
                            "one with -p ({})",
                            place_.host, place_.port, e.what()));
  }
  rounds_.emplace(*control_, "exchange", meeting_->size(), meeting_->rank());
  meeting_.reset();
}

std::string Meeting::exchange(const std::string& mine) {
  if (!control_) meet();
  return rounds_->allgather(mine, Clock::now() + patience_).at(place_.server() ? 1 : 0);
}

void Meeting::exchange_within(const std::string& mine, Clock::duration limit) {
  rounds_->allgather(mine, Clock::now() + limit);
}

}  // namespace perf::write

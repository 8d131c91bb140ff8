#include "runtime/bootstrap/factory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>

#include "nzcl/error.h"
#include "runtime/bootstrap/file_meeting.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/local.h"
#include "runtime/bootstrap/pmix_meeting.h"
#include "runtime/bootstrap/socket_meeting.h"

namespace nzcl::bootstrap {
namespace {

[[noreturn]] void reject(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, "bootstrap: " + text);
}

/// To be called before the launcher's numbers are used. The number of a dedicated aggregator is not the
/// launcher's: a launcher of its own may have started it.
void check_numbers(const LaunchEnvironment& e, int aggregators, int number) {
  if (!e.mistake.empty()) reject(e.mistake);
  const std::string both = number < 0 ? contradiction(e, aggregators) : "";
  if (both.empty()) return;
  reject(fmt::format(
      "the environment holds variables of two launchers that contradict each other: {}. Unset those "
      "that are left over; or set NZCL_RANK and NZCL_WORLD_SIZE, which count more",
      both));
}

int port_of(const LaunchEnvironment& e) {
  int port = 0;
  const char* const end = e.master_port.data() + e.master_port.size();
  if (!e.master_port.empty() && std::from_chars(e.master_port.data(), end, port).ptr != end) {
    reject(
        fmt::format("environment variable MASTER_PORT: \"{}\" is not a number. Kubernetes sets it so where a "
                    "service is called \"master\"; set NZCL_MASTER_PORT to a free TCP port of rank 0's host",
                    e.master_port));
  }
  // torchrun's own store listens on MASTER_PORT, so nzcl takes the port after it.
  return e.torchrun && port > 0 ? port + 1 : port;
}

/// Sets this member's position and the size of a meeting that does not bring an order of its own, as PMIx
/// does.
void take_position(Choice& c, const Options& o, const LaunchEnvironment& e, Role role, int number) {
  const bool own_numbers = o.rank >= 0 || o.world_size > 0;
  if (o.world_size != 1 && (o.rank < 0 || o.world_size < 1)) check_numbers(e, o.aggregators, number);
  if (e.counts_everything && !own_numbers) {  // one launch started the workers together with the aggregators
    c.position = e.rank;
    c.size = e.size;
    return;
  }
  const int workers = o.world_size > 0 ? o.world_size : e.size;
  const int rank = o.rank >= 0 ? o.rank : workers == 1 ? 0 : e.rank;
  if (workers < 1 || (role == Role::worker && rank < 0)) {
    reject(
        "nothing says which rank this process is. Start it with mpirun, srun or torchrun; or set RANK, "
        "WORLD_SIZE, MASTER_ADDR and MASTER_PORT; or "
        "NZCL_WORLD_SIZE=1 to run alone");
  }
  c.size = workers + o.aggregators;
  if (role == Role::worker) {
    if (rank >= workers)
      reject(fmt::format("rank {} of {} workers does not exist (they count from 0)", rank, workers));
    c.position = rank;
  } else {
    if (number < 0 || number >= o.aggregators) {
      reject(fmt::format("aggregator {} of {} does not exist: set NZCL_AGGREGATORS, and number them from 0",
                         number, o.aggregators));
    }
    c.position = workers + number;
  }
}

void choose_socket(Choice& c, const Options& o, const LaunchEnvironment& e) {
  c.kind = Choice::Kind::socket;
  c.host = !o.master_addr.empty() ? o.master_addr : e.master_addr;
  c.port = o.master_port;
  c.why = !o.master_addr.empty() ? "from NZCL_MASTER_ADDR" : "from MASTER_ADDR";
  if (c.port == 0) c.port = port_of(e);
  if (c.host.empty() || c.port <= 0 || c.port > 65535)
    reject(
        "a meeting over sockets needs MASTER_ADDR and MASTER_PORT: the host of rank 0, and a free TCP port "
        "there");
}

void choose_automatically(Choice& c, const Options& o, const LaunchEnvironment& e) {
  if (c.size == 1) {
    c.kind = Choice::Kind::self;
  } else if (!o.rendezvous_file.empty()) {
    c.kind = Choice::Kind::file;
    c.path = o.rendezvous_file;
  } else if (!o.master_addr.empty() || !e.master_addr.empty()) {
    choose_socket(c, o, e);
  } else if (e.counts_everything && e.local_size == e.size) {
    c.kind = Choice::Kind::file;
    c.why = "all processes of " + e.launcher + " are on this host";
  } else {
    reject(
        fmt::format("this is process {} of {}, but nothing says where they meet: set MASTER_ADDR and "
                    "MASTER_PORT (with NZCL_SECRET beyond one host), or "
                    "NZCL_RENDEZVOUS_FILE",
                    c.position, c.size));
  }
}

std::string own_name() { return fmt::format("pid {} on {}", ::getpid(), host_name()); }

}  // namespace

Choice choose(const Options& o, const LaunchEnvironment& e, Role role, int number) {
  Choice c;
  const bool told = o.rank >= 0 || o.world_size > 0 || !o.rendezvous_file.empty() || !o.master_addr.empty();
  if (o.bootstrap == Bootstrap::pmix ||
      (o.bootstrap == Bootstrap::automatic && e.pmix && !told && !e.torchrun)) {
    if (!e.pmix)
      reject(
          "no PMIx server started this process (PMIX_RANK is not set): use mpirun.openmpi, or srun "
          "--mpi=pmix");
    c.kind = Choice::Kind::pmix;
    return c;
  }
  take_position(c, o, e, role, number);
  if (o.bootstrap == Bootstrap::socket) {
    choose_socket(c, o, e);
  } else if (o.bootstrap == Bootstrap::file) {
    if (o.rendezvous_file.empty())
      reject("a meeting through a file needs NZCL_RENDEZVOUS_FILE: a path that all ranks can read");
    c.kind = Choice::Kind::file;
    c.path = o.rendezvous_file;
  } else {
    choose_automatically(c, o, e);
  }
  return c;
}

namespace {

std::unique_ptr<Meeting> make_chosen(const Choice& c, const Options& options,
                                     const LaunchEnvironment& environment) {
  MeetingSettings settings{.position = c.position,
                           .size = c.size,
                           .session = options.session,
                           .who = {},
                           .name = {},
                           .point_name = {}};
  const int workers = c.size - options.aggregators;
  const bool by_role = !environment.counts_everything || options.rank >= 0 || options.world_size > 0;
  settings.name = [workers, by_role](int position) {
    if (!by_role) return fmt::format("process {}", position);
    return position < workers ? fmt::format("rank {}", position)
                              : fmt::format("aggregator {}", position - workers);
  };
  settings.who = fmt::format("{} ({})", settings.name(c.position), own_name());
  if (c.kind == Choice::Kind::socket) {
    return make_socket_meeting(std::move(settings),
                               {.host = c.host, .port = c.port, .why = c.why, .secret = options.secret});
  }
  // Without a path, the launcher has said that all processes are on this host.
  return c.path.empty()
             ? make_file_meeting(std::move(settings), job_file(environment.job, options.session), true)
             : make_file_meeting(std::move(settings), c.path);
}

}  // namespace

std::unique_ptr<Meeting> make_meeting(const Options& options, Role role, int number) {
  const LaunchEnvironment environment = read_launch_environment(process_environment);
  const Choice c = choose(options, environment, role, number);
  if (c.kind == Choice::Kind::pmix) return make_pmix_meeting(options.session);
  if (c.size == 1) return make_self_meeting();
  return make_chosen(c, options, environment);
}

std::unique_ptr<Meeting> make_open_meeting(const Options& options) {
  const LaunchEnvironment environment = read_launch_environment(process_environment);
  if (options.rendezvous_file.empty() && options.master_addr.empty() && environment.master_addr.empty())
    reject(
        "nothing says where new ranks find rank 0: set MASTER_ADDR and MASTER_PORT, or "
        "NZCL_RENDEZVOUS_FILE, or pass it to grow()");
  return make_chosen(choose(options, environment, Role::worker, -1), options, environment);
}

}  // namespace nzcl::bootstrap

// nzcl_meeting_bench: a meeting of many members, over real connections of this host. Member 0, the hub, has
// this process to itself, and the other members are threads of another process, so that what the hub takes is
// known.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "perf/meeting/said.h"
#include "runtime/bootstrap/control.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/comm/join/join.h"
#include "runtime/comm/join/whereabouts.h"

namespace perf::meeting {
namespace {

using namespace nzcl;
using bootstrap::Clock;

/// A meeting on the loopback address. The hub hands the port over when it listens.
class LocalMeeting final : public bootstrap::Meeting {
 public:
  LocalMeeting(std::size_t position, std::size_t size, int port, std::function<void(int)> published)
      : Meeting({.position = static_cast<int>(position),
                 .size = static_cast<int>(size),
                 .session = "bench",
                 .who = fmt::format("rank {} (pid {} on node)", position, ::getpid()),
                 .name = [](int i) { return fmt::format("rank {}", i); },
                 .point_name = "this host"}),
        port_(port),
        published_(std::move(published)) {}
  std::variant<bootstrap::HubPlace, bootstrap::NotYet> place(bootstrap::Deadline) override {
    return bootstrap::HubPlace{.addresses = here(), .port = 0, .secret = kSecret};
  }
  void publish(int port, bootstrap::Deadline) override { published_(port); }
  std::variant<bootstrap::MeetingPoint, bootstrap::NotYet> find(bootstrap::Deadline) override {
    return bootstrap::MeetingPoint{.addresses = here(), .port = port_, .secret = kSecret};
  }

 private:
  static constexpr const char* kSecret = "the secret of a measurement";
  static bootstrap::Addresses here() { return {asio::ip::address_v4::loopback()}; }
  const int port_;
  const std::function<void(int)> published_;
};

/// What the threads of this process have taken, in s of processor.
struct Taken {
  double all = 0;
  /// The same without the threads among which a hub divides its connections, of which only the busiest
  /// counts. It is how long all takes where each thread has a core, if these threads and the others never
  /// work at the same time.
  double path = 0;
};

Taken taken_until_now() {
  Taken taken;
  double busiest = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    double nanoseconds = 0;
    std::ifstream(thread.path() / "comm") >> name;
    std::ifstream(thread.path() / "schedstat") >> nanoseconds;  // the time on a processor comes first
    const double s = 1e-9 * nanoseconds;
    taken.all += s;
    if (name == "nzcl-streams") {
      busiest = std::max(busiest, s);
    } else {
      taken.path += s;
    }
  }
  taken.path += busiest;
  return taken;
}

struct Times {
  Clock::time_point met, ready;  // all have been let in, and all are ready
  Taken taken;                   // until all are ready; only on the hub
};

/// The meeting of one member, from its first connection until all are ready, with all that it has to read of
/// what the others say. Members neither open devices nor connect lanes. Leaving is not part of the times.
Times meet(const Job& job, bootstrap::Meeting& meeting) {
  const auto member = static_cast<std::size_t>(meeting.rank());
  const auto deadline = Clock::now() + std::chrono::minutes(5);
  const auto control = bootstrap::ControlPlane::join(meeting, deadline, hello(job, member));
  const auto met = Clock::now();
  bootstrap::Rounds rounds(*control, "meeting", meeting.size(), meeting.rank());
  std::vector<comm::Hello> hellos;
  for (const std::string& text : control->introductions()) hellos.push_back(comm::Hello::decode(text));
  engine::Membership membership = comm::membership_of(hellos, meeting.rank());
  const std::string port = control->open_port(comm::settings_of(membership));
  std::vector<std::string> whereabouts;
  for (const std::string& text : rounds.tell_each(offers(job, member, port), deadline))
    whereabouts.push_back(bootstrap::decode_strings(text).at(1));
  comm::take_whereabouts(whereabouts, *control, membership);
  rounds.allgather("", deadline);
  const auto told = rounds.tell_each(lane_addresses(job, member), deadline);
  for (const std::string& text : told) comm::LaneAddresses::decode(text, job.lanes, "a member");
  rounds.allgather("ready", deadline);
  const Times times{.met = met, .ready = Clock::now(), .taken = member == 0 ? taken_until_now() : Taken()};
  if (!control->leave(deadline)) throw std::runtime_error("the members could not leave");
  control->quiesced();
  control->wait_quiesced(deadline);
  return times;
}

/// All members but the hub.
void meet_in_threads(const Job& job, int port) {
  std::vector<std::jthread> threads;
  for (std::size_t member = 1; member < job.members; ++member) {
    threads.emplace_back([&job, member, port] {
      LocalMeeting meeting(member, job.members, port, [](int) {});
      meet(job, meeting);
    });
  }
}

/// Bytes that the loopback interface of this network namespace has sent.
double loopback_bytes() {
  std::ifstream devices("/proc/net/dev");
  for (std::string line; std::getline(devices, line);) {
    const auto name = line.find("lo:");
    if (name == std::string::npos) continue;
    std::istringstream numbers(line.substr(name + 3));
    double number = 0;
    for (int i = 0; i < 9; ++i) numbers >> number;  // eight of what has been received come first
    return number;
  }
  return 0;
}

/// The most memory that this process has had, in MiB, or that of its children.
double most_resident(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double cpu_of_children() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/// Runs the others in a process that is told the port as soon as there is one.
class Others {
 public:
  explicit Others(const Job& job) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("fork");
    if (process_ == 0) ::_exit(run(job, ends[0]));
    ::close(ends[0]);
    to_ = ends[1];
  }
  void tell(int port) const {
    if (::write(to_, &port, sizeof port) != sizeof port) throw std::runtime_error("write");
  }
  /// Returns false if they have failed.
  bool wait() const {
    int status = 0;
    ::close(to_);
    return ::waitpid(process_, &status, 0) == process_ && status == 0;
  }

 private:
  static int run(const Job& job, int from) {
    int port = 0;
    if (::read(from, &port, sizeof port) != sizeof port) return 1;
    try {
      meet_in_threads(job, port);
    } catch (const std::exception& e) {
      fmt::print(stderr, "{}\n", e.what());
      return 1;
    }
    return 0;
  }
  int process_ = -1, to_ = -1;
};

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

void measure(const Job& job) {
  Others others(job);
  const Taken before = taken_until_now();
  const double others_cpu = cpu_of_children(), bytes = loopback_bytes(),
               resident = most_resident(RUSAGE_SELF);
  Clock::time_point begin;
  LocalMeeting meeting(0, job.members, 0, [&](int port) {
    begin = Clock::now();
    others.tell(port);
  });
  const Times times = meet(job, meeting);
  if (!others.wait()) throw std::runtime_error("the others have failed");
  const double hub = times.taken.all - before.all, path = times.taken.path - before.path;
  const double each = (cpu_of_children() - others_cpu) / static_cast<double>(job.members - 1);
  fmt::print("{:8} {:6} {:>9} {:9.3f} {:9.3f} {:9.3f} {:9.2f} {:9.3f} {:9.1f} {:9.1f}\n", job.members,
             job.lanes, job.between == Between::tcp ? "tcp" : "ibverbs", seconds(times.met - begin),
             seconds(times.ready - begin), hub, 1e3 * each, path + each,
             (loopback_bytes() - bytes) / (1 << 20), most_resident(RUSAGE_SELF) - resident);
}

}  // namespace
}  // namespace perf::meeting

int main(int argc, char** argv) {
  CLI::App app(
      "Times meetings of many members over connections of this host. Columns: seconds until all have been "
      "let in, and until all are ready; processor time of the hub in s, and of each other member in ms; how "
      "long it takes where every thread has a core, which is the time of the hub's own threads, of the "
      "busiest "
      "of those that share its connections, and of one other member; MiB on the loopback interface; and how "
      "many MiB of memory the hub needed for it.");
  std::vector<std::size_t> sizes{64, 128, 256, 512, 1024};
  perf::meeting::Job job;
  std::string between = "tcp";
  app.add_option("members", sizes, "numbers of members");
  app.add_option("--per-host", job.per_host, "how many share a host")->capture_default_str();
  app.add_option("--lanes", job.lanes, "how many lanes each has")->capture_default_str();
  app.add_option("--between", between, "how hosts reach each other")
      ->check(CLI::IsMember({"tcp", "ibverbs"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (between == "ibverbs") job.between = perf::meeting::Between::ibverbs;
  fmt::print(
      "#members  lanes   between     met s   ready s     hub s each ms    path s       MiB   hub MiB\n");
  for (const std::size_t members : sizes) {
    job.members = members;
    perf::meeting::measure(job);
  }
}

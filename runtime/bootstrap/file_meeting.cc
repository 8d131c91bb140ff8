#include "runtime/bootstrap/file_meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "nzcl/error.h"
#include "runtime/base/json_text.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::bootstrap {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw Error(ErrorCode::system, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

/// Writes a file that only this user can read. Others never see it half-written, because it gets its name
/// last.
void publish(const std::string& path, const std::string& text) {
  std::string temporary = path + ".XXXXXX";
  const int fd = ::mkstemp(temporary.data());  // mode 0600
  if (fd < 0) fail("cannot write the rendezvous file", path);
  const bool written =
      ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  ::close(fd);
  if (!written || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    errno = error;
    fail("cannot write the rendezvous file", path);
  }
}

std::optional<MeetingPoint> look_up(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  try {
    const json j = json::parse(file);
    MeetingPoint point{.hosts = j.at("hosts"), .port = j.at("port"), .secret = j.at("secret")};
    if (j.at("host_id") == host_id()) point.hosts = {"127.0.0.1"};
    if (point.hosts.empty()) return std::nullopt;
    return point;
  } catch (const json::exception&) {
    return std::nullopt;  // not a file of ours: member 0 will replace it
  }
}

/// What /proc says about a process.
struct Process {
  std::string name, start;
  int parent = 0;
};

std::optional<Process> process_info(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const auto open = line.find('('), close = line.rfind(')');
  if (open == line.npos || close == line.npos) return std::nullopt;
  // The fields after the name, counted from 0: the state, the parent, ..., and as field 19 the start time
  // (proc(5)).
  std::istringstream rest(line.substr(close + 1));
  Process p{.name = line.substr(open + 1, close - open - 1), .start = {}, .parent = 0};
  std::string word;
  for (int i = 0; rest >> word; ++i) {
    if (i == 1) p.parent = std::atoi(word.c_str());
    if (i == 19) p.start = word;
  }
  return p;
}

/// Names the launcher's process by its id and start time. It need not be the parent, because a shell script
/// may stand between, so this looks for known launchers among all ancestors. Without any, it names the
/// parent.
std::string launcher_name() {
  constexpr std::array<std::string_view, 8> kLaunchers{
      "hydra_pmi_proxy", "orted", "prted", "prterun", "mpirun", "mpiexec", "slurmstepd", "mpirun.openmpi"};
  std::string nearest;
  for (int pid = ::getppid(); pid > 1;) {
    const auto process = process_info(pid);
    if (!process) break;
    const std::string name = fmt::format("{}-{}", pid, process->start);
    if (nearest.empty()) nearest = name;
    if (std::find(kLaunchers.begin(), kLaunchers.end(), process->name) != kLaunchers.end()) return name;
    pid = process->parent;
  }
  return nearest.empty() ? "init" : nearest;
}

}  // namespace

std::unique_ptr<Bootstrap> make_file_bootstrap(StarSettings settings, const std::string& path) {
  settings.point_name = "file " + path;
  if (settings.position != 0) {
    return make_star_member(
        std::move(settings), [path] { return look_up(path); }, false);
  }
  const MeetingPoint point{.hosts = {}, .port = 0, .secret = random_secret()};
  const auto listening = [path, secret = point.secret](int port) {
    publish(
        path,
        json_text({{"hosts", host_addresses()}, {"host_id", host_id()}, {"port", port}, {"secret", secret}}));
  };
  return make_star_hub(std::move(settings), point, listening, [path] { ::unlink(path.c_str()); });
}

std::string job_file(const std::string& job, const std::string& session) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("nzcl-{}", ::getuid())).string();
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail("cannot make the folder", folder);
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) fail("cannot look at the folder", folder);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::getuid() || (status.st_mode & 0077) != 0) {
    throw Error(
        ErrorCode::denied,
        fmt::format("{} is not a folder that only this user can use: remove it, or set NZCL_RENDEZVOUS_FILE",
                    folder));
  }
  std::string name = (job.empty() ? launcher_name() : job) + "-" + session;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  }
  return folder + "/" + name;
}

}  // namespace nzcl::bootstrap

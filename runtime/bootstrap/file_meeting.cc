#include "runtime/bootstrap/file_meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "nzcl/error.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/meeting_point.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::bootstrap {
namespace {

// The file lists the addresses of a host, of which there are not that many.
constexpr std::size_t kLongestFile = 1 << 20;

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw Error(ErrorCode::system, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

/// Writes a file that only this user can read. Others never see it half-written, because it gets its name
/// last.
void write_file(const std::string& path, const std::string& text) {
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
    if (error == EPERM || error == EACCES)  // in a folder with the sticky bit, as /tmp is
      fail("cannot replace the rendezvous file, which belongs to another user; choose another path:", path);
    fail("cannot write the rendezvous file", path);
  }
}

/// Why a file cannot be believed, or "" if it can: only this user may have written it.
std::string why_not_own(const struct stat& file) {
  if (!S_ISREG(file.st_mode)) return "it is not a regular file";
  if (file.st_uid != ::geteuid())
    return fmt::format("it belongs to user {}, not to user {}", file.st_uid, ::geteuid());
  if ((file.st_mode & 0022) != 0) return "other users may write to it";
  return "";
}

NotYet refused(const std::string& path, const std::string& why) {
  return {
      .why = fmt::format("the rendezvous file {} is not believed, because {}. Remove it, or choose a path in "
                         "a folder where only this user can write",
                         path, why),
      .for_long = true};
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  while (text.size() < kLongestFile) {
    const auto n = ::read(fd, part.data(), part.size());
    if (n <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(n));
  }
  return text;
}

std::variant<MeetingPoint, NotYet> look_up(const std::string& path) {
  // Another user may have put a link or a pipe there, on which this process should not wait.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return NotYet{.why = "the file is not there yet"};
  if (fd < 0) return refused(path, std::strerror(errno));
  struct stat status {};
  const std::string why = ::fstat(fd, &status) == 0 ? why_not_own(status) : std::strerror(errno);
  const std::string text = why.empty() ? read_all(fd) : "";
  ::close(fd);
  if (!why.empty()) return refused(path, why);
  if (auto point = parse_point(text)) return std::move(*point);
  return NotYet{.why = "member 0 has not replaced a file that is not nzcl's"};
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
  constexpr std::array<std::string_view, 8> kLauncherProcesses{
      "hydra_pmi_proxy", "orted", "prted", "prterun", "mpirun", "mpiexec", "slurmstepd", "mpirun.openmpi"};
  std::string nearest;
  for (int pid = ::getppid(); pid > 1;) {
    const auto process = process_info(pid);
    if (!process) break;
    const std::string name = fmt::format("{}-{}", pid, process->start);
    if (nearest.empty()) nearest = name;
    if (std::find(kLauncherProcesses.begin(), kLauncherProcesses.end(), process->name) !=
        kLauncherProcesses.end())
      return name;
    pid = process->parent;
  }
  return nearest.empty() ? "init" : nearest;
}

class FileMeeting final : public Meeting {
 public:
  FileMeeting(MeetingSettings settings, std::string path, bool one_host)
      : Meeting(std::move(settings)), path_(std::move(path)), one_host_(one_host) {}

  std::variant<HubPlace, NotYet> place(Deadline) override {
    return HubPlace{
        .addresses = one_host_ ? resolve(own_loopback()) : Addresses(), .port = 0, .secret = secret_};
  }
  void publish(int port, Deadline) override { write_file(path_, encode_point(port, secret_)); }
  void all_have_come() override { ::unlink(path_.c_str()); }
  std::variant<MeetingPoint, NotYet> find(Deadline) override { return look_up(path_); }

 private:
  const std::string path_;
  const bool one_host_;
  const std::string secret_ = rank() == 0 ? random_secret() : "";
};

}  // namespace

std::unique_ptr<Meeting> make_file_meeting(MeetingSettings settings, const std::string& path, bool one_host) {
  settings.point_name = "file " + path;
  return std::make_unique<FileMeeting>(std::move(settings), path, one_host);
}

std::string job_file(const std::string& job, const std::string& session) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("nzcl-{}", ::geteuid())).string();
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail("cannot make the folder", folder);
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) fail("cannot look at the folder", folder);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0) {
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

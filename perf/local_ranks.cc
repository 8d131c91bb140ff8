#include "perf/local_ranks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

namespace perf {
namespace {

constexpr int kGraceSeconds = 5;   // from the first failure to SIGTERM, and from there to SIGKILL
constexpr int kCannotStart = 127;  // the exit status that a shell uses, too

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

/// A port that was free a moment ago. Another process may take it first; the ranks then fail with a clear
/// error.
int free_port() {
  const int socket_fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) fail("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      ::bind(socket_fd, generic, length) == 0 && ::getsockname(socket_fd, generic, &length) == 0;
  ::close(socket_fd);
  if (!bound) fail("cannot find a free port on 127.0.0.1");
  return ntohs(address.sin_port);
}

std::string random_secret() {
  std::array<std::uint64_t, 4> words{};
  if (::getrandom(words.data(), sizeof words, 0) != static_cast<ssize_t>(sizeof words)) fail("getrandom");
  return fmt::format("{:016x}{:016x}{:016x}{:016x}", words[0], words[1], words[2], words[3]);
}

struct Meeting {
  int size;         // number of ranks
  int aggregators;  // number of copies that serve as aggregators
  int port;
  std::string secret;
};

/// Runs in the child. The last --ranks on the command line counts: --ranks=0 makes the child a rank and not
/// another launcher.
[[noreturn]] void become_rank(int rank, const Meeting& meeting, pid_t parent, int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);                // do not outlive the launcher
  if (::getppid() != parent) ::_exit(kCannotStart);  // it died before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  if (rank < meeting.size) {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
  } else {
    ::unsetenv("RANK");
  }
  ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(meeting.size).c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", std::to_string(meeting.size).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(meeting.port).c_str(), 1);
  ::setenv("NZCL_SECRET", meeting.secret.c_str(), 1);

  std::string as_rank = "--ranks=0";
  std::string serve = fmt::format("--serve={}", rank - meeting.size);
  std::vector<char*> arguments(argv, argv + argc);
  if (rank >= meeting.size) arguments.push_back(serve.data());
  arguments.push_back(as_rank.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
  std::perror("cannot start a rank");
  ::_exit(kCannotStart);
}

/// The process ids of the ranks that were started. -1 stands for one that has ended and was waited for.
class Ranks {
 public:
  void start(const Meeting& meeting, int argc, char** argv) {
    const pid_t parent = ::getpid();
    for (int rank = 0; rank < meeting.size + meeting.aggregators; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) become_rank(rank, meeting, parent, argc, argv);
      if (pid < 0) fail("fork");
      pids_.push_back(pid);
    }
  }

  ~Ranks() {
    signal_all(SIGKILL);
    for (const pid_t pid : pids_)
      if (pid > 0) ::waitpid(pid, nullptr, 0);
  }

  /// Collects the ranks that have ended already. Returns false if one of them failed.
  bool collect() {
    bool good = true;
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      int status = 0;
      if (pids_[rank] < 0 || ::waitpid(pids_[rank], &status, WNOHANG) <= 0) continue;
      if (status != 0) {
        describe(rank, status);
        good = false;
      }
      pids_[rank] = -1;
    }
    return good;
  }

  bool any() const {
    for (const pid_t pid : pids_)
      if (pid > 0) return true;
    return false;
  }

  void signal_all(int signal_number) const {
    for (const pid_t pid : pids_)
      if (pid > 0) ::kill(pid, signal_number);
  }

 private:
  void describe(std::size_t rank, int status) const {
    if (WIFSIGNALED(status))
      fmt::print(stderr, "{}: rank {} (process {}) was ended by signal {}\n", ::program_invocation_short_name,
                 rank, pids_[rank], WTERMSIG(status));
    else
      fmt::print(stderr, "{}: rank {} (process {}) failed with status {}\n", ::program_invocation_short_name,
                 rank, pids_[rank], WEXITSTATUS(status));
  }

  std::vector<pid_t> pids_;
};

/// Waits until a child ends, or for the given time. SIGCHLD must be blocked.
bool child_ended(const sigset_t& child_signal, const timespec* at_most) {
  return ::sigtimedwait(&child_signal, nullptr, at_most) == SIGCHLD;
}

}  // namespace

int run_local_ranks(int count, int argc, char** argv, int aggregators) {
  sigset_t child_signal;
  ::sigemptyset(&child_signal);
  ::sigaddset(&child_signal, SIGCHLD);
  if (::sigprocmask(SIG_BLOCK, &child_signal, nullptr) != 0) fail("sigprocmask");

  Ranks ranks;
  ranks.start({.size = count, .aggregators = aggregators, .port = free_port(), .secret = random_secret()},
              argc, argv);

  while (ranks.any()) {
    if (ranks.collect()) {
      if (ranks.any()) child_ended(child_signal, nullptr);
      continue;
    }
    const timespec grace{.tv_sec = kGraceSeconds, .tv_nsec = 0};
    for (const int next_signal : {SIGTERM, SIGKILL}) {
      while (ranks.any() && child_ended(child_signal, &grace)) ranks.collect();
      ranks.signal_all(next_signal);
    }
    return 1;  // the destructor of Ranks waits for them
  }
  return 0;
}

}  // namespace perf

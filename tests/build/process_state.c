#define _GNU_SOURCE
// Two ranks that use nzcl and look at what it does to their processes. Prints what it should not have done,
// and ends with status 1 if there was anything.
//
// usage: process_state [linked | abort]
//   linked: nzcl is linked and not used
//   abort: both ranks call abort() at the end
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <nzcl/nzcl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char** environ;

enum { kSignals = 65, kMost = 1024, kElements = 100000 };
// SA_RESTORER, which the C library adds to the flags of every action that is set.
enum { kRestorer = 0x04000000 };

static int rank_, changes;
#define COMPLAIN(...) \
  (printf("rank %d: ", rank_), printf(__VA_ARGS__), putchar('\n'), fflush(stdout), ++changes)

// ---- What must not change

struct state {
  struct sigaction actions[kSignals];
  sigset_t mask;
  char locale[256], folder[4096], *environment;
  mode_t umask;
};

// All variables, one line each.
static char* whole_environment(void) {
  size_t bytes = 1;
  for (char** v = environ; *v; ++v) bytes += strlen(*v) + 1;
  char* const text = calloc(bytes, 1);
  for (char** v = environ; *v; ++v) strcat(strcat(text, *v), "\n");
  return text;
}

static struct state look(void) {
  static const struct state empty;
  struct state s = empty;
  for (int i = 1; i < kSignals; ++i) sigaction(i, NULL, &s.actions[i]);
  pthread_sigmask(SIG_BLOCK, NULL, &s.mask);
  strncpy(s.locale, setlocale(LC_ALL, NULL), sizeof s.locale - 1);
  if (!getcwd(s.folder, sizeof s.folder)) s.folder[0] = 0;
  s.environment = whole_environment();
  umask(s.umask = umask(0));
  return s;
}

static bool same_set(const sigset_t* a, const sigset_t* b) {
  for (int i = 1; i < kSignals; ++i) {
    if (sigismember(a, i) != sigismember(b, i)) return false;
  }
  return true;
}

static void compare(const char* when, const struct state* before) {
  const struct state now = look();
  for (int i = 1; i < kSignals; ++i) {
    const struct sigaction *a = &before->actions[i], *b = &now.actions[i];
    if (a->sa_sigaction != b->sa_sigaction) COMPLAIN("%s: signal %d has another handler", when, i);
    if ((a->sa_flags ^ b->sa_flags) & ~kRestorer)
      COMPLAIN("%s: signal %d has flags %x, not %x", when, i, b->sa_flags, a->sa_flags);
    if (!same_set(&a->sa_mask, &b->sa_mask)) COMPLAIN("%s: signal %d has another mask", when, i);
  }
  if (!same_set(&before->mask, &now.mask)) COMPLAIN("%s: the thread blocks other signals", when);
  if (strcmp(before->locale, now.locale) != 0) COMPLAIN("%s: locale %s", when, now.locale);
  if (strcmp(before->folder, now.folder) != 0) COMPLAIN("%s: folder %s", when, now.folder);
  if (strcmp(before->environment, now.environment) != 0)
    COMPLAIN("%s: environment\n%s", when, now.environment);
  if (before->umask != now.umask) COMPLAIN("%s: umask %o", when, now.umask);
  free(now.environment);
}

// ---- Descriptors and threads: lists of numbers

struct numbers {
  int count, of[kMost];
};

static struct numbers list(const char* folder) {
  struct numbers n = {0, {0}};
  DIR* const dir = opendir(folder);
  if (!dir) return n;
  for (struct dirent* e; (e = readdir(dir)) != NULL && n.count < kMost;) {
    if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(dir)) n.of[n.count++] = atoi(e->d_name);
  }
  closedir(dir);
  return n;
}

static bool has(const struct numbers* n, int number) {
  for (int i = 0; i < n->count; ++i) {
    if (n->of[i] == number) return true;
  }
  return false;
}

struct target {
  char text[256];
};

// What a descriptor leads to, "socket:[4711]" or a path; empty if it is closed.
static struct target target(int fd) {
  struct target t;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(path, t.text, sizeof t.text - 1);
  t.text[n > 0 ? n : 0] = 0;
  return t;
}

// Files of the system that nzcl reads in one go are no concern: a program that starts meanwhile holds nothing
// up by having them.
static bool is_read_only_file(int fd) {
  struct stat s;
  return fstat(fd, &s) != 0 || (S_ISREG(s.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) ||
         S_ISDIR(s.st_mode);
}

static struct numbers first_descriptors;

// libfabric makes its sockets for tcp without close-on-exec (verbs/GOTCHAS.md). nzcl's own descriptors are
// the same with all transports.
static bool is_exempt(void) { return strcmp(getenv("NZCL_TRANSPORT"), "tcp") == 0; }

// Other threads open and close descriptors meanwhile, so what was seen of a number counts only if it led to
// the same place before and afterwards.
static void check_close_on_exec(const char* when) {
  if (is_exempt()) return;
  const struct numbers now = list("/proc/self/fd");
  for (int i = 0; i < now.count; ++i) {
    const int fd = now.of[i];
    const struct target before = target(fd);
    const int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) || has(&first_descriptors, fd) || is_read_only_file(fd)) continue;
    const struct target after = target(fd);
    if (before.text[0] == 0 || strcmp(before.text, after.text) != 0) continue;
    COMPLAIN("%s: descriptor %d (%s) is not close-on-exec", when, fd, after.text);
  }
}

// While the ranks meet, descriptors come and go, so a thread looks at them all the time.
static atomic_bool met;
static void* watch(void* unused) {
  const struct timespec pause = {0, 100000};
  while (!atomic_load(&met) && changes == 0) {
    check_close_on_exec("while the ranks meet");
    nanosleep(&pause, NULL);
  }
  return unused;
}

// Every thread of nzcl blocks all signals except those that report a fault of the thread itself.
static void check_blocked(const struct numbers* before) {
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP, 32, 33};
  const struct numbers now = list("/proc/self/task");
  for (int i = 0; i < now.count; ++i) {
    if (has(before, now.of[i])) continue;
    char path[64], line[256], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/status", now.of[i]);
    unsigned long long blocked = 0;
    FILE* const file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
      sscanf(line, "Name: %63s", name);
      sscanf(line, "SigBlk: %llx", &blocked);
    }
    if (file) fclose(file);
    for (unsigned f = 0; f < sizeof faults / sizeof *faults; ++f) blocked |= 1ull << (faults[f] - 1);
    if (~blocked) COMPLAIN("thread %s does not block signals %llx", name, ~blocked);
  }
  if (now.count == before->count) COMPLAIN("nzcl has no threads");
}

// A signal to the process is for the thread that waits for it.
static void check_sigwait(void) {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &wanted, NULL);
  const struct timespec patience = {5, 0};
  for (int i = 0; i < 20; ++i) {
    kill(getpid(), SIGUSR2);
    if (sigtimedwait(&wanted, NULL, &patience) != SIGUSR2) {
      COMPLAIN("a signal was not given to the thread that waits for it");
      break;
    }
  }
  pthread_sigmask(SIG_UNBLOCK, &wanted, NULL);
}

// Whether `folder` lists the same numbers as before. A thread that was joined may stay in the list for a
// moment.
static void check_same(const char* folder, const struct numbers* before) {
  struct numbers now = list(folder);
  for (int i = 0; i < 100 && now.count != before->count; ++i) {
    usleep(10000);
    now = list(folder);
  }
  const bool is_fd = strstr(folder, "fd") != NULL;
  for (int i = 0; i < now.count; ++i) {
    if (!has(before, now.of[i]))
      COMPLAIN("%s/%d is left: %s", folder, now.of[i], is_fd ? target(now.of[i]).text : "");
  }
  for (int i = 0; i < before->count; ++i) {
    if (!has(&now, before->of[i])) COMPLAIN("%s/%d is gone", folder, before->of[i]);
  }
}

// ---- The program's own handlers

static void on_signal(int signal) { (void)signal; }
static void on_signal_info(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)info, (void)context;
}

static void install_handlers(void) {
  const int signals[] = {SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGUSR1, SIGHUP, SIGCHLD};
  for (unsigned i = 0; i < sizeof signals / sizeof *signals; ++i) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_flags = i % 2 ? SA_RESTART : SA_SIGINFO | SA_NODEFER;
    if (i % 2) a.sa_handler = on_signal;
    if (i % 2 == 0) a.sa_sigaction = on_signal_info;
    sigaddset(&a.sa_mask, SIGUSR1 + (int)(i % 3));
    sigaction(signals[i], &a, NULL);
  }
  signal(SIGPIPE, SIG_IGN);
}

// ---- The ranks

#define NZCL(call)                                                 \
  if ((call) != nzclSuccess) {                                     \
    printf("rank %d: %s: %s\n", rank_, #call, nzclGetLastError()); \
    exit(2);                                                       \
  }

static atomic_int completed;
static void on_completion(nzclResult_t result, const char* text, void* context) {
  (void)text, (void)context;
  if (result == nzclSuccess) ++completed;
}

static void sum(nzclComm_t comm, float* data) {
  nzclWork_t work;
  NZCL(nzclAllReduce(data, data, kElements, nzclFloat32, nzclSum, comm, &work));
  NZCL(nzclWorkOnComplete(work, on_completion, NULL));
  NZCL(nzclWorkWait(work, -1));
  NZCL(nzclWorkFree(work));
}

static void use(nzclUniqueId id, const struct state* before) {
  static float data[kElements];
  nzclComm_t comm;
  nzclBuffer_t buffer;
  for (int i = 0; i < kElements; ++i) data[i] = 1;
  const struct numbers tasks = list("/proc/self/task");

  pthread_t watcher;
  pthread_create(&watcher, NULL, watch, NULL);
  NZCL(nzclCommInitRank(&comm, 2, id, rank_));
  atomic_store(&met, true);
  pthread_join(watcher, NULL);

  NZCL(nzclCommRegister(comm, data, sizeof data, &buffer));
  for (int i = 0; i < 3; ++i) sum(comm, data);
  if (data[kElements - 1] != 8) COMPLAIN("the sum is %g", (double)data[kElements - 1]);
  compare("in use", before);
  check_close_on_exec("in use");
  check_blocked(&tasks);
  check_sigwait();
  NZCL(nzclBarrier(comm));
  NZCL(nzclCommDeregister(comm, buffer));
  NZCL(nzclCommDestroy(comm));
  if (completed != 3) COMPLAIN("%d callbacks, not 3", completed);
  compare("after use", before);
  check_same("/proc/self/task", &tasks);
}

static int check_linked(void) {
  for (int i = 1; i < kSignals; ++i) {
    struct sigaction a;
    if (sigaction(i, NULL, &a) == 0 && a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN)
      COMPLAIN("signal %d is caught", i);
  }
  return nzclGetVersion() == NULL || changes != 0;
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "linked") == 0) return check_linked();
  install_handlers();
  const struct state before = look();
  first_descriptors = list("/proc/self/fd");
  nzclUniqueId id;
  NZCL(nzclGetUniqueId(&id));
  compare("nzclGetUniqueId", &before);
  const pid_t child = fork();
  rank_ = child == 0;
  if (rank_ == 1) usleep(200000);  // rank 0 waits for it meanwhile, with a listening socket
  use(id, &before);
  check_same("/proc/self/fd", &first_descriptors);
  int status = 0;
  if (child > 0) waitpid(child, &status, 0);
  if (argc > 1 && strcmp(argv[1], "abort") == 0) abort();
  return changes != 0 || status != 0;
}

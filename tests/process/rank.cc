// One rank of the process tests. It meets the others as its environment says, and compares every result with
// a plain sum.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nzcl/communicator.h"
#include "perf/cpu_seconds.h"
#include "tests/process/scribbler.h"

namespace {

constexpr std::size_t kBlock = 256;

struct Arguments {
  int rounds = 10;
  std::size_t count = 100000;
  int communicators = 1;
  bool sessions = false;
  bool split = false;
  bool shrink = false;
  int grow = 0;  // to so many ranks
  int die_rank = -1, die_at = 0;
  int late_rank = -1, late_ms = 0;
  int idle_seconds = 0;
  bool not_dumpable = false;
  bool busy = false, scribble = false;
  std::string digest;  // "": compare with a plain sum; otherwise the type whose results are digested
  int every = 1;       // of a digest: how many blocks there are for each that is not zero
};

/// Whether the rank contributes this block in this round, which holds for about a third of the blocks.
bool holds(int rank, int round, std::size_t block) {
  return (block * 7 + static_cast<std::size_t>(rank * 3 + round)) % 3 == 0;
}

float value(int rank, std::size_t i) { return static_cast<float>(rank + 1) + static_cast<float>(i % 5); }

/// What may happen beside the sums: registers a buffer, and uses a part of the ranks for a moment.
void run_beside(nzcl::Communicator& comm) {
  nzcl::Communicator half = comm.split(comm.rank() % 2);
  std::vector<float> data(1000, static_cast<float>(half.rank()));
  const auto registered = comm.register_buffer(data.data(), data.size() * sizeof(float));
  half.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
  const auto sum = static_cast<float>(half.size() * (half.size() - 1) / 2);
  if (data.front() == sum && data.back() == sum) return;
  std::fprintf(stderr, "rank %d of the half: %g, not %g\n", half.rank(), data.front(), sum);
  std::exit(4);
}

void run(nzcl::Communicator& comm, const Arguments& a) {
  std::vector<float> data(a.count);
  const auto registered = comm.register_buffer(data.data(), data.size() * sizeof(float));
  for (int round = 0; round < a.rounds; ++round) {
    if (comm.rank() == a.die_rank && round == a.die_at) ::kill(::getpid(), SIGKILL);
    if (a.busy && round % 4 == 3) run_beside(comm);
    if (comm.rank() == a.late_rank) std::this_thread::sleep_for(std::chrono::milliseconds(a.late_ms));
    for (std::size_t i = 0; i < a.count; ++i)
      data[i] = holds(comm.rank(), round, i / kBlock) ? value(comm.rank(), i) : 0.0f;
    comm.allreduce({.input = data.data(), .output = data.data(), .count = data.size(), .block_elems = kBlock})
        .wait();
    for (std::size_t i = 0; i < a.count; ++i) {
      float sum = 0;
      for (int r = 0; r < comm.size(); ++r) sum += holds(r, round, i / kBlock) ? value(r, i) : 0.0f;
      if (data[i] == sum) continue;
      std::fprintf(stderr, "rank %d round %d element %zu: %g, not %g\n", comm.rank(), round, i, data[i], sum);
      std::exit(4);
    }
  }
}

float awkward(float*, std::size_t n) { return std::sin(static_cast<float>(n)) * 1e5f; }
std::int32_t awkward(std::int32_t*, std::size_t n) { return static_cast<std::int32_t>(n * 2654435761u); }

/// Sums values that floating-point numbers do not hold exactly, and prints a digest of all results' bits and
/// how long an allreduce took.
template <typename T>
void digest(nzcl::Communicator& comm, const Arguments& a, nzcl::DataType type) {
  std::vector<T> data(a.count);
  const auto registered = comm.register_buffer(data.data(), data.size() * sizeof(T));
  std::uint64_t all = 14695981039346656037u;  // FNV-1a
  std::chrono::nanoseconds time{};
  for (int round = 0; round < a.rounds; ++round) {
    const auto begin = static_cast<std::size_t>(comm.rank() + 31 * round);
    for (std::size_t i = 0; i < a.count; ++i) {
      const bool zero = (i / kBlock * 7 + begin) % static_cast<std::size_t>(a.every) != 0;
      data[i] = zero ? T{} : awkward(static_cast<T*>(nullptr), i + 1000 * begin);
    }
    const auto before = std::chrono::steady_clock::now();
    comm.allreduce({.input = data.data(),
                    .output = data.data(),
                    .count = data.size(),
                    .type = type,
                    .block_elems = kBlock})
        .wait();
    time += std::chrono::steady_clock::now() - before;
    for (const T value : data) all = (all ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211u;
  }
  std::printf("digest %016llx\n", static_cast<unsigned long long>(all));
  std::printf("time %.0f us\n", std::chrono::duration<double, std::micro>(time).count() / a.rounds);
}

void run_as_told(nzcl::Communicator& comm, const Arguments& a) {
  if (a.digest.empty()) return run(comm, a);
  if (a.digest == "int32") return digest<std::int32_t>(comm, a, nzcl::DataType::int32);
  digest<float>(comm, a, nzcl::DataType::float32);
}

/// Like run(), but a failure is printed and not thrown.
void run_and_tell(const char* what, nzcl::Communicator& comm, const Arguments& a) {
  try {
    run(comm, a);
    std::printf("%s: ok\n", what);
  } catch (const nzcl::Error& e) {
    std::printf("%s: %s\n", what, e.what());
  }
}

/// Splits the ranks into even and odd ones, in descending order, and uses parent and child at the same time.
/// Then the parent is closed, whether it has failed or not, and the child goes on.
void run_split(nzcl::Communicator comm, const Arguments& a) {
  const int rank = comm.rank();
  nzcl::Communicator child = comm.split(rank % 2, -rank);
  if (child.rank() != (comm.size() - 1 - rank) / 2) std::exit(5);
  Arguments of_child = a;
  of_child.die_rank = -1;
  {
    std::jthread beside([&] { run_and_tell("child", child, of_child); });
    run_and_tell("parent", comm, a);
  }
  { const nzcl::Communicator closed = std::move(comm); }
  of_child.rounds = 5;
  run_and_tell("child after the parent", child, of_child);
  if (child.async_error()) return;
  nzcl::Communicator grandchild = child.split(rank == 0 ? nzcl::kNoColor : 0);
  if (grandchild.valid()) run_and_tell("grandchild", grandchild, of_child);
}

/// Prints how long it took until all had joined.
void grow(nzcl::Communicator& comm, int size) {
  const auto before = std::chrono::steady_clock::now();
  comm = comm.grow({.size = size});
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - before;
  std::printf("grown to rank %d of %d in %.0f ms\n", comm.rank(), comm.size(), took.count());
}

/// Whether another rank has said why it cannot go on. It ends, and those that are left can shrink without it.
bool is_about_another(const nzcl::Error& error) {
  const std::string text = error.what();
  return text.starts_with("rank ") && text.find("(pid " + std::to_string(::getpid())) == text.npos;
}

/// Runs the rounds. If a rank dies meanwhile, those that are left run ten more on a smaller communicator, and
/// so on. Prints how long it took from the failure to the next sum. Buffers stay registered. If new ranks are
/// to come, they are waited for once when the rounds are over, and ten more follow. After a second smaller
/// communicator nobody waits for them any more: some ranks may have begun to, and others not.
void run_shrinking(nzcl::Communicator comm, Arguments a) {
  std::vector<float> data(a.count);
  const auto registered = comm.register_buffer(data.data(), data.size() * sizeof(float));
  int smaller = 0;
  while (true) {
    try {
      run(comm, a);
      const int size = std::exchange(a.grow, 0);
      if (size <= comm.size()) {
        std::printf("rank %d of %d: ok\n", comm.rank(), comm.size());
        return comm.close();
      }
      grow(comm, size);
      a.rounds = 10;
      continue;
    } catch (const nzcl::Error& e) {
      std::printf("failed: %s\n", e.what());
      // This process lacks something, and would again. The others go on without it.
      if (e.code() == nzcl::ErrorCode::system && !is_about_another(e)) throw;
    }
    const auto before = std::chrono::steady_clock::now();
    while (true) {
      bool shrunk = false;
      try {
        comm = comm.shrink();
        shrunk = true;
        if (++smaller > 1) a.grow = 0;
        const float mine = static_cast<float>(comm.rank());
        std::fill(data.begin(), data.end(), mine);
        comm.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
        break;
      } catch (const nzcl::Error& e) {
        std::printf("failed: %s\n", e.what());
        if (!shrunk && !is_about_another(e)) throw;
      }
    }
    const auto sum = static_cast<float>(comm.size() * (comm.size() - 1) / 2);
    if (data.front() != sum || data.back() != sum) std::exit(4);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - before;
    std::printf("shrunk to rank %d of %d in %.0f ms\n", comm.rank(), comm.size(), took.count());
    // By the clock that other processes see too.
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    std::printf("summed again at %.6f\n", now.count());
    std::fflush(stdout);
    a.die_rank = -1;
    a.rounds = 10;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("A rank of the process tests", "rank");
  app.add_option("--rounds", a.rounds, "Allreduces per communicator");
  app.add_option("--count", a.count, "Elements");
  app.add_option("--communicators", a.communicators, "Made one after the other, and kept");
  app.add_flag("--sessions", a.sessions, "Let them meet in the sessions s0, s1 and so on");
  app.add_flag("--split", a.split, "Use the first communicator and one that is split from it");
  app.add_flag("--shrink", a.shrink, "When a rank dies, go on without it");
  app.add_option("--grow", a.grow, "After the rounds, grow to so many ranks, and run them again");
  app.add_option("--die-rank", a.die_rank, "This rank kills itself");
  app.add_option("--die-at", a.die_at, "before this round");
  app.add_option("--late-rank", a.late_rank, "This rank comes late to every round");
  app.add_option("--late-ms", a.late_ms, "by this time");
  app.add_option("--idle", a.idle_seconds, "Seconds to do nothing, and print the CPU time that they took");
  app.add_flag("--not-dumpable", a.not_dumpable, "Let no other process write this one's memory");
  app.add_flag("--busy", a.busy, "Split the communicator and register buffers between the rounds");
  app.add_flag("--scribble", a.scribble, "On SIGUSR1, write random bytes where the other ranks read");
  app.add_option("--digest", a.digest, "Sum awkward values of this type, and print a digest of the results")
      ->check(CLI::IsMember({"int32", "float32"}));
  app.add_option("--every", a.every, "of which one in so many blocks is not zero on each rank");
  CLI11_PARSE(app, argc, argv);
  if (a.not_dumpable) ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  std::optional<Scribbler> scribbler;
  if (a.scribble) scribbler.emplace();
  try {
    std::deque<nzcl::Communicator> all;
    for (int i = 0; i < a.communicators; ++i) {
      nzcl::Options options = nzcl::options_from_environment();
      if (a.sessions) options.session = "s" + std::to_string(i);
      all.emplace_back(options);
      if (i == 0) std::puts("joined"), std::fflush(stdout);
      if (a.split) {
        const int rank = all.back().rank(), size = all.back().size();
        run_split(std::move(all.back()), a);
        std::printf("rank %d of %d: ok\n", rank, size);
        return 0;
      }
      if (a.shrink) {
        run_shrinking(std::move(all.back()), a);
        return 0;
      }
      run_as_told(all.back(), a);
      if (a.grow > all.back().size()) grow(all.back(), a.grow), run_as_told(all.back(), a);
    }
    if (a.idle_seconds > 0) {
      const double before = perf::cpu_seconds();
      std::this_thread::sleep_for(std::chrono::seconds(a.idle_seconds));
      std::printf("idle %.0f us\n", (perf::cpu_seconds() - before) * 1e6);
    }
    std::printf("rank %d of %d: ok\n", all.back().rank(), all.back().size());
    return 0;
  } catch (const nzcl::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  } catch (const std::bad_alloc&) {
    std::fputs("out of memory\n", stderr);
    return 3;
  }
}

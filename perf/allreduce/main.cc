// nzcl_allreduce_perf: the allreduce by size, type, density and overlap, beside its bound.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>

#include "nzcl/communicator.h"
#include "perf/allreduce/bound.h"
#include "perf/allreduce/compressed.h"
#include "perf/allreduce/free_memory.h"
#include "perf/allreduce/measure.h"
#include "perf/allreduce/memory_need.h"
#include "perf/local_ranks.h"
#include "runtime/gpu/emulated/emulated_gpu.h"

namespace perf::allreduce {
namespace {

using nlohmann::ordered_json;

nzcl::Options communicator_options(const Settings& s) {
  nzcl::Options options = nzcl::options_from_environment();
  if (!s.transport.empty()) options.transport = s.transport;
  if (s.format) options.tune.format = *s.format;
  if (s.algorithm) options.algorithm = *s.algorithm;
  if (s.aggregators > 0) options.aggregators = s.aggregators;
  return options;
}

/// Every rank has a chunk of the same size, of whole blocks if it has any, so that blocks are where they are
/// drawn.
std::uint64_t count_of(const Settings& s, std::uint64_t bytes, nzcl::DataType type, int ranks) {
  const std::uint64_t count = bytes / nzcl::element_bytes(type), n = static_cast<std::uint64_t>(ranks);
  const bool chunks = s.collective == Collective::reduce_scatter || s.collective == Collective::allgather;
  if (!chunks) return count;
  const std::uint64_t chunk = count / n;
  return (chunk < s.block ? chunk : chunk / s.block * s.block) * n;
}

struct Row {
  Problem problem;
  double union_density = 0, density = 0;
  double host_density = 0;  // of the union of a host's ranks
  bool in_place = false;
  Measurement measured;
  double bound_s = 0, entropy_bytes = 0;
};

/// Only rank 0 prints and writes.
class Output {
 public:
  Output(const nzcl::Communicator& communicator, const Settings& settings, const MemorySpeed& speed)
      : settings_(settings),
        transport_(communicator.options().transport),
        ranks_(communicator.size()),
        silent_(communicator.rank() != 0) {
    if (silent_) return;
    fmt::print("# {}\n", communicator.describe());
    fmt::print(
        "# {}  ranks {}  aggregators {}  blocks of {}  overlap {}  memory {}  input {}  output {}  "
        "iterations {} "
        "+ {}\n",
        name_of(settings.collective), ranks_,
        settings.aggregators ? std::to_string(settings.aggregators) : "colocated", settings.block,
        name_of(settings.overlap), name_of(settings.memory), settings.input(), settings.output(),
        settings.warm_up, settings.iterations);
    if (settings.link_gbits > 0) {
      fmt::print("# bound: wire, links of {:g} Gb/s each way, {} rank(s) on each\n", settings.link_gbits,
                 settings.host_ranks);
    } else {
      fmt::print("# bound: memory; this host's ranks together read {:.1f}, copy {:.1f} and add {:.1f} GB/s\n",
                 speed.read / 1e9, speed.copy / 1e9, speed.add / 1e9);
    }
    if (!settings.compress.empty()) fmt::print("# compressor {}\n", settings.compress);
    print_head();
  }

  void add(const Row& row) {
    rows_.push_back(json_of(row));
    busbw_sum_ += busbw(row);
    if (silent_) return;
    if (row.in_place) {
      print_times(row);
      print_own(fmt::format("{:.1f}", bound_percent(row)));
    } else {
      out_of_place_ = row;
      print_problem(row.problem);
      print_times(row);
      if (forms() == 1) {
        fmt::print(" {:>10} {:>7} {:>7} {:>7}", "N/A", "N/A", "N/A", "N/A");
        print_own("N/A");
      }
    }
    if (!settings_.compress.empty()) {
      fmt::print(
          "#   sent {:.4g} times fewer elements; a rank wrote {:.0f} B upwards, {:.4g} times less than "
          "dense, "
          "and received {:.0f} B of results; residual {:.4g}\n",
          row.density > 0 ? 1 / row.density : 0, row.measured.coded_bytes, row.measured.coded_ratio,
          row.measured.result_bytes, row.measured.residual_norm);
    }
    std::fflush(stdout);
  }

  /// Says at the end how messages are stored now, because threads may have moved to other cores.
  void describe_again(const nzcl::Communicator& communicator) const {
    if (!silent_) fmt::print("# {}\n", communicator.describe());
  }

  /// The mean of the column busbw, as nccl-tests print it.
  double average_busbw() const { return rows_.empty() ? 0 : busbw_sum_ / static_cast<double>(rows_.size()); }

  void finish() const {
    if (silent_ || settings_.json_file.empty()) return;
    std::ofstream file(settings_.json_file);
    file << ordered_json{{"results", rows_}}.dump(2) << '\n';
    if (!file.flush()) throw nzcl::Error(nzcl::ErrorCode::system, "cannot write " + settings_.json_file);
  }

 private:
  /// In how many forms each problem is timed: out of place and in place, or in a single one.
  int forms() const { return settings_.one_form() ? 1 : 2; }
  /// Up to the last `#wrong` the columns are those of nccl-tests, in their order, because many programs read
  /// them by their places.
  static void print_head() {
    fmt::print("#\n# {:>45}{:^36}{:^36}{:^46}\n", "", "out-of-place", "in-place", "nzcl");
    fmt::print("# {:>11} {:>12} {:>8} {:>6} {:>5}", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; ++i) fmt::print(" {:>10} {:>7} {:>7} {:>7}", "time", "algbw", "busbw", "#wrong");
    fmt::print(" {:>7} {:>6} {:>11} {:>6} {:>6} {:>6}\n", "density", "union", "wire", "wire/H", "bound%",
               "in-pl%");
    fmt::print("# {:>11} {:>12} {:>8} {:>6} {:>5}", "(B)", "(elements)", "", "", "");
    for (int i = 0; i < 2; ++i) fmt::print(" {:>10} {:>7} {:>7} {:>7}", "(us)", "(GB/s)", "(GB/s)", "");
    fmt::print(" {:>7} {:>6} {:>11}\n", "", "", "(B)");
    std::fflush(stdout);
  }
  void print_problem(const Problem& p) const {
    const bool sums =
        settings_.collective != Collective::broadcast && settings_.collective != Collective::allgather;
    const bool has_root =
        settings_.collective == Collective::broadcast || settings_.collective == Collective::reduce;
    fmt::print("  {:>11} {:>12} {:>8} {:>6} {:>5}", p.bytes(), p.count, nccl_name_of(p.type),
               sums ? nzcl::name_of(p.op) : "none", has_root ? 0 : -1);
  }
  void print_times(const Row& row) const {
    fmt::print(" {:>10.1f} {:>7.2f} {:>7.2f} {:>7}", row.measured.median() * 1e6, algbw(row), busbw(row),
               settings_.check ? std::to_string(row.measured.wrong) : "N/A");
  }
  /// The columns that nccl-tests do not have, and the end of the line. All but the last one are about the
  /// form that was timed first.
  void print_own(const std::string& bound_in_place) const {
    const Row& row = out_of_place_;
    fmt::print(" {:>7.3g} {:>6.3f} {:>11.0f} {:>6.3g} {:>6.1f} {:>6}\n",
               settings_.compress.empty() ? row.problem.density : row.density, row.union_density,
               row.measured.wire_bytes, over_entropy(row), bound_percent(row), bound_in_place);
  }
  static double bound_percent(const Row& row) { return 100 * row.bound_s / row.measured.median(); }
  static double algbw(const Row& r) {
    return static_cast<double>(r.problem.bytes()) / r.measured.median() / 1e9;
  }
  /// 0 where nothing has to be sent.
  static double over_entropy(const Row& r) {
    return r.entropy_bytes > 0 ? r.measured.wire_bytes / r.entropy_bytes : 0;
  }
  /// As nccl-tests define it.
  double busbw(const Row& r) const {
    const double others = static_cast<double>(ranks_ - 1) / ranks_;
    switch (settings_.collective) {
      case Collective::allreduce:
        return algbw(r) * 2 * others;
      case Collective::broadcast:
      case Collective::reduce:
        return algbw(r);
      case Collective::reduce_scatter:
      case Collective::allgather:
        return algbw(r) * others;
    }
    return 0;
  }
  ordered_json json_of(const Row& r) const {
    const auto& m = r.measured;
    const double gib = static_cast<double>(r.problem.bytes()) / (1 << 30);
    return {{"collective", name_of(settings_.collective)},
            {"bytes", r.problem.bytes()},
            {"count", r.problem.count},
            {"type", nzcl::name_of(r.problem.type)},
            {"op", nzcl::name_of(r.problem.op)},
            {"hint", settings_.hint},
            {"density", r.density},
            {"union", r.union_density},
            {"overlap", name_of(settings_.overlap)},
            {"block", settings_.compress.empty() ? settings_.block : 1},
            {"compress", settings_.compress},
            {"coded_bytes", m.coded_bytes},
            {"coded_ratio", m.coded_ratio},
            {"result_bytes", m.result_bytes},
            {"ranks", ranks_},
            {"aggregators",
             settings_.aggregators ? ordered_json(settings_.aggregators) : ordered_json("colocated")},
            {"transport", transport_},
            {"in_place", r.in_place},
            {"algorithm", nzcl::name_of(m.algorithm)},
            {"memory", name_of(settings_.memory)},
            {"input", settings_.input()},
            {"output", settings_.output()},
            {"time_us_min", m.seconds.front() * 1e6},
            {"time_us_median", m.median() * 1e6},
            {"time_us_max", m.seconds.back() * 1e6},
            {"algbw", algbw(r)},
            {"busbw", busbw(r)},
            {"wire_bytes", m.wire_bytes},
            {"entropy_bytes", r.entropy_bytes},
            {"cpu_s_per_gib", gib > 0 ? m.cpu_seconds / gib : 0},
            {"bound_us", r.bound_s * 1e6},
            {"bound", settings_.link_gbits > 0 ? "wire" : "memory"},
            {"wrong", settings_.check ? ordered_json(m.wrong) : ordered_json(nullptr)}};
  }

  const Settings& settings_;
  const std::string transport_;
  const int ranks_;
  const bool silent_;
  ordered_json rows_ = ordered_json::array();
  double busbw_sum_ = 0;
  Row out_of_place_;  // of the line that is being printed
};

/// Exchanges some large messages, so that nzcl has measured how it stores them before that is printed.
void measure_staging(nzcl::Communicator& communicator) {
  if (!communicator.options().transport.starts_with("cma") ||
      communicator.options().tune.staging != nzcl::Staging::automatic)
    return;
  if (communicator.options().algorithm == nzcl::Algorithm::switch_)
    return;  // it sums no bytes, and stores no messages
  constexpr std::size_t kCount = 16 << 20, kTimes = 8;
  std::vector<std::uint8_t> data(kCount, 0);
  const nzcl::RegisteredBuffer buffer = communicator.register_buffer(data.data(), data.size());
  for (std::size_t i = 0; i < kTimes; ++i) {
    communicator
        .allreduce({.input = data.data(),
                    .output = data.data(),
                    .count = kCount,
                    .type = nzcl::DataType::uint8,
                    .block_elems = 4096,
                    .dense = true})
        .wait();
  }
}

/// The speed of memory with all ranks at work, if the bound needs it.
MemorySpeed shared_memory_speed(nzcl::Communicator& communicator, Bench& bench, const Settings& settings) {
  if (settings.link_gbits > 0) return {};
  const MemorySpeed own = measure_memory(communicator.size(), [&] { communicator.barrier(); });
  const auto all = bench.sum({own.read, own.copy, own.add});
  return {all[0], all[1], all[2]};
}

/// What the bounds need to know of a row.
Load load_of(const Settings& settings, const Row& row) {
  const bool compresses = !settings.compress.empty();
  return {.bytes = static_cast<double>(row.problem.bytes()),
          .blocks = static_cast<double>(compresses ? row.problem.count : row.problem.blocks()),
          .density = row.density,
          .union_density = row.union_density,
          .host_density = row.host_density,
          .ranks = row.problem.ranks,
          .aggregators = settings.aggregators,
          .host_ranks = settings.host_ranks,
          .compresses = compresses,
          .scans = !compresses && !settings.bitmap && !settings.dense && !settings.stream_input,
          .in_place = row.in_place || settings.packed_output,
          .collective = settings.collective};
}

void add_bounds(const Settings& settings, const MemorySpeed& speed, Row& row) {
  const Load load = load_of(settings, row);
  row.entropy_bytes = entropy_bytes(load);
  if (settings.link_gbits > 0) {
    row.bound_s = wire_bound(load, settings.link_gbits * 1e9 / 8);
  } else if (settings.collective == Collective::allreduce) {
    row.bound_s = memory_bound(load, speed);
  }
}

/// Calls each(problem) for every type, operation, density and size that the settings ask for.
template <class Each>
void for_each_problem(const Settings& settings, int ranks, Each each) {
  for (const nzcl::DataType type : settings.types) {
    for (const nzcl::ReduceOp op : settings.ops) {
      for (const double density : settings.densities) {
        for (const std::uint64_t bytes : settings.sizes())
          each(Problem{.type = type,
                       .op = op,
                       .count = count_of(settings, bytes, type, ranks),
                       .block = settings.block,
                       .density = density,
                       .overlap = settings.overlap,
                       .ranks = ranks});
      }
    }
  }
}

/// Measures one problem, out of place and in place, and returns the number of wrong elements.
std::uint64_t measure(nzcl::Communicator& communicator, Bench& bench, const Settings& settings,
                      const MemorySpeed& speed, const Problem& problem, Output& output) {
  Row row{.problem = problem, .measured = {}};
  row.union_density = settings.dense ? 1 : problem.union_density();
  Problem of_host = problem;
  of_host.ranks = settings.host_ranks;
  row.host_density = settings.dense ? 1 : of_host.union_density();
  row.density = settings.dense ? 1 : bench.sum({problem.own_density(communicator.rank())})[0] / problem.ranks;
  std::uint64_t wrong = 0;
  for (const bool in_place : {false, true}) {
    if (in_place && settings.one_form()) continue;
    row.in_place = in_place;
    if (settings.compress.empty()) {
      row.measured = bench.run(problem, in_place);
    } else {
      row.measured = run_compressed(communicator, settings, problem);
      row.density = row.measured.density, row.union_density = row.measured.union_density;
    }
    add_bounds(settings, speed, row);
    wrong += row.measured.wrong;
    output.add(row);
  }
  return wrong;
}

/// Tells what it takes to begin: until the ranks have met, and then until the first operation is over, which
/// connects peers and touches memory for the first time.
void say_beginning(nzcl::Communicator& communicator, std::chrono::steady_clock::time_point begun) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  const auto met = std::chrono::steady_clock::now();
  std::array<float, 2> numbers{1, 1};  // sums of which every exchange can do
  const auto registered = communicator.register_buffer(numbers.data(), sizeof numbers);
  communicator.allreduce({.input = numbers.data(), .output = numbers.data(), .count = 2, .dense = true})
      .wait();
  const auto over = std::chrono::steady_clock::now();
  if (communicator.rank() == 0)
    fmt::print("# meeting took {:.1f} ms, the first operation, of 8 B, {:.1f} us\n",
               Microseconds(met - begun).count() / 1000, Microseconds(over - met).count());
}

int run(const Settings& settings) {
  const auto begun = std::chrono::steady_clock::now();
  if (is_emulated(settings.memory)) nzcl::gpu::EmulatedGpu::announce();
  nzcl::Communicator communicator(communicator_options(settings));
  say_beginning(communicator, begun);
  require_memory(settings, communicator);
  Bench bench(communicator, settings);
  const MemorySpeed speed = shared_memory_speed(communicator, bench, settings);
  measure_staging(communicator);
  Output output(communicator, settings, speed);
  std::uint64_t wrong = 0;
  for_each_problem(settings, communicator.size(), [&](const Problem& problem) {
    wrong += measure(communicator, bench, settings, speed, problem, output);
  });
  output.finish();
  output.describe_again(communicator);
  communicator.close();
  if (communicator.rank() == 0)
    fmt::print("# Out of bounds values : {} {}\n", wrong,
               !settings.check ? "(not checked)"
               : wrong == 0    ? "OK"
                               : "FAILED");
  if (communicator.rank() == 0) fmt::print("# Avg bus bandwidth    : {:.6g}\n", output.average_busbw());
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace perf::allreduce

int main(int argc, char** argv) {
  perf::allreduce::CommandLine command;
  const auto& settings = command.settings;
  try {
    command = perf::allreduce::parse_command_line(argc, argv);
    if (command.exit_status) return *command.exit_status;
    if (settings.serve >= 0) {
      nzcl::serve_aggregator(perf::allreduce::communicator_options(settings), settings.serve);
      return 0;
    }
    if (settings.ranks > 0) {
      perf::allreduce::require_memory(settings, settings.ranks, perf::allreduce::free_memory_bytes());
      return perf::run_local_ranks(settings.ranks, argc, argv, settings.aggregators);
    }
    return perf::allreduce::run(settings);
  } catch (const std::bad_alloc&) {  // by a limit of the process (ulimit -v), or what is needed on top
    fmt::print(
        stderr,
        "nzcl_allreduce_perf: the system gives no more memory to this process, which needs {} for its "
        "buffers alone, and {} are free: give a smaller -e (or -b), or raise its limit (ulimit -v)\n",
        perf::allreduce::size_text(perf::allreduce::least_bytes_of_rank(settings)),
        perf::allreduce::size_text(static_cast<double>(perf::allreduce::free_memory_bytes().value_or(0))));
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "nzcl_allreduce_perf: {}\n", error.what());
    return 1;
  }
}

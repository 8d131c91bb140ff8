// nzcl_allreduce_perf: the allreduce by size, type, density and overlap, beside its bound.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nzcl/communicator.h"
#include "perf/allreduce/bound.h"
#include "perf/allreduce/compressed.h"
#include "perf/allreduce/measure.h"
#include "perf/local_ranks.h"

namespace perf::allreduce {
namespace {

using nlohmann::ordered_json;

nzcl::Options communicator_options(const Settings& s) {
  nzcl::Options options = nzcl::options_from_environment();
  if (!s.transport.empty()) options.transport = s.transport;
  if (!s.format.empty()) options.format = s.format;
  if (!s.algorithm.empty()) options.algorithm = s.algorithm;
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
        "# {}  ranks {}  aggregators {}  blocks of {}  overlap {}  input {}  output {}  iterations {} + {}\n",
        name_of(settings.collective), ranks_,
        settings.aggregators ? std::to_string(settings.aggregators) : "colocated", settings.block,
        name_of(settings.overlap), settings.input(), settings.output(), settings.warm_up,
        settings.iterations);
    if (settings.link_gbits > 0) {
      fmt::print("# bound: wire, links of {:g} Gb/s each way\n", settings.link_gbits);
    } else {
      fmt::print("# bound: memory; this host's ranks together read {:.1f}, copy {:.1f} and add {:.1f} GB/s\n",
                 speed.read / 1e9, speed.copy / 1e9, speed.add / 1e9);
    }
    if (!settings.compress.empty()) fmt::print("# compressor {}\n", settings.compress);
    fmt::print("#\n# {:>68}{:^40}", "", "out-of-place");
    if (forms() == 2) fmt::print("   {:^40}", "in-place");
    fmt::print("\n# {:>11} {:>11} {:>8} {:>5} {:>7} {:>6} {:>10} {:>6}", "size", "count", "type", "redop",
               "density", "union", "wire", "wire/H");
    for (int i = 0; i < forms(); ++i)
      fmt::print(" {:>10} {:>7} {:>7} {:>6} {:>7}", "time", "algbw", "busbw", "bound%", "#wrong");
    fmt::print("\n# {:>11} {:>11} {:>8} {:>5} {:>7} {:>6} {:>10} {:>6}", "(B)", "(elements)", "", "", "", "",
               "(B)", "");
    for (int i = 0; i < forms(); ++i)
      fmt::print(" {:>10} {:>7} {:>7} {:>6} {:>7}", "(us)", "(GB/s)", "(GB/s)", "", "");
    fmt::print("\n");
    std::fflush(stdout);
  }

  void add(const Row& row) {
    rows_.push_back(json_of(row));
    if (silent_) return;
    const Problem& p = row.problem;
    if (!row.in_place) {
      fmt::print("  {:>11} {:>11} {:>8} {:>5} {:>7.3g} {:>6.3f} {:>10.0f} {:>6.3g}", p.bytes(), p.count,
                 nzcl::name_of(p.type), nzcl::name_of(p.op),
                 settings_.compress.empty() ? p.density : row.density, row.union_density,
                 row.measured.wire_bytes, over_entropy(row));
    }
    const double t = row.measured.median();
    fmt::print(" {:>10.1f} {:>7.2f} {:>7.2f} {:>6.1f} {:>7}", t * 1e6, algbw(row), busbw(row),
               100 * row.bound_s / t, settings_.check ? std::to_string(row.measured.wrong) : "N/A");
    if (row.in_place || forms() == 1) fmt::print("\n");
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

  void finish() const {
    if (silent_ || settings_.json_file.empty()) return;
    std::ofstream file(settings_.json_file);
    file << ordered_json{{"results", rows_}}.dump(2) << '\n';
    if (!file.flush()) throw nzcl::Error(nzcl::ErrorCode::system, "cannot write " + settings_.json_file);
  }

 private:
  /// In how many forms each problem is timed: out of place and in place, or in a single one.
  int forms() const { return settings_.one_form() ? 1 : 2; }
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
};

/// Exchanges some large messages, so that nzcl has measured how it stores them before that is printed.
void measure_staging(nzcl::Communicator& communicator) {
  if (communicator.options().transport != "cma" || communicator.options().staging != "auto") return;
  if (communicator.options().algorithm == "switch") return;  // it sums no bytes, and stores no messages
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
          .ranks = row.problem.ranks,
          .aggregators = settings.aggregators,
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

int run(const Settings& settings) {
  nzcl::Communicator communicator(communicator_options(settings));
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
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace perf::allreduce

int main(int argc, char** argv) {
  try {
    const auto command = perf::allreduce::parse_command_line(argc, argv);
    if (command.exit_status) return *command.exit_status;
    const auto& settings = command.settings;
    if (settings.serve >= 0) {
      nzcl::serve_aggregator(perf::allreduce::communicator_options(settings), settings.serve);
      return 0;
    }
    if (settings.ranks > 0) return perf::run_local_ranks(settings.ranks, argc, argv, settings.aggregators);
    return perf::allreduce::run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "nzcl_allreduce_perf: {}\n", error.what());
    return 1;
  }
}

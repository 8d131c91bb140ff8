// nzcl_lane_bench: what one lane of one rank takes among many, who stay quiet: its memory, the time to make
// it, and the time of a step in which there is nothing to do.
#include <benchmark/benchmark.h>

#include <fstream>

#include <unistd.h>

#include "perf/lane/lone_lane.h"
#include "runtime/exchange/push/push_exchange.h"

namespace perf::lane {
namespace {

constexpr double kMiB = 1 << 20;

/// The memory of this process that is resident, in bytes.
double resident() {
  std::ifstream statm("/proc/self/statm");
  double all = 0, pages = 0;
  statm >> all >> pages;
  return pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void make(benchmark::State& state) {
  double registered = 0, beside = 0;
  for (auto _ : state) {
    const double before = resident();
    const LoneLane lone(static_cast<int>(state.range(0)), 8);
    registered = static_cast<double>(lone.device().allocated());
    beside = resident() - before;
  }
  state.counters["registered_MiB"] = registered / kMiB;
  state.counters["beside_MiB"] = beside / kMiB;
}
BENCHMARK(make)->Arg(16)->Arg(64)->Arg(128)->Arg(256)->Arg(1024)->Arg(4096)->Iterations(1)->Unit(
    benchmark::kMillisecond);

/// A step of the exchange of large operations while all members are idle.
void step(benchmark::State& state) {
  using namespace nzcl;
  QuietDevice device({});
  const auto config =
      engine::plan_engine({}, many_ranks(static_cast<int>(state.range(0)), 8), verbs::Limits{});
  const auto context = std::make_unique<engine::LaneContext>(config);
  const engine::LaneMemory memory(context->config, device);
  memory.attach(*context);
  engine::PushExchange exchange(*context, wire::Priority::bulk);
  for (auto _ : state) benchmark::DoNotOptimize(exchange.step());
}
BENCHMARK(step)->Arg(2)->Arg(16)->Arg(64)->Arg(256)->Arg(1024)->Arg(4096);

}  // namespace
}  // namespace perf::lane

BENCHMARK_MAIN();

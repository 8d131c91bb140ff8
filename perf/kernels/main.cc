// nzcl_kernel_bench has the options and the output of Google Benchmark. perf/README.md describes its rows.
#include <benchmark/benchmark.h>

#include <string>

#include "perf/kernels/beside.h"
#include "runtime/kernels/forced_target.h"
#include "runtime/kernels/scan_streams.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    perf::kernels::register_scans(hwy::TargetName(target), target);
    perf::kernels::register_reductions(hwy::TargetName(target), target);
    perf::kernels::register_elements(hwy::TargetName(target), target);
    perf::kernels::register_element_sums(hwy::TargetName(target), target);
    perf::kernels::register_units(hwy::TargetName(target), target);
    perf::kernels::register_compression(hwy::TargetName(target), target);
    perf::kernels::register_indices(hwy::TargetName(target), target);
  }
  perf::kernels::register_copies();
  benchmark::AddCustomContext("scan_streams", std::to_string(nzcl::fastest_scan_streams()));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

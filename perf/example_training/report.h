// What the program prints and writes to files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perf/example_training/counters.h"
#include "perf/example_training/quality.h"
#include "perf/example_training/settings.h"

namespace train {

/// One training run and what came out.
struct RunResult {
  Exchange exchange;
  Counters counters = {};  ///< of the whole job
  std::uint64_t weights_hash = 0;
  Quality quality = {};
};

std::string_view name_of(Exchange exchange);

/// Prints text for people. Only rank 0 prints; the objects of the others are silent.
class Report {
 public:
  Report(bool silent, int ranks, std::size_t vocabulary, std::size_t dim);

  void line(const std::string& text) const;
  void progress(Exchange exchange, std::uint64_t step, std::uint64_t steps, const Counters& interval) const;
  void table(const std::vector<RunResult>& results) const;
  void neighbours(const Similarity& similarity, const Vocabulary& vocabulary,
                  const std::vector<std::string>& words) const;
  void quality(const Quality& quality) const;

 private:
  double wire_per_step(const Counters& counters) const;  // MB per rank
  double dense_bound() const;                            // MB per rank and step

  bool silent_;
  int ranks_;
  std::size_t vocabulary_, dim_;
};

/// Throws std::runtime_error if the file cannot be written.
void write_json(const Settings& settings, int ranks, std::size_t vocabulary,
                const std::vector<RunResult>& results, const std::vector<std::string>& failures);

}  // namespace train

// The program's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/example_training/trainer.h"

namespace train {

struct Settings {
  std::string text = "/usr/share/dictd/gcide.dict.dz";
  std::size_t text_bytes = SIZE_MAX;  ///< how much of the text is read
  std::uint64_t min_count = 5;
  double subsample = 1e-4;
  double epochs = 2;
  std::uint64_t steps = 0;  ///< 0: as many as the epochs have
  int reports = 10;         ///< progress lines per run
  /// Of all ranks together, so that a model does not depend on the number of ranks.
  std::size_t words_per_step = 4096;
  TrainerSettings trainer;  ///< its steps and batch.words follow from the above, once the ranks are known
  std::vector<Exchange> exchanges = {Exchange::bitmap, Exchange::dense};  ///< one run each, in this order
  bool through_switch() const { return exchanges.front() == Exchange::slots; }
  bool quick = false;
  bool check = true;  ///< a model that learned too little fails the run
  std::vector<std::string> words = {"gold", "king", "oxygen", "tree", "ship", "latin", "anger", "seven"};
  std::string transport;  ///< empty: as nzcl's options say
  std::string json;       ///< file for the results
  int serve = -1;         ///< 0 or more: this process is that aggregator, started by --ranks
  int local_ranks = 0;    ///< ranks to start on this machine; 0: this process is one, placed by its launcher
};

struct CommandLine {
  Settings settings;
  std::optional<int> exit_status;  ///< set if --help or an error was printed and nothing is left to do
};
CommandLine parse_command_line(int argc, char** argv);

}  // namespace train

// The program's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/train/trainer.h"

namespace train {

struct Settings {
  std::string text = "/usr/share/dictd/gcide.dict.dz";
  std::size_t text_bytes = SIZE_MAX;  ///< only the first so many
  std::uint64_t min_count = 5;
  double subsample = 1e-4;
  double epochs = 2;
  std::uint64_t steps = 0;  ///< 0: from epochs
  int reports = 10;         ///< progress lines per run
  std::size_t words_per_step =
      4096;                 ///< of all ranks together, so that a model does not depend on the number of ranks
  TrainerSettings trainer;  ///< its steps and batch.words follow from the above, once the ranks are known
  std::vector<Exchange> exchanges = {Exchange::bitmap, Exchange::dense};  ///< one run each, in this order
  bool quick = false;
  bool check = true;  ///< a model that learned too little fails the run
  std::vector<std::string> words = {"gold", "king", "oxygen", "tree", "ship", "latin", "anger", "seven"};
  std::string transport;  ///< "": as nzcl's own settings say
  std::string json;       ///< file for the results
  int local_ranks = 0;    ///< start so many ranks here; 0: this process is one, placed by its launcher
};

struct CommandLine {
  Settings settings;
  std::optional<int> exit_status;  ///< set: --help or an error was printed, and nothing is left to do
};
CommandLine parse_command_line(int argc, char** argv);

}  // namespace train

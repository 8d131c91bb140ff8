#include "perf/example_training/settings.h"

#include <CLI/CLI.hpp>

namespace train {
namespace {

constexpr int kBadUsage = 2;  // exit status

constexpr char kDescription[] =
    "Learns word embeddings (skip-gram with negative sampling) from an English text, data-parallel over "
    "nzcl: every rank\n"
    "reads its shard, and every step sums the gradients of both embedding tables with a sparse allreduce.\n"
    "Exit status: 0 = the model is good and all ranks have the same; 1 = it is not, or a rank failed; 2 = "
    "bad usage.";

/// Other defaults; what the command line says still counts.
void apply_quick(const CLI::App& app, Settings& settings) {
  settings.text_bytes = 12 << 20;
  if (app.count("--min-count") == 0) settings.min_count = 10;
  if (app.count("--batch") == 0) settings.words_per_step = 2048;
  if (app.count("--steps") == 0) settings.steps = 400;
  if (app.count("--reports") == 0) settings.reports = 5;
  if (app.count("--dim") == 0) settings.trainer.dim = 32;
}

std::vector<Exchange> exchanges(const std::string& algorithm, bool scan) {
  const Exchange sparse = scan ? Exchange::scan : Exchange::bitmap;
  if (algorithm == "sparse") return {sparse};
  if (algorithm == "dense") return {Exchange::dense};
  if (algorithm == "switch") return {Exchange::slots};
  return {sparse, Exchange::dense};
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  Settings settings;
  TrainerSettings& trainer = settings.trainer;
  std::string algorithm = "both";
  bool scan = false, no_check = false;

  CLI::App app(kDescription, "nzcl_train");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", settings.local_ranks,
                 "Start so many ranks on this machine; 0: use the launcher's (mpirun, torchrun)")
      ->check(CLI::Range(0, 64))
      ->take_last();
  app.add_option(
         "--algorithm", algorithm,
         "sparse, dense (the same with sparsity off), both of these, one after the other, or switch: "
         "sparse, through slot pools at dedicated aggregators. --ranks starts as many of them as "
         "NZCL_AGGREGATORS says, and one for switch; with a launcher set it, and start nzcl_aggregator "
         "--switch")
      ->check(CLI::IsMember({"sparse", "dense", "both", "switch"}));
  app.add_option("--serve", settings.serve)->group("");
  app.add_flag("--scan", scan,
               "Let nzcl find the non-zero rows, instead of telling it the rows that were touched");
  app.add_option("--compress", trainer.compressor,
                 "One run with compressed gradients instead: adacomp:500, topk:0.01, qsgd:4 and others "
                 "(nzcl/compress.h)");
  app.add_option("--transport", settings.transport,
                 "shm, tcp, or a libfabric provider; default: nzcl's settings");
  app.add_option("--text", settings.text, "The text, plain or gzip; default: Debian's package dict-gcide");
  app.add_option("--min-count", settings.min_count, "Ignore words that occur less often")
      ->check(CLI::PositiveNumber);
  app.add_option("--subsample", settings.subsample, "Threshold for leaving out frequent words")
      ->check(CLI::PositiveNumber);
  app.add_option("--dim", trainer.dim, "Numbers per word")->check(CLI::Range(4, 1024));
  app.add_option("--batch", settings.words_per_step, "Words per step, of all ranks together")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--window", trainer.batch.window, "Words on each side")->check(CLI::Range(1, 100));
  app.add_option("--negatives", trainer.batch.negatives, "Negative examples per word")
      ->check(CLI::Range(1, 100));
  app.add_option("--rate", trainer.rate, "Learning rate")->check(CLI::PositiveNumber);
  app.add_option("--seed", trainer.seed, "Same seed and number of ranks: same model, to the last bit");
  app.add_option("--epochs", settings.epochs, "Passes over the text")->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "Steps instead of epochs; 0: from --epochs");
  app.add_option("--words", settings.words, "Show the nearest neighbours of these words, comma-separated")
      ->delimiter(',');
  app.add_option("--reports", settings.reports, "Progress lines per run")->check(CLI::Range(1, 10000));
  app.add_flag("--no-check", no_check,
               "Do not fail if the model learned too little, as after very few steps");
  app.add_flag("--quick", settings.quick,
               "A small model in seconds, judged mildly: the first 12 MiB, 400 steps, 32 numbers per word");
  app.add_option("--json", settings.json, "Write the results to this file");
  try {
    app.parse(argc, argv);
    if (algorithm == "switch" && (scan || !trainer.compressor.empty()))
      throw CLI::ValidationError("--algorithm", "switch takes neither --scan nor --compress");
  } catch (const CLI::ParseError& error) {
    return {settings, app.exit(error) == 0 ? 0 : kBadUsage};
  }

  settings.check = !no_check;
  settings.exchanges = exchanges(algorithm, scan);
  if (!trainer.compressor.empty()) settings.exchanges = {Exchange::compressed};
  if (settings.quick) apply_quick(app, settings);
  return {settings, std::nullopt};
}

}  // namespace train

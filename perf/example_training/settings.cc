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

/// What the command line says in another form than the settings.
struct Texts {
  std::string algorithm = "both";
  bool scan = false, no_check = false;
};

/// Who trains, and how gradients are exchanged.
void add_exchange(CLI::App& app, Settings& s, Texts& t) {
  app.add_option("--ranks", s.local_ranks,
                 "Start so many ranks on this machine; 0: use the launcher's (mpirun, torchrun)")
      ->check(CLI::Range(0, 64))
      ->take_last();
  app.add_option(
         "--algorithm", t.algorithm,
         "sparse, dense (the same with sparsity off), both of these, one after the other, or switch: "
         "sparse, through slot pools at dedicated aggregators. --ranks starts as many of them as "
         "NZCL_AGGREGATORS says, and one for switch; with a launcher set it, and start nzcl_aggregator "
         "--switch")
      ->check(CLI::IsMember({"sparse", "dense", "both", "switch"}));
  app.add_option("--serve", s.serve)->group("");
  app.add_flag("--scan", t.scan,
               "Let nzcl find the non-zero rows, instead of telling it the rows that were touched");
  app.add_option("--compress", s.trainer.compressor,
                 "One run with compressed gradients instead: adacomp:500, topk:0.01, qsgd:4 and others "
                 "(nzcl/compress.h)");
  app.add_option("--transport", s.transport, "shm, tcp, or a libfabric provider; default: nzcl's settings");
}

void add_text(CLI::App& app, Settings& s) {
  app.add_option("--text", s.text, "The text, plain or gzip; default: Debian's package dict-gcide");
  app.add_option("--min-count", s.min_count, "Ignore words that occur less often")
      ->check(CLI::PositiveNumber);
  app.add_option("--subsample", s.subsample, "Threshold for leaving out frequent words")
      ->check(CLI::PositiveNumber);
}

void add_model(CLI::App& app, Settings& s) {
  app.add_option("--dim", s.trainer.dim, "Numbers per word")->check(CLI::Range(4, 1024));
  app.add_option("--batch", s.words_per_step, "Words per step, of all ranks together")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--window", s.trainer.batch.window, "Words on each side")->check(CLI::Range(1, 100));
  app.add_option("--negatives", s.trainer.batch.negatives, "Negative examples per word")
      ->check(CLI::Range(1, 100));
  app.add_option("--rate", s.trainer.rate, "Learning rate")->check(CLI::PositiveNumber);
  app.add_option("--seed", s.trainer.seed, "Same seed and number of ranks: same model, to the last bit");
}

/// How long it trains, and what is told of it.
void add_run(CLI::App& app, Settings& s, Texts& t) {
  app.add_option("--epochs", s.epochs, "Passes over the text")->check(CLI::PositiveNumber);
  app.add_option("--steps", s.steps, "Steps instead of epochs; 0: from --epochs");
  app.add_option("--words", s.words, "Show the nearest neighbours of these words, comma-separated")
      ->delimiter(',');
  app.add_option("--reports", s.reports, "Progress lines per run")->check(CLI::Range(1, 10000));
  app.add_flag("--no-check", t.no_check,
               "Do not fail if the model learned too little, as after very few steps");
  app.add_flag("--quick", s.quick,
               "A small model in seconds, judged mildly: the first 12 MiB, 400 steps, 32 numbers per word");
  app.add_option("--json", s.json, "Write the results to this file");
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  Settings settings;
  Texts t;
  CLI::App app(kDescription, "nzcl_train");
  app.option_defaults()->always_capture_default();
  add_exchange(app, settings, t);
  add_text(app, settings);
  add_model(app, settings);
  add_run(app, settings, t);
  try {
    app.parse(argc, argv);
    if (t.algorithm == "switch" && (t.scan || !settings.trainer.compressor.empty()))
      throw CLI::ValidationError("--algorithm", "switch takes neither --scan nor --compress");
  } catch (const CLI::ParseError& error) {
    return {settings, app.exit(error) == 0 ? 0 : kBadUsage};
  }

  settings.check = !t.no_check;
  settings.exchanges = exchanges(t.algorithm, t.scan);
  if (!settings.trainer.compressor.empty()) settings.exchanges = {Exchange::compressed};
  if (settings.quick) apply_quick(app, settings);
  return {settings, std::nullopt};
}

}  // namespace train

// nzcl_train, the example of an integration. It trains word embeddings over nzcl, sparse and dense, and
// checks the result.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "perf/example_training/dataset.h"
#include "perf/example_training/quality.h"
#include "perf/example_training/report.h"
#include "perf/example_training/settings.h"
#include "perf/example_training/trainer.h"
#include "perf/local_ranks.h"

namespace train {
namespace {

nzcl::Options communicator_options(const Settings& settings) {
  nzcl::Options options = nzcl::options_from_environment();
  if (!settings.transport.empty()) options.transport = settings.transport;
  if (settings.through_switch()) options.algorithm = nzcl::Algorithm::switch_;
  return options;
}

/// Starts ranks on this machine, and the dedicated aggregators that they need.
int start_ranks(const Settings& settings, int argc, char** argv) {
  int aggregators = communicator_options(settings).aggregators;
  if (aggregators == 0 && settings.through_switch()) {
    aggregators = 1;
    ::setenv("NZCL_AGGREGATORS", "1", 1);  // for the ranks
  }
  return perf::run_local_ranks(settings.local_ranks, argc, argv, aggregators);
}

/// What a run leaves behind. The model itself is not kept: its hash and quality are enough to compare runs,
/// and its similarities to show the nearest words.
struct Outcome {
  RunResult result;
  Similarity similarity;
};

Outcome run(nzcl::Communicator& communicator, const Dataset& data, const Settings& settings,
            Exchange exchange, const Report& report) {
  // Each rank draws its own words; the held-out sample is the same everywhere and in every run.
  const TrainerSettings& trainer_settings = settings.trainer;
  const std::uint64_t rank = static_cast<std::uint64_t>(communicator.rank());
  BatchStream batches = data.batches(trainer_settings.batch, trainer_settings.seed * 1000 + rank);
  const Batch held_out = data.held_out(trainer_settings.batch, trainer_settings.seed);

  Trainer trainer(communicator, batches, data.vocabulary().size(), trainer_settings, exchange);
  RunResult result{.exchange = exchange};
  result.quality.initial_loss = trainer.model().loss(held_out).mean();
  result.counters = trainer.run([&](std::uint64_t step, const Counters& interval) {
    report.progress(exchange, step, trainer_settings.steps, interval);
  });
  result.weights_hash = trainer.model().hash();
  result.quality.final_loss = trainer.model().loss(held_out).mean();
  Similarity similarity(trainer.model());
  result.quality.words = related_words(similarity, data.vocabulary());
  return {std::move(result), std::move(similarity)};
}

void fill_in_steps(Settings& settings, const Dataset& data, int ranks) {
  TrainerSettings& trainer = settings.trainer;
  trainer.batch.words = std::max<std::size_t>(1, settings.words_per_step / static_cast<std::size_t>(ranks));
  trainer.steps = settings.steps > 0 ? settings.steps : data.steps(settings.epochs, settings.words_per_step);
  trainer.report_every =
      std::max<std::uint64_t>(1, trainer.steps / static_cast<std::uint64_t>(settings.reports));
}

/// Every rank comes to the same conclusion, as all have the same weights.
std::vector<std::string> failures(const std::vector<RunResult>& results, const Settings& settings,
                                  std::size_t vocabulary) {
  std::vector<std::string> found;
  for (const RunResult& result : results)
    if (result.weights_hash != results.front().weights_hash)
      found.push_back(
          fmt::format("the weights of the {} and the {} run differ: nzcl summed differently in one of them",
                      name_of(results.front().exchange), name_of(result.exchange)));
  if (!settings.check) return found;
  const Requirements required = settings.quick ? quick_run_requirements() : full_run_requirements();
  for (const std::string& text : shortcomings(results.back().quality, vocabulary, required))
    found.push_back(text);
  return found;
}

int train_as_rank(Settings settings) {
  Dataset data(settings);
  nzcl::Communicator communicator(communicator_options(settings));
  const int ranks = communicator.size();
  data.keep_shard(communicator.rank(), ranks);
  fill_in_steps(settings, data, ranks);

  const Report report(communicator.rank() != 0, ranks, data.vocabulary().size(), settings.trainer.dim);
  report.line(communicator.describe());
  report.line(fmt::format("{}: {} words of text, vocabulary {}, {} steps of {} x {} words", settings.text,
                          data.vocabulary().total(), data.vocabulary().size(), settings.trainer.steps, ranks,
                          settings.trainer.batch.words));

  std::vector<RunResult> results;
  for (const Exchange exchange : settings.exchanges) {
    const Outcome outcome = run(communicator, data, settings, exchange, report);
    results.push_back(outcome.result);
    if (results.size() == settings.exchanges.size())
      report.neighbours(outcome.similarity, data.vocabulary(), settings.words);
  }
  communicator.close();

  const std::vector<std::string> failed = failures(results, settings, data.vocabulary().size());
  report.quality(results.back().quality);
  report.table(results);
  for (const std::string& text : failed) report.line("FAILED: " + text);
  if (failed.empty())
    report.line(results.size() > 1 ? "OK: both runs learned the same weights, to the last bit" : "OK");
  if (communicator.rank() == 0 && !settings.json.empty())
    write_json(settings, ranks, data.vocabulary().size(), results, failed);
  return failed.empty() ? 0 : 1;
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  try {
    const train::CommandLine command = train::parse_command_line(argc, argv);
    if (command.exit_status) return *command.exit_status;
    const train::Settings& settings = command.settings;
    if (settings.local_ranks > 0) return train::start_ranks(settings, argc, argv);
    if (settings.serve >= 0) {
      nzcl::serve_aggregator(train::communicator_options(settings), settings.serve);
      return 0;
    }
    return train::train_as_rank(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "nzcl_train: {}\n", error.what());
    return 1;
  }
}

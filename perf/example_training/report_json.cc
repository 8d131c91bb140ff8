#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "perf/example_training/report.h"

namespace train {
namespace {

nlohmann::ordered_json to_json(const RunResult& result, int ranks) {
  const Counters& c = result.counters;
  const Quality& q = result.quality;
  return {{"algorithm", name_of(result.exchange)},
          {"steps", c.steps},
          {"seconds", c.seconds},
          {"words_per_second", c.words / c.seconds},
          {"communication_seconds", c.communication_seconds},
          {"communication_share", c.communication_share()},
          {"input_density", c.input_density()},
          {"union_density", c.union_density()},
          {"bytes_sent_per_rank_and_step", c.wire_bytes / c.steps / ranks},
          {"coded_bytes_per_rank_and_step", c.coded_bytes / c.steps / ranks},
          {"training_loss", c.mean_loss()},
          {"held_out_loss_before", q.initial_loss},
          {"held_out_loss_after", q.final_loss},
          {"related_pairs", q.words.pairs},
          {"related_cosine", q.words.related_cosine},
          {"control_cosine", q.words.control_cosine},
          {"median_rank", q.words.median_rank},
          {"weights_hash", fmt::format("{:016x}", result.weights_hash)}};
}

}  // namespace

void write_json(const Settings& settings, int ranks, std::size_t vocabulary,
                const std::vector<RunResult>& results, const std::vector<std::string>& failures) {
  nlohmann::ordered_json root = {{"text", settings.text},
                                 {"ranks", ranks},
                                 {"vocabulary", vocabulary},
                                 {"dim", settings.trainer.dim},
                                 {"words_per_rank_and_step", settings.trainer.batch.words},
                                 {"seed", settings.trainer.seed},
                                 {"compressor", settings.trainer.compressor},
                                 {"failures", failures}};
  for (const RunResult& result : results) root["runs"].push_back(to_json(result, ranks));
  std::ofstream file(settings.json);
  file << root.dump(2) << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write the results to '" + settings.json + "'");
}

}  // namespace train

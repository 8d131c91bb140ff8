#include "perf/example_training/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <functional>

namespace train {
namespace {

double ms_per_step(const Counters& c) { return 1e3 * c.seconds / c.steps; }
double communication_ms(const Counters& c) { return 1e3 * c.communication_seconds / c.steps; }

}  // namespace

std::string_view name_of(Exchange exchange) {
  switch (exchange) {
    case Exchange::bitmap:
      return "sparse";
    case Exchange::scan:
      return "scan";
    case Exchange::dense:
      return "dense";
    case Exchange::compressed:
      return "compressed";
    case Exchange::slots:
      return "switch";
  }
  return "?";
}

Report::Report(bool silent, int ranks, std::size_t vocabulary, std::size_t dim)
    : silent_(silent), ranks_(ranks), vocabulary_(vocabulary), dim_(dim) {}

void Report::line(const std::string& text) const {
  if (silent_) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);  // progress must be seen through a pipe, too
}

double Report::wire_per_step(const Counters& counters) const {
  return counters.wire_bytes / counters.steps / ranks_ / 1e6;
}

/// A ring allreduce of both tables: every rank sends 2 (N-1)/N of them.
double Report::dense_bound() const {
  const double bytes = 2.0 * static_cast<double>(vocabulary_ * dim_ * sizeof(float));
  return 2.0 * (ranks_ - 1) / ranks_ * bytes / 1e6;
}

void Report::progress(Exchange exchange, std::uint64_t step, std::uint64_t steps, const Counters& c) const {
  line(fmt::format(
      "{:<6} step {:>5}/{}  {:>8.0f} words/s  loss {:.3f}  allreduce {:>2.0f} % of time  blocks {:.1f} % -> "
      "{:.1f} %  "
      "wire {:.2f} MB/step (dense ring {:.2f})  ranks agree",
      name_of(exchange), step, steps, c.words / c.seconds, c.mean_loss(), 100 * c.communication_share(),
      100 * c.input_density(), 100 * c.union_density(), wire_per_step(c), dense_bound()));
}

void Report::table(const std::vector<RunResult>& results) const {
  const auto row = [&](std::string_view title, const std::function<std::string(const Counters&)>& cell) {
    std::string text = fmt::format("{:<38}", title);
    for (const RunResult& result : results) text += fmt::format("{:>14}", cell(result.counters));
    line(text);
  };
  std::string head =
      fmt::format("\n{:<38}", fmt::format("{} ranks, {} words x {}", ranks_, vocabulary_, dim_));
  for (const RunResult& result : results) head += fmt::format("{:>14}", name_of(result.exchange));
  line(head);
  row("words/s", [](const Counters& c) { return fmt::format("{:.0f}", c.words / c.seconds); });
  row("time per step, ms", [](const Counters& c) { return fmt::format("{:.2f}", ms_per_step(c)); });
  row("  of this in allreduce, ms",
      [](const Counters& c) { return fmt::format("{:.2f}", communication_ms(c)); });
  row("  share, %", [](const Counters& c) { return fmt::format("{:.0f}", 100 * c.communication_share()); });
  row("block density in, %",
      [](const Counters& c) { return fmt::format("{:.2f}", 100 * c.input_density()); });
  row("union density out, %",
      [](const Counters& c) { return fmt::format("{:.2f}", 100 * c.union_density()); });
  row("sent per rank and step, MB",
      [this](const Counters& c) { return fmt::format("{:.3f}", wire_per_step(c)); });
  row("  dense ring would send, MB",
      [this](const Counters&) { return fmt::format("{:.3f}", dense_bound()); });
  row("seconds in all", [](const Counters& c) { return fmt::format("{:.1f}", c.seconds); });
  if (results.size() < 2) return;
  const Counters &sparse = results.front().counters, &dense = results.back().counters;
  line(fmt::format(
      "sparse against dense: {:.2f} x the words/s, allreduce {:.2f} x as fast, {:.1f} x fewer bytes",
      ms_per_step(dense) / ms_per_step(sparse), communication_ms(dense) / communication_ms(sparse),
      dense.wire_bytes / sparse.wire_bytes));
}

void Report::neighbours(const Similarity& similarity, const Vocabulary& vocabulary,
                        const std::vector<std::string>& words) const {
  line("\nnearest neighbours (cosine)");
  for (const std::string& word : words) {
    const auto id = vocabulary.find(word);
    if (!id) {
      line(fmt::format("  {:<10} is not in the vocabulary", word));
      continue;
    }
    std::string text = fmt::format("  {:<10}", word);
    for (const Neighbour& near : similarity.nearest(*id, 7))
      text += fmt::format(" {} {:.2f} ", vocabulary.word(near.word), near.cosine);
    line(text);
  }
}

void Report::quality(const Quality& quality) const {
  line(fmt::format("\nheld-out loss: {:.3f} before, {:.3f} after", quality.initial_loss, quality.final_loss));
  const RelatedWords& words = quality.words;
  line(
      fmt::format("{} pairs of related words: mean cosine {:.3f}, paired wrongly {:.3f}; median rank of the "
                  "partner {:.0f} of {}",
                  words.pairs, words.related_cosine, words.control_cosine, words.median_rank, vocabulary_));
}

}  // namespace train

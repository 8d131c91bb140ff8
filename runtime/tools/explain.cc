#include "runtime/tools/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "nzcl/error.h"
#include "runtime/comm/hello.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/plan/transport_choice.h"
#include "verbs/transport.h"

namespace nzcl::tools {
namespace {

/// Text of a size, such as "64 MiB".
std::string size_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

/// Microseconds, with three digits that say something.
std::string time_text(double seconds) { return fmt::format("{:.3g}", seconds * 1e6); }

/// The membership that such ranks would find if they met.
engine::Membership membership_of(const Question& q, const Options& options) {
  std::vector<comm::Hello> hellos;
  const int members = q.ranks + options.aggregators;
  for (int i = 0; i < members; ++i) {
    const bool worker = i < q.ranks;
    comm::Hello h;
    h.role = worker ? comm::Role::worker : comm::Role::aggregator;
    h.index = worker ? i : i - q.ranks;
    h.host = h.network = h.process_space = h.host_name =
        fmt::format("host {}", worker ? i * q.hosts / q.ranks : (i - q.ranks) % q.hosts);
    h.lanes = options.lanes;
    h.cores = q.cores;
    h.cache_bytes = q.cache_bytes;
    h.options = options;
    hellos.push_back(h);
  }
  return comm::membership_of(hellos, 0);
}

class Explanation {
 public:
  Explanation(const Question& q, const Options& options)
      : q_(q),
        options_(options),
        membership_(membership_of(q, options)),
        config_(engine::plan_engine(options, membership_, verbs::Limits{})) {
    record_.count = q.bytes / element_bytes(q.type);
    record_.block_elems = q.block_elems;
    record_.type = static_cast<std::uint8_t>(q.type);
    case_ = engine::exchange_case(config_, record_, q.density);
  }

  std::string text() {
    say("allreduce of {} of {} ({} elements in blocks of {}), {:.4g} % of the blocks not zero\n",
        size_text(static_cast<double>(q_.bytes)), name_of(q_.type), record_.count, q_.block_elems,
        100 * q_.density);
    say("{} rank(s) on {} host(s) with {} core(s) each, {}, over {}\n\n", q_.ranks, q_.hosts, q_.cores,
        options_.aggregators > 0 ? fmt::format("{} dedicated aggregator(s)", options_.aggregators)
                                 : "ranks sum",
        engine::transport_of(options_, membership_));
    forms();
    ways();
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  void form(const char* what, double density) {
    const double coded = engine::coded_bytes(case_, density), least = engine::entropy_bytes(case_, density);
    say("  {:<13} {:>8.4g} {:>12} {:>12} {:>8}\n", what, 100 * density, size_text(coded), size_text(least),
        least > 0 ? fmt::format("{:.3f}", coded / least) : "-");
  }

  void forms() {
    say("Forms ({})\n", case_.tiled ? "tiles: bitmap, offsets or gaps, whichever is shortest for each tile"
                                    : "a bitmap of the blocks, and those that are not zero");
    say("  {:<13} {:>8} {:>12} {:>12} {:>8}\n", "", "% held", "on the wire", "entropy", "ratio");
    form("contribution", q_.density);
    form("result", case_.union_density());
    say("\n");
  }

  /// Why this algorithm cannot be asked for, or nothing if it can.
  std::optional<std::string> refusal(Algorithm asked) const {
    try {
      engine::choose_algorithm(config_, record_, asked);
    } catch (const Error& e) {
      const std::string text = e.what();
      return text.substr(text.find(": ") + 2);
    }
    return std::nullopt;
  }

  void way(const char* name, Algorithm algorithm, const engine::Prediction& p) {
    if (const auto why = refusal(algorithm)) {
      say("  {:<9} no: {}\n", name, *why);
      return;
    }
    say("  {:<9} {:>5} {:>8.0f} {:>12} {:>9} {:>9} {:>9} {:>9} {:>10}\n", name, p.steps, p.messages,
        size_text(p.sent_bytes), time_text(p.latency), time_text(p.handling), time_text(p.link),
        time_text(p.processing), time_text(p.seconds()));
  }

  void ways() {
    say("Ways to exchange it (times in us, predicted with round figures for such links)\n");
    say("  {:<9} {:>5} {:>8} {:>12} {:>9} {:>9} {:>9} {:>9} {:>10}\n", "", "steps", "messages", "rank sends",
        "latency", "handling", "link", "bytes", "predicted");
    const engine::Prediction push = predict_push(case_, config_.link_costs);
    const engine::Prediction doubling = predict_doubling(case_, config_.link_costs);
    const engine::Prediction merging = predict_merging(case_, config_.link_costs);
    way("push", Algorithm::push, push);
    way("doubling", Algorithm::doubling, doubling);
    way("merging", Algorithm::merging, merging);
    if (const auto why = refusal(Algorithm::switch_)) say("  {:<9} no: {}\n", "switch", *why);
    say("\nsteps: messages that wait for one another. messages: of the busiest rank. The slower one of link "
        "and "
        "bytes counts.\n");
    say("{}\n", verdict(push, doubling));
  }

  std::string verdict(const engine::Prediction& push, const engine::Prediction& doubling) const {
    if (config_.algorithm == Algorithm::switch_) return "Chosen: switch, as NZCL_ALGORITHM says.";
    const auto chosen = engine::choose_algorithm(config_, record_, Algorithm::automatic);
    const bool doubles = chosen == wire::Algorithm::doubling;
    if (config_.algorithm != Algorithm::automatic)
      return fmt::format("Chosen: {}, as NZCL_ALGORITHM says where it can be.",
                         doubles ? "doubling" : "push");
    if (q_.ranks == 1) return "Chosen: push; nothing is sent, because there is one rank.";
    if (doubles)
      return fmt::format(
          "Chosen: doubling, with {:.2f} times push's time if the tensor is dense, which nobody "
          "knows ahead.",
          dense(&engine::predict_doubling) / dense(&engine::predict_push));
    if (refusal(Algorithm::doubling)) return "Chosen: push, because doubling cannot be.";
    if (case_.one_hop)
      return "Chosen: push in one hop, which gathers all contributions as doubling does, but at once.";
    return fmt::format(
        "Chosen: push; doubling is predicted to take {:.2f} times as long ({:.2f} if the tensor "
        "is dense), and must take at most {:.2f}.",
        doubling.seconds() / push.seconds(), dense(&engine::predict_doubling) / dense(&engine::predict_push),
        engine::kDoublingShare);
  }
  double dense(engine::Prediction (*predict)(const engine::ExchangeCase&, const engine::LinkCosts&)) const {
    return predict(engine::exchange_case(config_, record_, 1), config_.link_costs).seconds();
  }

  const Question& q_;
  const Options& options_;
  engine::Membership membership_;
  engine::EngineConfig config_;
  wire::OperationRecord record_;
  engine::ExchangeCase case_;
  std::string text_;
};

}  // namespace

std::string explain(const Question& question, const Options& options) {
  if (question.hosts > question.ranks)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--hosts is {}, and there are {} ranks", question.hosts, question.ranks));
  return Explanation(question, options).text();
}

}  // namespace nzcl::tools

#include "runtime/tools/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "nzcl/error.h"
#include "runtime/comm/join/hello.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/link_speed.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/plan/transport_choice.h"
#include "runtime/switch/registration.h"
#include "runtime/wire/checks.h"
#include "verbs/mixed/pair.h"
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
  engine::Membership membership = comm::membership_of(hellos, 0);
  membership.links.assign(hellos.size(), engine::own_link(options.link_gbps, q.device_gbps));
  return membership;
}

/// No device is opened for an explanation, so only the form of the pairs is known.
engine::DeviceLimits limits_of(const std::string& transport) {
  engine::DeviceLimits limits;
  limits.is_mixed = verbs::TransportPair::of(transport).has_value();
  return limits;
}

class Explanation {
 public:
  Explanation(const Question& q, const Options& options)
      : q_(q),
        options_(options),
        membership_(membership_of(q, options)),
        config_(engine::plan_engine(options, membership_,
                                    limits_of(engine::transport_of(options, membership_)))) {
    record_.count = q.bytes / element_bytes(q.type);
    record_.block_elems = q.block_elems;
    record_.type = static_cast<std::uint8_t>(q.type);
    record_.packed_result = q.packed ? 1 : 0;
    record_.root_or_density = wire::Density::of_share(q.density).code();
    case_ = engine::exchange_case(config_, record_, engine::expected_density(config_, record_));
    push_ = predict_push(case_, config_.link_costs);
    doubling_ = predict_doubling(case_, config_.link_costs);
    merging_ = predict_merging(case_, config_.link_costs);
    const engine::HierarchyShape& shape = config_.hierarchy;
    if (config_.has_hierarchy())
      hierarchy_ =
          predict_hierarchy(case_, engine::hierarchy_case(config_, record_), shape.within, shape.between);
  }

  std::string text() {
    say("allreduce of {} of {} ({} elements in blocks of {}){}, {:.4g} % of the blocks {}\n",
        size_text(static_cast<double>(q_.bytes)), nzcl::name_of(q_.type), record_.count, q_.block_elems,
        q_.packed ? " with a packed result" : "", 100 * case_.density,
        record_.density().known() ? "expected not to be zero"
                                  : "taken not to be zero, as no request says it");
    say("{} rank(s) on {} host(s) with {} core(s) each, {}, over {}{}\n\n", q_.ranks, q_.hosts, q_.cores,
        options_.aggregators > 0 ? fmt::format("{} dedicated aggregator(s)", options_.aggregators)
                                 : "ranks sum",
        transport_text(),
        membership_.networks.all_together() ? "" : ", links of " + text_of(config_.link_speed));
    forms();
    ways();
    return std::move(text_);
  }

 private:
  /// The transport of all pairs of members, or those of the two kinds of pairs.
  std::string transport_text() const {
    const std::string name = engine::transport_of(options_, membership_);
    const auto pair = verbs::TransportPair::of(name);
    return pair ? fmt::format("{} within a host and {} between hosts", pair->within, pair->between) : name;
  }

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
    form("contribution", case_.density);
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
    way("push", Algorithm::push, push_);
    way("doubling", Algorithm::doubling, doubling_);
    way("merging", Algorithm::merging, merging_);
    way("hierarchy", Algorithm::hierarchy, hierarchy_);
    if (const auto why = refusal(Algorithm::switch_)) say("  {:<9} no: {}\n", "switch", *why);
    say("\nsteps: messages that wait for one another. messages: of the busiest rank. The slower one of link "
        "and "
        "bytes counts.\n");
    say("{}\n", verdict());
  }

  std::string verdict() const {
    if (config_.algorithm == Algorithm::switch_) return "Chosen: switch, as NZCL_ALGORITHM says.";
    const auto chosen = engine::choose_algorithm(config_, record_, Algorithm::automatic);
    const std::string_view name = name_of(engine::public_algorithm(config_, chosen));
    if (config_.algorithm != Algorithm::automatic)
      return fmt::format("Chosen: {}, as NZCL_ALGORITHM says where it can be.", name);
    if (q_.ranks == 1) return "Chosen: push; nothing is sent, because there is one rank.";
    if (chosen != wire::Algorithm::push)
      return fmt::format("Chosen: {}, which is predicted to take {:.2f} times as long as push.", name,
                         prediction(chosen).seconds() / push_.seconds());
    return fmt::format("Chosen: push{}; {}; {}; {}.", case_.one_hop ? " in one hop" : "", why_not_doubling(),
                       why_not_merging(), why_not_hierarchy());
  }

  const engine::Prediction& prediction(wire::Algorithm algorithm) const {
    switch (algorithm) {
      case wire::Algorithm::push:
        break;
      case wire::Algorithm::doubling:
        return doubling_;
      case wire::Algorithm::merging:
        return merging_;
      case wire::Algorithm::hierarchy:
        return hierarchy_;
    }
    return push_;
  }

  std::string why_not_hierarchy() const {
    if (refusal(Algorithm::hierarchy)) return "a hierarchy cannot be";
    if (!engine::order_permits_hierarchy(config_, record_))
      return "a hierarchy would add in another order, which NZCL_SUM_ORDER=any permits";
    if (engine::layout_of(config_, 0, record_).express()) return "a hierarchy is not for so small operations";
    return slower("a hierarchy", hierarchy_, engine::kHierarchyShare);
  }

  std::string why_not_doubling() const {
    if (refusal(Algorithm::doubling)) return "doubling cannot be";
    if (case_.one_hop) return "doubling would gather all contributions as one hop does, but not at once";
    if (config_.one_hop && case_.tiled) return "doubling would send a bitmap, and push has shorter codes";
    return slower("doubling", doubling_, engine::doubling_share(case_.ranks));
  }

  std::string why_not_merging() const {
    if (refusal(Algorithm::merging)) return "merging cannot be";
    if (!engine::order_permits_merging(config_, record_))
      return "merging would add in another order, which NZCL_SUM_ORDER=any permits";
    if (engine::layout_of(config_, 0, record_).express()) return "merging is not for so small operations";
    if (!engine::worth_predicting_merging(config_, record_))
      return "merging such blocks is considered only for requests that expect a density";
    return slower("merging", merging_, engine::kMergingShare);
  }

  std::string slower(const char* name, const engine::Prediction& p, double share) const {
    return fmt::format("{} is predicted to take {:.2f} times as long, and must take less than {:.2f}", name,
                       p.seconds() / push_.seconds(), share);
  }

  const Question& q_;
  const Options& options_;
  engine::Membership membership_;
  engine::EngineConfig config_;
  wire::OperationRecord record_;
  engine::ExchangeCase case_;
  engine::Prediction push_, doubling_, merging_, hierarchy_;
  std::string text_;
};

}  // namespace

namespace {

void require(bool good, const std::string& text) {
  if (!good) throw Error(ErrorCode::invalid_argument, text);
}

void check(const Question& q) {
  require(q.density >= 0 && q.density <= 1,  // false for NaN
          fmt::format("--explain: the density is {:g}; it is a share from 0 to 1, and 0 if it is not known",
                      q.density));
  require(q.ranks >= 1 && q.ranks <= wire::kMaxMembers,
          fmt::format("--explain: {} ranks; there may be 1 to {}", q.ranks, wire::kMaxMembers));
  require(q.hosts >= 1 && q.hosts <= q.ranks,
          fmt::format("--hosts is {}, and there are {} ranks", q.hosts, q.ranks));
  const std::size_t element = element_bytes(q.type);
  require(wire::can_be_laid_out(q.bytes / element, q.block_elems, element),
          fmt::format("--explain: {} bytes in blocks of {} elements are no tensor that memory can hold",
                      q.bytes, q.block_elems));
}

}  // namespace

std::string explain(const Question& question, const Options& options) {
  check(question);
  engine::wing_of(options.algorithm);  // throws if this build does not have it
  return Explanation(question, options).text();
}

}  // namespace nzcl::tools

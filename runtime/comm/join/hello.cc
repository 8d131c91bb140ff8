#include "runtime/comm/join/hello.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "nzcl/error.h"
#include "runtime/base/json_text.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/options/table.h"
#include "runtime/placement/plan.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"
#include "verbs/transport.h"

namespace nzcl::comm {

using nlohmann::json;

namespace {

/// A limit for the lanes that a hello may name, far above what the option allows. Larger numbers would
/// overflow what follows from them.
constexpr int kMostLanes = 1 << 16;

/// The options that must be equal on all members.
constexpr std::string_view kShared[] = {"transport", "aggregators", "on_aggregator_loss", "connect",
                                        "session",   "algorithm",   "sum_order"};
constexpr std::string_view kSharedTunings[] = {"slot_bytes", "channel_slots", "slice_bytes", "packed_density",
                                               "host_ranks"};

std::vector<const Setting*> shared_settings() {
  std::vector<const Setting*> all;
  for (const std::string_view name : kShared) all.push_back(find_in(settings(), name));
  for (const std::string_view name : kSharedTunings) all.push_back(find_in(tunings(), name));
  return all;
}

/// These options as texts, by name.
json shared_options(const Options& options) {
  json texts;
  for (const Setting* setting : shared_settings()) texts[setting->name] = setting->text(options);
  return texts;
}

void set_shared_options(Options& options, const json& texts) try {
  for (const Setting* setting : shared_settings())
    setting->set(options, texts.at(setting->name).get<std::string>(), "of a member");
} catch (const Error& e) {  // a caller of this member is not to blame for it
  throw Error(ErrorCode::mismatch, e.what());
}

/// Returns the number of lanes that a member asks for, or the one that suits the cores which so many members
/// share, itself included.
int planned_lanes(const Hello& h, int sharers) {
  return h.lanes > 0 ? h.lanes : placement::auto_lanes(h.cores / sharers);
}

}  // namespace

std::string Hello::encode() const {
  return json_text({{"version", wire::kVersion},
                    {"role", role == Role::worker ? "worker" : "aggregator"},
                    {"index", index},
                    {"host", host},
                    {"network", network},
                    {"process_space", process_space},
                    {"host_name", host_name},
                    {"pid", pid},
                    {"lanes", lanes},
                    {"cores", cores},
                    {"cache_bytes", cache_bytes},
                    {"cpus", cpus},
                    {"may_have_gpus", may_have_gpus},
                    {"options", shared_options(options)}});
}

Hello Hello::decode(const std::string& text) {
  try {
    const json j = json::parse(text);
    if (j.at("version") != wire::kVersion) {
      throw Error(ErrorCode::mismatch,
                  fmt::format("members run different versions of nzcl: wire version {} here, {} on {}",
                              wire::kVersion, j.at("version").get<int>(), j.value("host_name", "?")));
    }
    Hello h;
    h.role = j.at("role") == "worker" ? Role::worker : Role::aggregator;
    h.index = j.at("index");
    h.host = j.at("host");
    h.network = j.at("network");
    h.process_space = j.at("process_space");
    h.host_name = j.at("host_name");
    h.pid = j.at("pid");
    h.lanes = j.at("lanes");
    h.cores = j.at("cores");
    h.cache_bytes = j.at("cache_bytes");
    h.cpus = j.at("cpus");
    h.may_have_gpus = j.at("may_have_gpus");
    set_shared_options(h.options, j.at("options"));
    // membership_of() computes with these numbers in int, where larger ones would overflow.
    if (h.index < -1 || h.index >= wire::kMaxMembers || h.lanes < 0 || h.lanes > kMostLanes || h.cores < 1)
      throw Error(
          ErrorCode::mismatch,
          fmt::format("a member introduced itself with impossible numbers: index {}, {} lanes, {} cores",
                      h.index, h.lanes, h.cores));
    return h;
  } catch (const json::exception& e) {
    throw Error(ErrorCode::mismatch,
                fmt::format("a member introduced itself in a way that this version does not understand: {}",
                            e.what()));
  }
}

Hello make_hello(const Options& options, Role role, int index) {
  return {.role = role,
          .index = index,
          .host = bootstrap::shared_memory_id(),
          .network = bootstrap::host_id(),
          .process_space = verbs::may_write_processes() ? bootstrap::process_space_id() : "",
          .host_name = bootstrap::host_name(),
          .pid = static_cast<int>(::getpid()),
          .lanes = options.lanes,
          .cores = 1,
          .cache_bytes = 0,
          .cpus = {},
          .may_have_gpus = false,
          .options = options};
}

namespace {

std::string index_text(const Hello& h) {
  return fmt::format("{} {} (pid {} on {})", h.role == Role::worker ? "rank" : "aggregator", h.index, h.pid,
                     h.host_name);
}

/// Gives every member its number: the one that it asks for, or the next one in the order of the meeting.
void number_members(engine::Membership& m, const std::vector<Hello>& hellos) {
  const int workers = m.members.workers, count = static_cast<int>(hellos.size());
  int next_worker = 0, next_aggregator = workers;
  m.position_of.assign(hellos.size(), -1);
  for (std::size_t position = 0; position < hellos.size(); ++position) {
    const Hello& h = hellos[position];
    const bool worker = h.role == Role::worker;
    const int first = worker ? 0 : workers, end = worker ? workers : count;
    const int member = h.index >= 0 ? first + h.index : (worker ? next_worker : next_aggregator)++;
    if (member >= end)
      throw Error(ErrorCode::mismatch, index_text(h) + " does not exist in this communicator");
    if (m.position_of[static_cast<std::size_t>(member)] != -1)
      throw Error(ErrorCode::mismatch, "two members claim to be " + index_text(h));
    m.position_of[static_cast<std::size_t>(member)] = static_cast<int>(position);
    m.member_of.push_back(member);
    m.names.push_back(fmt::format("{} (pid {} on {})", m.members.name(member), h.pid, h.host_name));
  }
}

void compare_options(const engine::Membership& m, const std::vector<Hello>& hellos, std::size_t own) {
  for (const Setting* setting : shared_settings()) {
    const std::string mine = setting->text(hellos[own].options);
    for (std::size_t position = 0; position < hellos.size(); ++position) {
      const std::string theirs = setting->text(hellos[position].options);
      if (theirs == mine) continue;
      throw Error(ErrorCode::mismatch,
                  fmt::format("members disagree about option {}: {} on {}, {} on {}", setting->name, mine,
                              m.names[own], theirs, m.names[position]));
    }
  }
  if (hellos[own].options.aggregators != m.members.dedicated) {
    throw Error(ErrorCode::mismatch,
                fmt::format("option aggregators is {}, but {} dedicated aggregators came to the meeting",
                            hellos[own].options.aggregators, m.members.dedicated));
  }
}

void group_members(engine::Membership& m, const std::vector<Hello>& hellos) {
  const auto group = [&](const auto& name_of) {
    std::vector<std::string> names;
    for (const int position : m.position_of)
      names.push_back(name_of(hellos[static_cast<std::size_t>(position)]));
    return engine::Groups::by_name(names);
  };
  m.hosts = group([](const Hello& h) { return h.host; });
  m.networks = group([](const Hello& h) { return h.network; });
  m.process_spaces = group([](const Hello& h) { return h.process_space; });
  m.cores = group([](const Hello& h) { return h.host + " " + h.cpus; });
}

}  // namespace

engine::Membership membership_of(const std::vector<Hello>& hellos, int own_position) {
  engine::Membership m;
  const auto own = static_cast<std::size_t>(own_position);
  m.members.workers = static_cast<int>(
      std::count_if(hellos.begin(), hellos.end(), [](const Hello& h) { return h.role == Role::worker; }));
  m.members.dedicated = static_cast<int>(hellos.size()) - m.members.workers;
  number_members(m, hellos);
  m.members.self = m.member_of[own];
  if (m.members.workers == 0)
    throw Error(ErrorCode::mismatch, "only aggregators came to the meeting, and no workers");
  compare_options(m, hellos, own);
  group_members(m, hellos);
  m.lanes = std::numeric_limits<int>::max();
  m.cache_bytes = hellos.front().cache_bytes;
  m.may_have_gpus = true;
  for (std::size_t position = 0; position < hellos.size(); ++position) {
    const Hello& h = hellos[position];
    m.may_have_gpus &= h.may_have_gpus || h.role == Role::aggregator;
    const int sharers = m.cores.size_of(m.member_of[position]);
    m.members_per_core = std::max(m.members_per_core, static_cast<double>(sharers) / h.cores);
    m.lanes = std::min(m.lanes, planned_lanes(h, sharers));
    m.cache_bytes = std::min(m.cache_bytes, h.cache_bytes);
  }
  return m;
}

}  // namespace nzcl::comm

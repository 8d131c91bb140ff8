#include "runtime/comm/hello.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "nzcl/error.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/placement/plan.h"
#include "runtime/wire/message.h"
#include "verbs/transport.h"

namespace nzcl::comm {

using nlohmann::json;

namespace {

/// The options that all members must have in common, by name.
json shared_options(const Options& o) {
  return {{"transport", o.transport},   {"aggregators", o.aggregators},
          {"slot_bytes", o.slot_bytes}, {"channel_slots", o.channel_slots},
          {"connect", o.connect},       {"slice_bytes", o.slice_bytes},
          {"session", o.session}};
}

bool share_cores(const Hello& a, const Hello& b) { return a.host == b.host && a.cpus == b.cpus; }

int planned_lanes(const std::vector<Hello>& hellos, const Hello& h) {
  if (h.lanes > 0) return h.lanes;
  const auto sharers =
      std::count_if(hellos.begin(), hellos.end(), [&](const Hello& other) { return share_cores(h, other); });
  return placement::auto_lanes(h.cores / static_cast<int>(sharers));
}

}  // namespace

std::string Hello::encode() const {
  return json{{"version", wire::kVersion},
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
              {"options", shared_options(options)}}
      .dump();
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
    const json& o = j.at("options");
    h.options.transport = o.at("transport");
    h.options.aggregators = o.at("aggregators");
    h.options.slot_bytes = o.at("slot_bytes");
    h.options.channel_slots = o.at("channel_slots");
    h.options.connect = o.at("connect");
    h.options.slice_bytes = o.at("slice_bytes");
    h.options.session = o.at("session");
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
          .options = options};
}

Roll digest(const std::vector<Hello>& hellos, int own_place) {
  Roll roll;
  const auto count = [&](Role role) {
    return static_cast<int>(
        std::count_if(hellos.begin(), hellos.end(), [&](const Hello& h) { return h.role == role; }));
  };
  roll.members.workers = count(Role::worker);
  roll.members.dedicated = count(Role::aggregator);
  const Hello& own = hellos[static_cast<std::size_t>(own_place)];

  std::array<int, 2> next{0, roll.members.workers};
  roll.place_of.assign(hellos.size(), -1);
  for (std::size_t place = 0; place < hellos.size(); ++place) {
    const Hello& h = hellos[place];
    const bool worker = h.role == Role::worker;
    const int member = h.index >= 0 ? h.index + (worker ? 0 : roll.members.workers) : next[worker ? 0 : 1]++;
    const bool in_range = member >= (worker ? 0 : roll.members.workers) &&
                          member < (worker ? roll.members.workers : static_cast<int>(hellos.size()));
    if (!in_range || roll.place_of[static_cast<std::size_t>(member)] != -1) {
      throw Error(
          ErrorCode::mismatch,
          fmt::format("{} {} (pid {} on {}) {}", worker ? "rank" : "aggregator", h.index, h.pid, h.host_name,
                      in_range ? "is there twice" : "does not exist in this communicator"));
    }
    roll.place_of[static_cast<std::size_t>(member)] = static_cast<int>(place);
    roll.member_of.push_back(member);
    roll.names.push_back(fmt::format("{} (pid {} on {})", roll.members.name(member), h.pid, h.host_name));
    if (static_cast<int>(place) == own_place) roll.members.self = member;
  }

  if (roll.members.workers == 0) throw Error(ErrorCode::mismatch, "there are only aggregators, no workers");
  const json mine = shared_options(own.options);
  for (std::size_t place = 0; place < hellos.size(); ++place) {
    const json theirs = shared_options(hellos[place].options);
    for (const auto& [name, value] : mine.items()) {
      if (theirs.at(name) != value) {
        throw Error(ErrorCode::mismatch,
                    fmt::format("members disagree about option {}: {} on {}, {} on {}", name, value.dump(),
                                roll.names[static_cast<std::size_t>(own_place)], theirs.at(name).dump(),
                                roll.names[place]));
      }
    }
  }
  if (own.options.aggregators != roll.members.dedicated) {
    throw Error(ErrorCode::mismatch,
                fmt::format("option aggregators is {}, but {} dedicated aggregators came",
                            own.options.aggregators, roll.members.dedicated));
  }
  roll.local_members = 0;
  for (std::size_t place = 0; place < hellos.size(); ++place) {
    const int lanes = planned_lanes(hellos, hellos[place]);
    roll.lanes = place == 0 ? lanes : std::min(roll.lanes, lanes);
    roll.cache_bytes =
        place == 0 ? hellos[place].cache_bytes : std::min(roll.cache_bytes, hellos[place].cache_bytes);
    if (hellos[place].host != own.host) roll.one_host = false;
    if (hellos[place].network != own.network) roll.one_network = false;
    if (hellos[place].process_space != own.process_space || own.process_space.empty())
      roll.one_process_space = false;
    if (!share_cores(hellos[place], own)) continue;
    if (roll.member_of[place] < roll.members.self) ++roll.local_index;
    ++roll.local_members;
  }
  return roll;
}

}  // namespace nzcl::comm

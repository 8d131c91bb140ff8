#include "runtime/channel/staging_banks.h"

#include <algorithm>
#include <map>

#include "runtime/plan/merging_steps.h"

namespace nzcl::engine {
namespace {

using wire::Priority;

/// The node of what `reader` reads in the memory of `member`.
int node_for(const EngineConfig& config, int member, int reader) {
  const int node = config.node(reader);
  return node >= 0 ? node : config.node(member);
}

/// How messages of one priority reach the members that `member` sends them to.
struct Readers {
  std::vector<int> lent_up;                   // owners that this member lends its contributions to
  std::vector<int> lent_down;                 // workers that it lends results to
  bool rings_up = false, rings_down = false;  // others are written to
};

Readers readers_of(const EngineConfig& config, int member, Priority p) {
  const Members& members = config.members;
  Readers readers;
  for (int other = 0; other < members.count(); ++other) {
    if (other == member) continue;
    const bool lent = config.lends(p, member, other);
    if (members.is_worker(member) && members.is_aggregator(other)) {
      if (lent) readers.lent_up.push_back(other);
      readers.rings_up |= !lent;
    }
    if (members.is_aggregator(member) && members.is_worker(other)) {
      if (lent) readers.lent_down.push_back(other);
      readers.rings_down |= !lent;
    }
  }
  return readers;
}

/// The node that most readers of results are on; of several, this member's own, or the first.
int node_of_results(const EngineConfig& config, int member, const Readers& readers) {
  const int own = config.node(member);
  if (readers.lent_down.empty()) return own;
  std::map<int, std::size_t> readers_on;
  for (const int reader : readers.lent_down) ++readers_on[node_for(config, member, reader)];
  const auto most = std::max_element(readers_on.begin(), readers_on.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto here = readers_on.find(own);
  return here != readers_on.end() && here->second == most->second ? own : most->first;
}

void add(std::vector<StagingBank>& banks, int node, std::uint32_t buffers) {
  auto bank = std::find_if(banks.begin(), banks.end(), [&](const StagingBank& q) { return q.node == node; });
  if (bank == banks.end()) bank = banks.insert(banks.end(), {node, kStagingBuffers});
  bank->buffers += buffers;
}

StagingPool::Bank bank_on(const std::vector<StagingBank>& banks, int node) {
  const auto bank =
      std::find_if(banks.begin(), banks.end(), [&](const StagingBank& q) { return q.node == node; });
  return static_cast<StagingPool::Bank>(bank - banks.begin());
}

/// Buffers for merging: those that are kept until they have been merged here, and those that were lent or are
/// being written, for each rank that this one sends partial sums to.
std::uint32_t merging_buffers(const EngineConfig& config, int member) {
  if (!config.has_merging()) return 0;
  const int partners = MergingPlan(config.members.workers).partners(member);
  return static_cast<std::uint32_t>(partners) * (config.channel(Priority::merging).slots + kMergingKept);
}

/// The buffers of the priorities at which there are no owners: all of them lie on the member's own node.
std::uint32_t buffers_without_owners(const EngineConfig& config, int member, Priority p) {
  if (p == Priority::merging) return merging_buffers(config, member);
  return config.has_doubling() ? kStagingBuffers : 0;
}

bool has_owners(Priority p) { return p == Priority::bulk || p == Priority::express; }

}  // namespace

std::vector<StagingBank> staging_banks(const EngineConfig& config, int member, Priority p) {
  if (!has_owners(p)) return {{config.node(member), buffers_without_owners(config, member, p)}};
  std::vector<StagingBank> banks;
  const Readers readers = readers_of(config, member, p);
  const std::uint32_t slots = config.channel(p).slots;
  for (const int owner : readers.lent_up) add(banks, node_for(config, member, owner), slots);
  if (!readers.lent_down.empty() || readers.rings_down) {
    add(banks, node_of_results(config, member, readers),
        (readers.lent_down.empty() ? 0 : slots + kLentDifferent) +
            (readers.rings_down ? kWaitingResults : 0));
  }
  if (banks.empty() || readers.rings_up) add(banks, config.node(member), 0);
  return banks;
}

std::uint32_t staging_buffers(const EngineConfig& config, int member, Priority p) {
  std::uint32_t buffers = 0;
  for (const StagingBank& bank : staging_banks(config, member, p)) buffers += bank.buffers;
  return buffers;
}

StagingChoice staging_choice(const EngineConfig& config, Priority p) {
  const int self = config.members.self;
  StagingChoice choice;
  choice.up.assign(static_cast<std::size_t>(config.members.count()), 0);
  if (!has_owners(p)) return choice;
  const std::vector<StagingBank> banks = staging_banks(config, self, p);
  const Readers readers = readers_of(config, self, p);
  for (const int owner : readers.lent_up)
    choice.up[static_cast<std::size_t>(owner)] = bank_on(banks, node_for(config, self, owner));
  if (readers.rings_up) {
    for (int member = 0; member < config.members.count(); ++member) {
      if (!config.lends(p, self, member))
        choice.up[static_cast<std::size_t>(member)] = bank_on(banks, config.node(self));
    }
  }
  if (!readers.lent_down.empty() || readers.rings_down)
    choice.down = bank_on(banks, node_of_results(config, self, readers));
  return choice;
}

}  // namespace nzcl::engine

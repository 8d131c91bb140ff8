#include "runtime/plan/exchange_cost.h"

#include <algorithm>
#include <cmath>

#include "runtime/plan/doubling_rounds.h"
#include "runtime/plan/merging_steps.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {
namespace {

/// The work of an exchange, on its busiest rank or in the whole communicator.
struct Work {
  double messages = 0;  // messages that all ranks send
  double waits = 0;     // those among them whose receiver may be waiting for them, so that it has to be woken
  double moved = 0;     // bytes that the busiest rank sends and receives
  double summed = 0;    // bytes that the busiest rank adds
  /// Blocks of tiles that the busiest rank merges; negative: it codes its contribution and the result.
  double blocks = -1;
  double contributions = 0;  // that the busiest rank gathers
};

/// Completes the prediction with the times that its messages, bytes and this work take.
Prediction finish(const ExchangeCase& c, const LinkCosts& costs, Prediction p, const Work& work) {
  const double crowd = std::max(1.0, c.ranks_per_core);
  p.latency = p.steps * costs.latency;
  // If each rank has a core of its own, the messages of the busiest rank decide. If ranks share cores, a core
  // has to handle the messages of all its ranks.
  p.handling = p.messages / 2 * costs.message;
  if (crowd > 1)
    p.handling =
        std::max(p.handling, crowd / c.ranks * (work.messages * costs.message + work.waits * costs.turn));
  p.link = p.sent_bytes * costs.wire_byte;
  const double scanned = c.streams ? 0 : static_cast<double>(c.tensor_bytes());
  p.processing = crowd * (scanned * kScannedByte + work.moved * costs.moved_byte + work.summed * kSummedByte);
  p.processing += crowd * work.contributions * kGatheredContribution;
  if (work.blocks >= 0) {
    p.processing += crowd * work.blocks * kMergedBlock;
  } else if (c.tiled) {
    p.processing += crowd * (c.density + c.union_density()) * static_cast<double>(c.blocks()) * kTiledBlock;
  }
  return p;
}

}  // namespace

double ExchangeCase::union_density(double of_ranks) const { return 1 - std::pow(1 - density, of_ranks); }

LinkCosts link_costs(std::string_view transport, bool one_network, double gbps) {
  for (const std::string_view within_host : {"cma", "shm", "libfabric-shm", "loopback"}) {
    if (transport == within_host) return kHostCosts;
  }
  LinkCosts costs = kRdmaCosts;
  for (const std::string_view kernel_socket : {"tcp", "sockets", "udp"}) {
    if (!transport.starts_with(kernel_socket)) continue;
    costs = kSocketCosts;
    if (one_network) costs.latency = kLocalSocketLatency;
  }
  if (!one_network) costs.wire_byte = 8e-9 / gbps;
  return costs;
}

double coded_bytes(const ExchangeCase& c, double density) {
  const auto all = static_cast<double>(c.blocks());
  const double held = density * all;
  const double values = held * static_cast<double>(c.block_elems * c.element_bytes);
  if (held == 0) return 0;
  double set = all / 8;  // a bitmap
  if (c.tiled) {
    // If all blocks are there, no index set is sent. Otherwise a block takes an offset of 16 bits. Where
    // short codes are worth their time it may take a gap instead: 8 bits, and about two bytes more if the gap
    // is long.
    if (density >= 1) return values;
    const double gap = c.short_codes ? 1 + 2 * std::exp(-density * 255) : 2;
    set = std::min({set, held * gap, held * 2});
  }
  return values + set;
}

double entropy_bytes(const ExchangeCase& c, double density) {
  const auto all = static_cast<double>(c.blocks());
  const auto term = [](double share) { return share <= 0 ? 0 : -share * std::log2(share); };
  return all * (density * static_cast<double>(c.block_elems * c.element_bytes) +
                (term(density) + term(1 - density)) / 8);
}

Prediction predict_push(const ExchangeCase& c, const LinkCosts& costs) {
  const double up = coded_bytes(c, c.density), down = coded_bytes(c, c.union_density());
  const double others = c.ranks - 1;
  Prediction p;
  if (c.ranks == 1) return finish(c, costs, p, {.summed = up});
  if (c.one_hop) {
    p.steps = 1;
    p.messages = 2 * others;
    p.sent_bytes = others * (up + kPredictedHeader);
    const double messages = others * c.ranks;
    return finish(
        c, costs, p,
        {.messages = messages, .waits = messages, .moved = 2 * p.sent_bytes, .summed = c.ranks * up});
  }
  const bool dedicated = c.owners != c.ranks;
  // Owners that get a slice, the workers that each of them exchanges messages with, and the other owners with
  // which it does so as a worker.
  const double owners = static_cast<double>(std::min<std::uint64_t>(c.slices, c.owners));
  const double workers = dedicated ? c.ranks : others;
  const double other_owners = dedicated ? 0 : owners - 1;
  const auto messages_of = [](double bytes) {
    return std::max(1.0, std::ceil(bytes / static_cast<double>(kFullMessageBytes)));
  };
  const double pair = messages_of(up / owners) + messages_of(down / owners);
  p.steps = 2;
  p.messages = (workers + other_owners) * pair;
  const double owner_sends = workers * down / owners + other_owners * up / owners;
  p.sent_bytes = std::max(owner_sends, dedicated ? up : 0) + p.messages / 2 * kPredictedHeader;
  return finish(c, costs, p,
                {.messages = owners * workers * pair,
                 .waits = owners * workers * 2,
                 .moved = (workers + other_owners) * (up + down) / owners,
                 .summed = c.ranks * up / owners});
}

Prediction predict_merging(const ExchangeCase& c, const LinkCosts& costs) {
  const MergingPlan plan(c.ranks);
  ExchangeCase tiles = c;
  tiles.tiled = true;
  tiles.element_bytes = c.partial_bytes;
  const bool folds = plan.givers() > 0;
  const auto all = static_cast<double>(c.blocks());
  Prediction p;
  Work work{.blocks = 0};
  const auto sends = [&](double bytes) {
    p.sent_bytes += bytes;
    p.messages += 2 * std::max(1.0, std::ceil(bytes / static_cast<double>(kFullMessageBytes)));
  };
  // A rank that takes another one's contribution has most to do.
  double group = folds ? 2 : 1;  // ranks whose contributions it has merged
  if (folds) work.moved += coded_bytes(tiles, c.density), work.blocks += 2 * c.density * all;
  for (int round = 0; round < plan.rounds(); ++round) {
    const double bytes = coded_bytes(tiles, c.union_density(group));
    sends(bytes);
    work.moved += 2 * bytes;
    work.blocks += 2 * c.union_density(group) * all;
    group = std::min(2 * group, static_cast<double>(c.ranks));
  }
  if (folds) sends(coded_bytes(c, c.union_density()));
  work.blocks += c.union_density() * all;
  work.summed = work.blocks * static_cast<double>(c.partial_bytes * c.block_elems);
  work.messages = p.messages / 2 * c.ranks;
  work.waits = static_cast<double>((plan.rounds() + (folds ? 1 : 0)) * c.ranks);
  p.steps = plan.rounds() + (folds ? 2 : 0);
  p.sent_bytes += p.messages / 2 * kPredictedHeader;
  return finish(c, costs, p, work);
}

Prediction predict_doubling(const ExchangeCase& c, const LinkCosts& costs) {
  const double up = coded_bytes(c, c.density);
  const int rounds = doubling_rounds(c.ranks);
  Prediction p;
  p.steps = rounds;
  p.messages = 2.0 * rounds;
  p.sent_bytes = (c.ranks - 1) * up + kPredictedHeader * rounds;
  const double messages = static_cast<double>(rounds) * c.ranks;
  return finish(c, costs, p,
                {.messages = messages,
                 .waits = messages,
                 .moved = 2 * p.sent_bytes,
                 .summed = c.ranks * up,
                 .contributions = static_cast<double>(c.ranks)});
}

Prediction predict_hierarchy(const ExchangeCase& c, const HierarchyCase& levels, const LinkCosts& within,
                             const LinkCosts& between) {
  ExchangeCase host = c, network = c;
  host.ranks = levels.ranks;
  host.owners = levels.columns;
  network.ranks = network.owners = levels.hosts;
  network.density = c.union_density(levels.ranks);
  network.streams = true;  // the first level has told what is there
  host.one_hop = network.one_hop = false;
  host.tiled = c.streams;
  network.tiled = levels.tiled;
  const Prediction first = predict_push(host, within);
  const Prediction second = predict_push(network, between);  // as if one rank of each host did all of it
  const auto pieces = static_cast<double>(levels.pieces);
  Prediction p;
  p.steps = first.steps + second.steps;
  p.messages = first.messages + second.messages / levels.columns;
  p.sent_bytes = first.sent_bytes + second.sent_bytes / levels.columns;
  p.link = second.link;
  p.processing = first.processing + second.processing / levels.columns;
  p.handling = first.handling + second.handling / levels.columns;
  const double steps = 3 * kPieceStep * std::max(1.0, c.ranks_per_core);
  p.latency = first.latency + second.latency + steps + std::min(p.link, p.processing) / pieces;
  return p;
}

}  // namespace nzcl::engine

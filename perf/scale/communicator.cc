#include "perf/scale/communicator.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/plan/algorithm.h"
#include "runtime/plan/slice_layout.h"

namespace perf::scale {

using namespace nzcl;
using comm::Prepared;

namespace {

engine::EngineConfig only(engine::EngineConfig config, const Priorities& needed) {
  for (std::size_t p = 0; p < config.channels.size(); ++p) {
    if (!needed[p]) config.channels[p].slots = 0;
  }
  return config;
}

/// Nobody looks at the machine's clock: what never ends is noticed because nothing happens any more.
engine::LaneOptions lane_options(const engine::EngineConfig& config, std::string& failure) {
  return {.config = config,
          .timeout = std::chrono::hours(24 * 365),
          .spin = {},
          .on_failure = [&failure](const Failure& f) {
            if (failure.empty()) failure = f.text;
          }};
}

void set_input(engine::Operation& operation, Prepared& p) {
  switch (p.known) {
    case Prepared::Input::all:
      return operation.set_all_input();
    case Prepared::Input::bitmap:
      return operation.set_input_bitmap(p.bitmap);
    case Prepared::Input::none:
      return operation.set_no_input();
    case Prepared::Input::indices:
      return operation.set_input_stream(std::move(p.stream));
    case Prepared::Input::scan:
    case Prepared::Input::source:       // of compressed gradients, which are not simulated
    case Prepared::Input::staged_list:  // in memory of a GPU, nor those
    case Prepared::Input::staged_tiles:
      return;
  }
}

}  // namespace

std::shared_ptr<engine::Operation> make_operation(const engine::EngineConfig& config, std::uint64_t epoch,
                                                  const comm::Request& request,
                                                  const comm::Registrations& registrations) {
  Prepared p;
  p.record = comm::shape_of(request, WireType::as_is);
  p.chunk_begins = comm::chunk_begins_of(request, p.record);
  p.record.algorithm = engine::choose_algorithm(config, p.record, comm::asked_algorithm(request));
  comm::prepare(request, registrations, p);
  const auto* const begins = p.chunk_begins.empty() ? nullptr : p.chunk_begins.data();
  const auto layout = engine::layout_of(config, epoch, p.record, begins);
  if (p.known == Prepared::Input::indices) comm::cut_indices(p, layout);
  auto operation =
      std::make_shared<engine::Operation>(layout, p.record, std::move(p.input), p.output, config.lanes);
  operation->chunk_begins = std::move(p.chunk_begins);
  operation->set_rank(config.members.self, config.members.workers);
  operation->epoch = epoch;
  operation->table_index = static_cast<std::uint32_t>(epoch % engine::kMaxOperations);
  operation->timeout = std::chrono::hours(1);
  operation->regions = std::move(p.regions);
  if (p.record.algorithm == wire::Algorithm::hierarchy) {
    operation->set_rest();
  } else {
    set_input(*operation, p);
  }
  return operation;
}

Communicator::Communicator(Core& core, const engine::EngineConfig& config, const Priorities& needed,
                           const std::shared_ptr<verbs::Device>& device,
                           const comm::Registrations& registrations)
    : core_(core),
      number_(core.next_lane()),
      config_(config),
      needed_(needed),
      registrations_(registrations),
      lane_(lane_options(only(config, needed), failure_), device) {
  core.add(lane_, [this] { tell_finished(); });
}

void Communicator::connect(std::span<Communicator* const> members) {
  std::vector<std::string> addresses(members.size());
  for (std::size_t m = 0; m < members.size(); ++m) {
    for (std::size_t peer = 0; peer < members.size(); ++peer)
      addresses[peer] = members[peer]->lane_.address_for(static_cast<int>(m));
    members[m]->lane_.connect(addresses, verbs::Clock::now());
  }
}

std::shared_ptr<engine::Operation> Communicator::start(const comm::Request& request, Over over) {
  auto operation = make_operation(config_, epoch_++, request, registrations_);
  if (!needed_[static_cast<std::size_t>(operation->layout.priority())])
    throw std::logic_error("an operation that the simulation has not expected");
  under_way_.push_back({operation, std::move(over)});
  lane_.submit(operation.get());
  wake();
  return operation;
}

/// Steps of a hierarchy begin others, which changes the list.
void Communicator::tell_finished() {
  std::vector<UnderWay> finished;
  const auto at = std::stable_partition(under_way_.begin(), under_way_.end(),
                                        [](const UnderWay& u) { return !u.operation->finished(); });
  std::move(at, under_way_.end(), std::back_inserter(finished));
  under_way_.erase(at, under_way_.end());
  for (const UnderWay& each : finished) each.over(each.operation);
}

}  // namespace perf::scale

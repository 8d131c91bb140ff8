#include "perf/scale/simulation.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "perf/scale/communicator.h"
#include "perf/scale/device.h"
#include "perf/scale/levels.h"
#include "runtime/base/divide.h"
#include "runtime/comm/communicator/two_level_sum.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/engine_plan.h"
#include "runtime/plan/hierarchy.h"
#include "runtime/plan/membership.h"

namespace perf::scale {

using namespace nzcl;
using comm::Level;

namespace {

// --- What the parts are made with

verbs::Limits network_limits(const Scene& scene) {
  verbs::Limits limits{.max_segments = verbs::kMaxSegments,
                       .max_write_bytes = std::size_t{1} << 30,
                       .max_posted = 256,
                       .ordered = true,
                       .autonomous = true,
                       .link_gbps = scene.gigabits,
                       .costs = {.segment = 1 << 10, .write = 5 << 10, .foreign_byte = 0}};
  if (scene.transport == Transport::tcp) {
    limits.max_segments = 4;
    limits.autonomous = false;
    limits.costs = {.segment = 8 << 10, .write = 32 << 10, .foreign_byte = 0};
  }
  return limits;
}

verbs::Limits host_limits() {
  return {.max_segments = verbs::kMaxSegments,
          .max_write_bytes = std::size_t{1} << 30,
          .max_posted = 256,
          .ordered = true,
          .readable = true,
          .autonomous = true,
          .costs = {.segment = 4 << 10, .write = 16 << 10, .foreign_byte = 0}};
}

/// The constants by which algorithms are chosen, but for those of a network card, which moves bytes itself.
CoreCosts core_costs(const Scene& scene) {
  const bool tcp = scene.transport == Transport::tcp;
  const engine::LinkCosts& network = tcp ? engine::kSocketCosts : engine::kRdmaCosts;
  return {.network_message = network.message,
          .host_message = engine::kHostCosts.message,
          .network_byte = tcp ? network.moved_byte / 2 : 0,
          .copied_byte = engine::kHostCosts.moved_byte,
          .read_byte = engine::kSummedByte,
          .contribution = engine::kGatheredContribution,
          .round = 50e-9};
}

std::vector<int> hosts_of(const Case& of) {
  std::vector<int> hosts;
  for (int rank = 0; rank < of.ranks; ++rank)
    hosts.push_back(static_cast<int>(std::int64_t{rank} * of.hosts / of.ranks));
  return hosts;
}

LinkPlan link_plan(const Scene& scene, const std::vector<int>& host_of) {
  LinkPlan plan;
  plan.host_of = host_of;
  plan.bits_per_second = scene.gigabits * 1e9;
  plan.delay = scene.delay;
  plan.message = scene.link_message;
  plan.rack_hosts = scene.rack_hosts;
  plan.oversubscription = scene.oversubscription;
  plan.host_delay = seconds(engine::kHostCosts.latency);
  if (scene.transport == Transport::tcp) plan.frame_bytes = 1448;
  return plan;
}

engine::Membership membership_of(const std::vector<int>& host_of, int self, double gigabits) {
  std::vector<std::string> names;
  for (const int host : host_of) names.push_back(std::to_string(host));
  engine::Membership m;
  m.members = {.self = self, .workers = static_cast<int>(host_of.size())};
  m.hosts = m.networks = m.process_spaces = engine::Groups::by_name(names);
  m.links.assign(host_of.size(), {gigabits, engine::LinkSpeed::Source::device});
  m.cache_bytes = 2 << 20;
  return m;
}

/// Makes each byte of values stand for several. What a message, a slice or a piece has beside them stays, and
/// their number too. `record` is that of the operations to come, as they would be without it.
void make_coarse(engine::EngineConfig& config, wire::OperationRecord record, std::uint64_t coarseness) {
  if (coarseness == 1) return;
  const engine::SliceLayout fine = engine::layout_of(config, 0, record);
  if (fine.express() || fine.tiled() != (record.algorithm == wire::Algorithm::merging))
    throw std::invalid_argument("a tensor of one message, or of tiles, cannot be coarse");
  config.slice_bytes = std::max<std::uint64_t>(1, fine.slice_bytes() / coarseness);
  const std::uint64_t bitmap = fine.words_per_slice() * sizeof(std::uint64_t);
  for (engine::ChannelConfig& channel : config.channels) {
    if (channel.slots == 0) continue;
    const std::uint64_t fixed = wire::kMaxOverhead + bitmap;
    const std::uint64_t values = channel.slot_bytes - std::min(channel.slot_bytes, fixed);
    channel.slot_bytes = ceil_div(fixed + values / coarseness, 64) * 64;
  }
  for (engine::LinkConfig& link : config.links) link.gather_bytes = ceil_div(link.gather_bytes, coarseness);
  config.direct_bytes = ceil_div(config.direct_bytes, coarseness);
  config.tile_block_bytes = ceil_div(config.tile_block_bytes, coarseness);
}

/// Adds the priority at which an operation of this record is exchanged.
void add_needed(Priorities& needed, const engine::EngineConfig& config, const wire::OperationRecord& record) {
  needed.set(static_cast<std::size_t>(engine::layout_of(config, 0, record).priority()));
}

// --- The ranks

/// Throws if this process has more memory than the scene allows.
void check_memory(const Scene& scene) {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t all = 0, pages = 0;
  statm >> all >> pages;
  const std::uint64_t resident = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (resident <= scene.most_memory) return;
  throw std::runtime_error(fmt::format(
      "the simulation takes more than {:.1f} GiB of memory; simulate fewer ranks, or more of them on "
      "a host, or a coarser tensor (--coarse), or allow more (--memory)",
      static_cast<double>(scene.most_memory) / (1 << 30)));
}

/// Memory that takes no room until it is written.
class Output {
 public:
  explicit Output(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 1)) {
    data_ =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Output() { ::munmap(data_, bytes_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  float* data() const { return static_cast<float*>(data_); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  const std::size_t bytes_;
  void* data_;
};

/// One rank with all that it has. It stays where it is.
struct Member {
  Member(Timeline& timeline, const CoreCosts& costs, double coarseness, std::size_t bytes)
      : core(timeline, costs, coarseness), output(bytes) {}

  Core core;                                         // of the flat lane, or of all
  std::array<std::unique_ptr<Core>, 3> level_cores;  // by Level, if lanes have cores of their own
  Output output;
  std::shared_ptr<verbs::Device> device;
  std::unique_ptr<comm::Registrations> registrations;
  std::vector<std::shared_ptr<comm::Registration>> handles;
  std::unique_ptr<Communicator> flat;
  SimulatedLevels::Communicators levels;
  std::unique_ptr<SimulatedLevels> hierarchy;
  std::shared_ptr<engine::Operation> operation;
  bool done = false;
  Time finished{};
};

class Job {
 public:
  Job(const Scene& scene, const Case& of);
  Outcome run();

 private:
  engine::EngineConfig config_of(const std::vector<int>& ranks, int self) const;
  void make_flat();
  void make_levels();
  std::unique_ptr<Communicator> make_level(int rank, Level level, const engine::EngineConfig& config,
                                           const Priorities& needed);
  Priorities needed_across(const engine::EngineConfig& config) const;
  void connect(const std::vector<int>& ranks, const std::function<Communicator*(Member&)>& part);
  void start(int rank);
  void start_levels(int rank, const AllreduceRequest& request, const std::vector<std::uint64_t>& bitmap);
  void note_end(Member& member);
  std::uint64_t block_elements() const { return scene_.block_elements / coarseness(); }
  std::uint64_t coarseness() const { return static_cast<std::uint64_t>(scene_.coarseness); }
  wire::OperationRecord fine_record(wire::Collective collective, std::uint64_t elements) const;
  void find_bound(Outcome& outcome);
  std::string stuck() const;
  Member& member(int rank) { return *members_[static_cast<std::size_t>(rank)]; }

  const Scene& scene_;
  const Case& case_;
  const std::vector<int> host_of_;
  const std::uint64_t fine_elements_;
  Tensors tensors_;
  Timeline timeline_;
  Network network_;
  std::vector<std::unique_ptr<Member>> members_;
  wire::Algorithm algorithm_ = wire::Algorithm::push;
  Algorithm shown_ = Algorithm::automatic;
  std::optional<engine::HierarchyPlan> plan_;
};

Tensors::Shape shape_of(const Scene& scene, const Case& of) {
  const auto coarseness = static_cast<std::uint64_t>(scene.coarseness);
  if (scene.block_elements % coarseness != 0)
    throw std::invalid_argument("the elements of a block cannot be divided by the coarseness");
  if (of.hosts > of.ranks) throw std::invalid_argument("there are more hosts than ranks");
  return {.ranks = of.ranks,
          .elements = of.bytes / sizeof(float) / coarseness,
          .block_elements = scene.block_elements / coarseness,
          .density = of.density,
          .overlap = scene.overlap,
          .seed = scene.seed};
}

Job::Job(const Scene& scene, const Case& of)
    : scene_(scene),
      case_(of),
      host_of_(hosts_of(of)),
      fine_elements_(of.bytes / sizeof(float)),
      tensors_(shape_of(scene, of)),
      network_(timeline_, link_plan(scene, host_of_), scene.coarseness) {
  for (int rank = 0; rank < of.ranks; ++rank) {
    members_.push_back(
        std::make_unique<Member>(timeline_, core_costs(scene), scene.coarseness, tensors_.bytes()));
    Member& m = *members_.back();
    m.device = network_.device(rank, m.core, network_limits(scene), host_limits());
    m.registrations = std::make_unique<comm::Registrations>(m.device);
    m.handles.push_back(
        m.registrations->add(std::as_writable_bytes(tensors_.all_values()), MemoryKind::host));
    m.handles.push_back(m.registrations->add(m.output.bytes(), MemoryKind::host));
  }
  std::vector<int> all(static_cast<std::size_t>(of.ranks));
  std::iota(all.begin(), all.end(), 0);
  const engine::EngineConfig config = config_of(all, 0);
  algorithm_ = engine::choose_algorithm(config, fine_record(wire::Collective::allreduce, fine_elements_),
                                        of.algorithm);
  shown_ = engine::public_algorithm(config, algorithm_);
  if (algorithm_ == wire::Algorithm::hierarchy) {
    plan_ = engine::HierarchyPlan::of(membership_of(host_of_, 0, scene.gigabits), 0);
    make_levels();
  }
  if (!plan_ || of.ranks <= scene.most_ranks_that_meet) make_flat();
}

wire::OperationRecord Job::fine_record(wire::Collective collective, std::uint64_t elements) const {
  wire::OperationRecord record;
  record.collective = collective;
  record.count = record.chunk_count = elements;
  record.block_elems = scene_.block_elements;
  record.type = static_cast<std::uint8_t>(DataType::float32);
  if (collective == wire::Collective::allreduce && case_.density < 1)
    record.root_or_density = wire::Density::of_share(case_.density).code();
  return record;
}

engine::EngineConfig Job::config_of(const std::vector<int>& ranks, int self) const {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(host_of_[static_cast<std::size_t>(rank)]);
  Options options;
  options.transport = scene_.transport == Transport::tcp ? "cma,tcp" : "cma,ibverbs";
  options.sum_order = scene_.sum_order;
  const engine::Membership membership = membership_of(hosts, self, scene_.gigabits);
  const auto& device = members_[static_cast<std::size_t>(ranks[static_cast<std::size_t>(self)])]->device;
  engine::EngineConfig config = engine::plan_engine(options, membership, engine::DeviceLimits(*device));
  config.staging = Staging::cached;  // the other way is chosen by the machine's own clock
  return config;
}

void Job::connect(const std::vector<int>& ranks, const std::function<Communicator*(Member&)>& part) {
  std::vector<Communicator*> all;
  for (const int rank : ranks) all.push_back(part(member(rank)));
  Communicator::connect(all);
}

void Job::make_flat() {
  std::vector<int> all(members_.size());
  std::iota(all.begin(), all.end(), 0);
  wire::OperationRecord record = fine_record(wire::Collective::allreduce, fine_elements_);
  record.algorithm = algorithm_;
  for (const int rank : all) {
    engine::EngineConfig config = config_of(all, rank);
    Priorities needed;
    if (plan_) {
      needed.set();
    } else {
      make_coarse(config, record, coarseness());
      add_needed(needed, config, record);
    }
    Member& m = member(rank);
    m.flat = std::make_unique<Communicator>(m.core, config, needed, m.device, *m.registrations);
    check_memory(scene_);
  }
  connect(all, [](Member& m) { return m.flat.get(); });
}

std::unique_ptr<Communicator> Job::make_level(int rank, Level level, const engine::EngineConfig& config,
                                              const Priorities& needed) {
  Member& m = member(rank);
  if (scene_.one_core)
    return std::make_unique<Communicator>(m.core, config, needed, m.device, *m.registrations);
  auto& core = m.level_cores[static_cast<std::size_t>(level)];
  core = std::make_unique<Core>(timeline_, core_costs(scene_), scene_.coarseness);
  const auto device = network_.device(rank, *core, network_limits(scene_), host_limits());
  return std::make_unique<Communicator>(*core, config, needed, device, *m.registrations);
}

/// Those of what is not an allreduce, which is what a host exchanges.
Priorities needed_within() {
  return Priorities()
      .set(static_cast<std::size_t>(wire::Priority::bulk))
      .set(static_cast<std::size_t>(wire::Priority::express));
}

/// The priorities of what is exchanged between hosts. Known only of dense tensors that are not coarse.
Priorities Job::needed_across(const engine::EngineConfig& config) const {
  Priorities needed;
  if (!tensors_.is_dense() || coarseness() > 1) return needed.set();
  for (const engine::Piece& piece :
       engine::cut_into_pieces(fine_elements_, scene_.block_elements, sizeof(float), plan_->columns())) {
    for (const std::uint64_t share : piece.columns) {
      if (share == 0) continue;
      wire::OperationRecord record = fine_record(wire::Collective::allreduce, share);
      record.algorithm = engine::choose_algorithm(config, record, Algorithm::automatic);
      add_needed(needed, config, record);
    }
  }
  return needed;
}

void Job::make_levels() {
  const std::uint64_t share =
      engine::cut_into_pieces(fine_elements_, scene_.block_elements, sizeof(float), plan_->columns())
          .front()
          .columns.front();
  const auto make = [&](Level level, const std::vector<int>& ranks, wire::Collective collective) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      Member& m = member(ranks[i]);
      engine::EngineConfig config = config_of(ranks, static_cast<int>(i));
      wire::OperationRecord record = fine_record(collective, share);
      if (collective == wire::Collective::allreduce)
        record.algorithm = engine::choose_algorithm(config, record, Algorithm::automatic);
      make_coarse(config, record, coarseness());
      if (collective == wire::Collective::allreduce && coarseness() > 1)  // what the whole tensor would take
        config.algorithm = engine::public_algorithm(config, record.algorithm);
      const Priorities needed = level == Level::across ? needed_across(config) : needed_within();
      m.levels[static_cast<std::size_t>(level)] = make_level(ranks[i], level, config, needed);
    }
    check_memory(scene_);
    connect(ranks, [level](Member& m) { return m.levels[static_cast<std::size_t>(level)].get(); });
  };
  for (int host = 0; host < plan_->hosts(); ++host) {
    make(Level::up, plan_->ranks_of(host), wire::Collective::reduce_scatter);
    make(Level::down, plan_->ranks_of(host), wire::Collective::allgather);
  }
  for (int column = 0; column < plan_->columns(); ++column)
    make(Level::across, plan_->ranks_of_column(column), wire::Collective::allreduce);
  for (int rank = 0; rank < case_.ranks; ++rank) {
    Member& m = member(rank);
    const auto over = [this, &m] {
      if (m.flat) return m.flat->wake();
      note_end(m);
    };
    m.hierarchy = std::make_unique<SimulatedLevels>(*plan_, rank, timeline_, m.levels, scene_.step,
                                                    engine::kLeastPieceBytes / coarseness(), over);
  }
}

// --- The allreduce

void Job::start(int rank) {
  Member& m = member(rank);
  const std::vector<std::uint64_t> bitmap =
      tensors_.is_dense() ? std::vector<std::uint64_t>() : tensors_.bitmap(rank);
  const AllreduceRequest request{.input = tensors_.values(rank),
                                 .output = m.output.data(),
                                 .count = tensors_.bytes() / sizeof(float),
                                 .block_elems = block_elements(),
                                 .bitmap = bitmap,
                                 .dense = tensors_.is_dense(),
                                 .algorithm = shown_,
                                 .expected_density = case_.density < 1 ? case_.density : 0};
  if (plan_) return start_levels(rank, request, bitmap);
  m.operation = m.flat->start(&request, [this, &m](const auto&) { note_end(m); });
}

void Job::start_levels(int rank, const AllreduceRequest& request, const std::vector<std::uint64_t>& bitmap) {
  Member& m = member(rank);
  if (m.flat) {
    m.operation = m.flat->start(&request, [this, &m](const auto&) { note_end(m); });
  } else {
    std::vector<int> all(members_.size());
    std::iota(all.begin(), all.end(), 0);
    m.operation = make_operation(config_of(all, rank), 0, &request, *m.registrations);
    m.operation->slice_done(0);
  }
  auto sum = comm::make_two_level_sum(*m.hierarchy, {.operation = m.operation,
                                                     .record = m.operation->record,
                                                     .timeout = m.operation->timeout,
                                                     .handles = {m.handles.begin(), m.handles.end()},
                                                     .input = m.operation->input.base,
                                                     .output = m.operation->output,
                                                     .dense = request.dense,
                                                     .bitmap = bitmap});
  sum->announce();
  sum->begin();
}

void Job::note_end(Member& m) {
  if (!m.operation->finished()) return;
  m.done = true;
  m.finished = m.core.clock();
}

Outcome Job::run() {
  for (int rank = 0; rank < case_.ranks; ++rank) timeline_.call(Time{}, [this, rank] { start(rank); });
  constexpr std::uint64_t kStepsPerCheck = 1 << 14;
  for (std::uint64_t steps = 1; timeline_.step(); ++steps) {
    if (steps % kStepsPerCheck == 0) check_memory(scene_);
  }
  Outcome outcome{.algorithm = shown_, .messages = network_.messages(), .failure = stuck()};
  Time last{};
  for (const auto& m : members_) {
    if (!m->done) continue;
    last = std::max(last, m->finished);
    outcome.fingerprint =
        (outcome.fingerprint ^ static_cast<std::uint64_t>(m->finished.count())) * 0x100000001b3;
    const std::span<const float> result(m->output.data(), tensors_.bytes() / sizeof(float));
    outcome.wrong += tensors_.wrong(result, m->operation->union_bitmap());
  }
  outcome.seconds = in_seconds(last);
  for (int host = 0; host < network_.links().hosts(); ++host)
    outcome.host_bytes = std::max(outcome.host_bytes, network_.links().sent(host));
  find_bound(outcome);
  return outcome;
}

/// Why some rank has no result, or nothing if all have.
std::string Job::stuck() const {
  if (!network_.failure().empty()) return network_.failure();
  int waiting = 0;
  for (const auto& m : members_) {
    if (m->flat && !m->flat->failure().empty()) return m->flat->failure();
    for (const auto& level : m->levels) {
      if (level && !level->failure().empty()) return level->failure();
    }
    waiting += m->done ? 0 : 1;
  }
  return waiting == 0 ? "" : fmt::format("{} rank(s) wait, and nothing happens any more", waiting);
}

/// What each host has together goes to the others once, and the result comes back once: of both, the part
/// that other hosts own. Where racks share a smaller link, that of the hosts that are elsewhere.
void Job::find_bound(Outcome& outcome) {
  const int hosts = case_.hosts;
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(hosts));
  std::vector<int> all;
  for (int rank = 0; rank < case_.ranks; ++rank) {
    ranks[static_cast<std::size_t>(host_of_[static_cast<std::size_t>(rank)])].push_back(rank);
    all.push_back(rank);
  }
  double most = 0;
  for (const auto& of_host : ranks) most = std::max(most, tensors_.union_density(of_host));
  const double both = (most + tensors_.union_density(all)) * static_cast<double>(case_.bytes);
  outcome.bound_bytes = both * (1 - 1.0 / hosts);
  const double byte = 8 / (scene_.gigabits * 1e9);
  outcome.bound = outcome.bound_bytes * byte;
  if (scene_.rack_hosts > 0 && scene_.rack_hosts < hosts) {
    const double elsewhere = 1 - static_cast<double>(scene_.rack_hosts) / hosts;
    outcome.bound = std::max(outcome.bound, both * elsewhere * scene_.oversubscription * byte);
  }
}

}  // namespace

Outcome simulate(const Scene& scene, const Case& of) {
  ::malloc_trim(0);  // of a case before
  return Job(scene, of).run();
}

}  // namespace perf::scale

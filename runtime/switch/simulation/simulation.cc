#include "runtime/switch/simulation/simulation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

#include "runtime/switch/port.h"
#include "runtime/switch/simulation/rack.h"

namespace nzcl::simulation {

using namespace engine::slot_pool;

namespace {

constexpr std::size_t kHeaders = 20 + 8;  // of IPv4 and UDP
constexpr std::uint32_t kWarmUpPart = 8;

/// A rank's packet passes two links on its way, and so does its answer.
verbs::SimulatedLink link_of(const Scene& scene, double loss) {
  verbs::SimulatedLink link;
  link.bits_per_second = scene.bits_per_second;
  link.delay = scene.round_trip / 4;
  link.max_bytes = scene.mtu - kHeaders;
  link.faults.loss = loss;
  return link;
}

std::uint32_t blocks_per_piece(const Scene& scene) {
  const PortAddress member{.address = {}, .max_bytes = scene.mtu - kHeaders, .job = {}};
  const std::uint32_t blocks = common_piece_elements({&member, 1}) / scene.block_elements;
  if (blocks == 0) throw std::invalid_argument("a block does not fit into a packet");
  return std::min<std::uint32_t>(blocks, kMostBlocks);
}

std::uint32_t pieces_for(const Scene& scene, const Case& of, std::uint32_t blocks) {
  const double held = scene.overlap == Overlap::all ? of.density : 1 - std::pow(1 - of.density, of.workers);
  const double packets_per_piece = of.workers * (1 - std::pow(1 - held, blocks));
  const std::uint64_t piece_bytes = std::uint64_t{blocks} * scene.block_elements * sizeof(std::int32_t);
  std::uint64_t pieces = std::max<std::uint64_t>(1, scene.most_bytes / piece_bytes);
  while (pieces > 1 &&
         static_cast<double>(pieces) * packets_per_piece > static_cast<double>(scene.most_packets))
    pieces /= 2;
  return static_cast<std::uint32_t>(pieces);
}

/// A switch is at the other end of all links, and is never what is slow.
RackPlan plan_of(const Scene& scene, const Case& of, std::uint32_t piece_elements) {
  RackPlan plan;
  plan.link = plan.aggregator = link_of(scene, of.loss);
  plan.aggregator.bits_per_second = 0;
  plan.seed = scene.seed;
  verbs::SimulatedNetwork network(scene.seed);
  const auto port = network.open(plan.link);
  plan.pool = {.workers = of.workers,
               .slots = scene.slots > 0 ? scene.slots : slots_for(*port),
               .piece_elements = piece_elements,
               .job = {1, {2, 3}},
               .window = window_for(*port, of.workers)};
  return plan;
}

/// A rack whose ranks sum one tensor after another.
class Job {
 public:
  explicit Job(const RackPlan& plan) : slots_(plan.pool.slots), workers_(plan.pool.workers), rack_(plan) {}

  /// Sums one more tensor, unless one before it has not ended.
  void sum(const MadeSum& made, Time limit) {
    if (!ended_) return;
    for (int r = 0; r < workers_; ++r) {
      tensors_.push_back(std::make_unique<MadeTensor>(made, r, slots_));
      rack_.add(r, *tensors_.back());
    }
    ended_ = rack_.run(now() + limit);
  }
  bool ended() const { return ended_; }
  /// Elements of all tensors on all ranks.
  std::uint64_t wrong() const {
    std::uint64_t sum = 0;
    for (const auto& tensor : tensors_) sum += tensor->wrong() + (ended_ && !tensor->complete() ? 1 : 0);
    return sum;
  }
  std::uint64_t repeated() {
    std::uint64_t sum = 0;
    for (int r = 0; r < workers_; ++r) sum += rack_.worker(r).repeated();
    return sum;
  }
  Time now() { return rack_.network().now(); }
  const std::string& failure() const { return rack_.failure(); }

 private:
  const std::uint32_t slots_;
  const int workers_;
  std::vector<std::unique_ptr<MadeTensor>> tensors_;
  Rack rack_;
  bool ended_ = true;
};

}  // namespace

Outcome simulate(const Scene& scene, const Case& of) {
  const std::uint32_t blocks = blocks_per_piece(scene), pieces = pieces_for(scene, of, blocks);
  const MadeSum::Shape shape{of.workers, pieces,        blocks,    scene.block_elements,
                             of.density, scene.overlap, scene.seed};
  MadeSum::Shape part = shape;
  part.pieces = std::max(1u, pieces / kWarmUpPart);
  const MadeSum warm_up(part), timed(shape);
  const RackPlan plan = plan_of(scene, of, timed.piece_elements());
  Job job(plan);

  job.sum(warm_up, scene.limit);
  const Time begin = job.now();
  const std::uint64_t repeated = job.repeated();
  job.sum(timed, scene.limit);
  const double values = static_cast<double>(timed.blocks_held_by_any()) * scene.block_elements;
  const double packets = static_cast<double>(timed.pieces_held_by_any()) * of.workers;
  const std::uint32_t slots = std::min(pieces, slots_used(pieces, plan.pool.slots));
  return {.bytes = timed.bytes(),
          .slots = slots,
          .slot_bytes = 2ull * slots * (sizeof(Header) + timed.piece_elements() * sizeof(std::int32_t)),
          .seconds = std::chrono::duration<double>(job.now() - begin).count(),
          .bound = values * sizeof(std::int32_t) * 8 / scene.bits_per_second,
          .repeated = static_cast<double>(job.repeated() - repeated) / std::max(1.0, packets),
          .ended = job.ended(),
          .wrong = job.wrong(),
          .failure = job.failure()};
}

}  // namespace nzcl::simulation

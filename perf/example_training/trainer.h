// Data-parallel training over nzcl. This is the file to read before putting nzcl into a training engine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/communicator.h"
#include "nzcl/compress.h"
#include "perf/example_training/batches.h"
#include "perf/example_training/consensus.h"
#include "perf/example_training/counters.h"
#include "perf/example_training/model.h"
#include "perf/example_training/optimizer.h"

namespace train {

/// How the gradients are summed. The sums, and so the weights, are the same to the last bit in the first
/// three. In all of them every rank has the same weights.
enum class Exchange {
  bitmap,      ///< sparse; the trainer tells nzcl which rows it touched
  scan,        ///< sparse; nzcl looks for the rows that are not zero
  dense,       ///< every row, zero or not
  compressed,  ///< what a compressor sends of them
  slots        ///< as in bitmap, through the switch exchange, which sums them as fixed point
};

struct TrainerSettings {
  std::size_t dim = 64;
  float rate = 0.2f;
  std::uint64_t seed = 1;
  std::uint64_t steps = 0;
  std::uint64_t report_every = 0;  ///< steps
  std::string compressor;          ///< as nzcl/compress.h describes it, for Exchange::compressed
  BatchSettings batch;
};

/// One model, trained by all ranks together: each on its own shard, all with the same weights after every
/// step. Made and run collectively, by one thread. Throws nzcl::Error if the exchange fails.
class Trainer {
 public:
  /// Gets the counters of the whole job for the steps since the last report; they are the same on every rank.
  using OnReport = std::function<void(std::uint64_t step, const Counters& since_last_report)>;

  Trainer(nzcl::Communicator& communicator, BatchStream& batches, std::size_t vocabulary,
          const TrainerSettings& settings, Exchange exchange);

  /// Runs all steps, and returns the whole job's counters. Throws std::runtime_error if the weights of the
  /// ranks differ.
  Counters run(const OnReport& on_report);

  const Model& model() const { return model_; }

 private:
  void step();
  nzcl::Work start_allreduce(Table& table, std::optional<nzcl::CompressorState>& state);
  std::span<const std::uint64_t> wait_for_union(nzcl::Work& work, Table& table,
                                                std::optional<nzcl::CompressorState>& state);
  float rate_factor() const;
  Counters report();

  nzcl::Communicator& communicator_;
  BatchStream& batches_;
  TrainerSettings settings_;
  Exchange exchange_;
  Model model_;
  RowAdagrad input_optimizer_, output_optimizer_;
  // These keep both gradients registered. They stand behind the model, into which they point.
  nzcl::RegisteredBuffer input_gradient_, output_gradient_;
  // Each rank has its own, and keeps in it what it has not sent yet.
  std::optional<nzcl::CompressorState> input_state_, output_state_;
  Consensus consensus_;
  Counters mine_;  // this rank's, since the start
};

}  // namespace train

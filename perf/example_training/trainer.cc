#include "perf/example_training/trainer.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace train {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

nzcl::RegisteredBuffer register_gradient(nzcl::Communicator& communicator, Table& table) {
  return communicator.register_buffer(table.gradient.data(), table.gradient.size() * sizeof(float));
}

}  // namespace

/// Every rank makes the same first model from the same seed, so nothing needs to be broadcast.
Trainer::Trainer(nzcl::Communicator& communicator, BatchStream& batches, std::size_t vocabulary,
                 const TrainerSettings& settings, Exchange exchange)
    : communicator_(communicator),
      batches_(batches),
      settings_(settings),
      exchange_(exchange),
      model_(vocabulary, settings.dim, settings.seed),
      input_optimizer_(vocabulary, settings.rate),
      output_optimizer_(vocabulary, settings.rate),
      input_gradient_(register_gradient(communicator, model_.input)),
      output_gradient_(register_gradient(communicator, model_.output)),
      consensus_(communicator) {
  if (exchange != Exchange::compressed) return;
  const nzcl::Compressor compressor = nzcl::compressor_from_text(settings.compressor);
  input_state_.emplace(compressor, model_.input.gradient.size());
  output_state_.emplace(compressor, model_.output.gradient.size());
}

Counters Trainer::run(const OnReport& on_report) {
  Counters last_report;
  const double start = seconds_now();
  const double bytes_before = static_cast<double>(communicator_.statistics().bytes_sent);
  for (std::uint64_t done = 1; done <= settings_.steps; ++done) {
    step();
    if (done % settings_.report_every != 0 && done != settings_.steps) continue;
    mine_.seconds = seconds_now() - start;
    mine_.wire_bytes = static_cast<double>(communicator_.statistics().bytes_sent) - bytes_before;
    const Counters job = report();
    on_report(done, job - last_report);
    last_report = job;
  }
  return last_report;
}

/// One step of synchronous stochastic gradient descent.
void Trainer::step() {
  // 1. This rank's gradient. It marks the rows that it touches.
  const Loss loss = model_.add_gradients(batches_.next());

  // 2. Sum both tables' gradients over the ranks, in place. Both are in flight at once.
  const double started = seconds_now();
  nzcl::Work input = start_allreduce(model_.input, input_state_);
  nzcl::Work output = start_allreduce(model_.output, output_state_);

  // 3. Update the union's rows and zero their gradient. The input table's update overlaps the output table's
  // exchange.
  const auto input_rows = wait_for_union(input, model_.input, input_state_);
  const double input_done = seconds_now();
  input_optimizer_.apply(model_.input, input_rows, rate_factor());
  const double input_updated = seconds_now();
  const auto output_rows = wait_for_union(output, model_.output, output_state_);
  const double output_done = seconds_now();
  output_optimizer_.apply(model_.output, output_rows, rate_factor());

  mine_.steps += 1;
  mine_.words += static_cast<double>(settings_.batch.words);
  mine_.pairs += static_cast<double>(loss.pairs);
  mine_.loss += loss.sum;
  mine_.communication_seconds += (input_done - started) + (output_done - input_updated);
}

/// A row is a block. The gradient belongs to nzcl from here until the work is done.
nzcl::Work Trainer::start_allreduce(Table& table, std::optional<nzcl::CompressorState>& state) {
  if (state) {
    return communicator_.allreduce_compressed(
        {.state = &*state, .input = table.gradient.data(), .output = table.gradient.data()});
  }
  nzcl::AllreduceRequest request{.input = table.gradient.data(),
                                 .output = table.gradient.data(),
                                 .count = table.gradient.size(),
                                 .block_elems = table.dim,
                                 .dense = exchange_ == Exchange::dense};
  if (exchange_ == Exchange::bitmap || exchange_ == Exchange::slots) request.bitmap = table.touched;
  nzcl::Work work = communicator_.allreduce(request);
  std::fill(table.touched.begin(), table.touched.end(), 0);  // nzcl has its copy
  return work;
}

/// The rows of the sum. Valid as long as `work` lives.
std::span<const std::uint64_t> Trainer::wait_for_union(nzcl::Work& work, Table& table,
                                                       std::optional<nzcl::CompressorState>& state) {
  work.wait();
  const nzcl::OperationStatistics statistics = work.statistics();
  mine_.blocks += static_cast<double>(statistics.blocks);
  mine_.input_blocks += static_cast<double>(statistics.input_blocks);
  mine_.union_blocks += static_cast<double>(statistics.union_blocks);
  if (state) {
    // The union is one of elements here, or of blocks that are no rows. What was marked is in the state.
    mine_.coded_bytes += static_cast<double>(state->report().coded_bytes);
    table.mark_nonzero_rows();
    return table.touched;
  }
  return work.union_bitmap();
}

/// The rate falls linearly to a twentieth over the run.
float Trainer::rate_factor() const {
  return static_cast<float>(1 - 0.95 * mine_.steps / static_cast<double>(settings_.steps));
}

/// The job's counters so far, after a check that all ranks have the same weights.
Counters Trainer::report() {
  if (!consensus_.same_everywhere(model_.hash()))
    throw std::runtime_error(
        "the ranks drifted apart: after step " + std::to_string(static_cast<long>(mine_.steps)) +
        " their weights differ (the hash on this rank is " + std::to_string(model_.hash()) + ")");
  Counters::Values sums = mine_.values();
  consensus_.sum(sums);
  return of_the_job(Counters::from(sums), communicator_.size());
}

}  // namespace train

#include "perf/allreduce/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "perf/cpu_seconds.h"

namespace perf::allreduce {

Bench::Bench(nzcl::Communicator& communicator, const Settings& settings)
    : communicator_(communicator), settings_(settings) {
  const std::size_t bytes = std::max<std::size_t>(8, settings.sizes().back());
  for (auto* buffer : {&pristine_, &input_, &output_}) buffer->resize(bytes);
  exchanged_.resize(static_cast<std::size_t>(settings.iterations) + 16);
  registered_input_ = communicator.register_buffer(input_.data(), bytes);
  registered_output_ = communicator.register_buffer(output_.data(), bytes);
  registered_exchanged_ = communicator.register_buffer(exchanged_.data(), exchanged_.size() * sizeof(double));
}

std::vector<double> Bench::gather(std::vector<double> values, nzcl::ReduceOp op) {
  std::copy(values.begin(), values.end(), exchanged_.begin());
  communicator_
      .allreduce({.input = exchanged_.data(),
                  .output = exchanged_.data(),
                  .count = values.size(),
                  .type = nzcl::DataType::float64,
                  .op = op,
                  .dense = true})
      .wait();
  return {exchanged_.begin(), exchanged_.begin() + static_cast<std::ptrdiff_t>(values.size())};
}

Measurement Bench::run(const Problem& p, bool in_place) {
  p.fill(communicator_.rank(), pristine_);
  const auto bitmap = settings_.bitmap ? p.bitmap(communicator_.rank()) : std::vector<std::uint64_t>();
  if (!in_place) std::memcpy(input_.data(), pristine_.data(), p.bytes());
  std::memset(output_.data(), 0xff, p.bytes());

  Measurement m;
  double sent = 0, wrong = 0, cpu = 0;
  for (int i = -settings_.warm_up; i < settings_.iterations; ++i) {
    if (in_place) std::memcpy(output_.data(), pristine_.data(), p.bytes());
    communicator_.barrier();
    const double cpu_before = cpu_seconds();
    const auto bytes_before = communicator_.statistics().bytes_sent;
    const auto begin = std::chrono::steady_clock::now();
    communicator_
        .allreduce({.input = in_place ? output_.data() : input_.data(),
                    .output = output_.data(),
                    .count = p.count,
                    .type = p.type,
                    .op = p.op,
                    .block_elems = p.block,
                    .bitmap = bitmap,
                    .dense = settings_.dense})
        .wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i >= 0) {
      m.seconds.push_back(took.count());
      sent += static_cast<double>(communicator_.statistics().bytes_sent - bytes_before);
      cpu += cpu_seconds() - cpu_before;
    }
    communicator_.barrier();  // the rest must not take a core from ranks that still work
    if (i == 0 && settings_.check) wrong = static_cast<double>(p.wrong(output_));
  }
  std::vector<double> most = m.seconds;
  most.push_back(sent / settings_.iterations);
  most = gather(std::move(most), nzcl::ReduceOp::max);
  m.wire_bytes = most.back();
  most.pop_back();
  m.seconds = std::move(most);
  std::sort(m.seconds.begin(), m.seconds.end());
  const auto sums = sum({wrong, cpu / settings_.iterations});
  m.wrong = static_cast<std::uint64_t>(sums[0]);
  m.cpu_seconds = sums[1];
  return m;
}

}  // namespace perf::allreduce

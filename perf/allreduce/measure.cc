#include "perf/allreduce/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "perf/cpu_seconds.h"

namespace perf::allreduce {

namespace {

std::vector<std::byte> in_type(const std::vector<std::int64_t>& indices, nzcl::IndexType type) {
  std::vector<std::byte> bytes(indices.size() * (type == nzcl::IndexType::int64 ? 8 : 4));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (type == nzcl::IndexType::int64) {
      std::memcpy(bytes.data() + i * 8, &indices[i], 8);
    } else {
      const auto index = static_cast<std::uint32_t>(indices[i]);  // the same bits for int32
      std::memcpy(bytes.data() + i * 4, &index, 4);
    }
  }
  return bytes;
}

}  // namespace

Bench::Bench(nzcl::Communicator& communicator, const Settings& settings)
    : communicator_(communicator),
      settings_(settings),
      totals_(communicator, static_cast<std::size_t>(settings.iterations) + 16) {
  // The last block of a stream takes the room of a whole one.
  const std::size_t padding = settings.stream_input ? settings.block * sizeof(std::int64_t) : 0;
  const std::size_t bytes = std::max<std::size_t>(8, settings.sizes().back()) + padding;
  for (auto* buffer : {&pristine_, &input_, &output_}) buffer->resize(bytes);
  registered_input_ = communicator.register_buffer(input_.data(), bytes);
  registered_output_ = communicator.register_buffer(output_.data(), bytes);
  if (settings.memory != Memory::host) gpu_.emplace(communicator, settings.memory, bytes);
}

/// Makes this rank's input.
void Bench::prepare(const Problem& p) {
  const int rank = communicator_.rank();
  p.fill(rank, pristine_);
  if (settings_.bitmap) bitmap_ = p.bitmap(rank);
  if (settings_.stream_input) {
    const std::vector<std::int64_t> indices = p.indices(rank);
    p.pack(pristine_, indices, input_);
    indices_ = in_type(indices, settings_.index_type);
    index_count_ = indices.size();
    if (settings_.packed_output) packed_indices_.resize(p.blocks() * sizeof(std::int64_t));
  } else {
    std::memcpy(input_.data(), pristine_.data(), p.bytes());
  }
  std::memset(output_.data(), 0xff, output_.size());
  if (gpu_) gpu_->write(gpu_->input(), std::span(input_).first(p.bytes()));
}

/// Gives the output what it has before an operation. One that is checked must not find the result of the one
/// before.
void Bench::reset_output(const Problem& p, bool in_place, bool checked) {
  if (in_place) {
    std::memcpy(output_.data(), pristine_.data(), p.bytes());
  } else if (checked) {
    std::memset(output_.data(), 0xff, output_.size());
  } else {
    return;
  }
  if (gpu_) gpu_->write(gpu_->output(), std::span(output_).first(p.bytes()));
}

/// The root is rank 0. A broadcast is always in place. Where each rank has a chunk, the problem's tensor is
/// that of all chunks.
nzcl::Work Bench::start_collective(const Problem& p, bool in_place) {
  const std::uint64_t chunk = p.count / static_cast<std::uint64_t>(p.ranks);
  const std::uint64_t own =
      chunk * static_cast<std::uint64_t>(communicator_.rank()) * nzcl::element_bytes(p.type);
  std::byte* const output = gpu_ ? gpu_->given_output() : output_.data();
  std::byte* const input = in_place ? output : gpu_ ? gpu_->given_input() : input_.data();
  void* const stream = gpu_ ? gpu_->given_stream() : nullptr;
  switch (settings_.collective) {
    case Collective::allreduce:
      break;
    case Collective::broadcast:
      return communicator_.broadcast({.data = output,
                                      .count = p.count,
                                      .type = p.type,
                                      .block_elems = p.block,
                                      .dense = settings_.dense,
                                      .stream = stream});
    case Collective::reduce:
      return communicator_.reduce({.input = input,
                                   .output = output,
                                   .count = p.count,
                                   .type = p.type,
                                   .op = p.op,
                                   .block_elems = p.block,
                                   .dense = settings_.dense,
                                   .stream = stream});
    case Collective::reduce_scatter:
      return communicator_.reduce_scatter({.input = input,
                                           .output = output + (in_place ? own : 0),
                                           .count = chunk,
                                           .type = p.type,
                                           .op = p.op,
                                           .block_elems = p.block,
                                           .dense = settings_.dense,
                                           .stream = stream});
    case Collective::allgather:
      return communicator_.allgather({.input = input + own,
                                      .output = output,
                                      .count = chunk,
                                      .type = p.type,
                                      .block_elems = p.block,
                                      .dense = settings_.dense,
                                      .stream = stream});
  }
  return {};
}

nzcl::Work Bench::start(const Problem& p, bool in_place) {
  if (settings_.collective != Collective::allreduce) return start_collective(p, in_place);
  const bool packed = settings_.packed_output;
  const double expected = settings_.hint ? p.density : 0;
  if (settings_.stream_input) {
    return communicator_.allreduce_sparse(
        {.values = input_.data(),
         .indices = {indices_.data(), index_count_, settings_.index_type},
         .count = p.count,
         .type = p.type,
         .op = p.op,
         .block_elems = p.block,
         .output = packed ? nullptr : output_.data(),
         .packed_values = packed ? output_.data() : nullptr,
         .packed_capacity = packed ? p.blocks() : 0,
         .packed_indices = {packed ? packed_indices_.data() : nullptr, settings_.index_type},
         .wire_type = settings_.wire_type,
         .algorithm = settings_.request_algorithm(),
         .expected_density = expected});
  }
  std::byte* const input = gpu_ ? gpu_->given_input() : input_.data();
  std::byte* const output = gpu_ ? gpu_->given_output() : output_.data();
  return communicator_.allreduce({.input = in_place ? output : input,
                                  .output = output,
                                  .count = p.count,
                                  .type = p.type,
                                  .op = p.op,
                                  .block_elems = p.block,
                                  .bitmap = bitmap_,
                                  .dense = settings_.dense,
                                  .wire_type = settings_.wire_type,
                                  .algorithm = settings_.request_algorithm(),
                                  .expected_density = expected,
                                  .stream = gpu_ ? gpu_->given_stream() : nullptr});
}

/// The number of wrong elements in the result of `work`.
std::uint64_t Bench::wrong(const Problem& p, const nzcl::Work& work, bool in_place) {
  const auto rank = static_cast<std::uint64_t>(communicator_.rank());
  const std::uint64_t chunk = p.count / static_cast<std::uint64_t>(p.ranks);
  const std::uint64_t chunk_bytes = chunk * nzcl::element_bytes(p.type);
  const std::span<const std::byte> out(output_);
  std::uint64_t bad = 0;
  switch (settings_.collective) {
    case Collective::allreduce:
      break;
    case Collective::broadcast:
      return p.wrong(out, 0, p.count, 0);
    case Collective::reduce:
      return rank == 0 ? p.wrong(out) : 0;
    case Collective::reduce_scatter:
      return p.wrong(out.subspan(in_place ? rank * chunk_bytes : 0), rank * chunk, (rank + 1) * chunk, -1);
    case Collective::allgather:
      for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(p.ranks); ++r)
        bad += p.wrong(out.subspan(r * chunk_bytes), r * chunk, (r + 1) * chunk, static_cast<int>(r));
      return bad;
  }
  if (!settings_.packed_output) return p.wrong(output_);
  const std::uint64_t misplaced = p.unpack(output_, work.packed_indices(), pristine_);
  return misplaced + p.wrong(pristine_);
}

Measurement Bench::run(const Problem& p, bool in_place) {
  prepare(p);
  Measurement m;
  double sent = 0, bad = 0, cpu = 0;
  const bool broadcast = settings_.collective == Collective::broadcast;
  for (int i = -settings_.warm_up; i < settings_.iterations; ++i) {
    reset_output(p, in_place || broadcast, i == 0);
    communicator_.barrier();
    const double cpu_before = cpu_seconds();
    const auto bytes_before = communicator_.statistics().bytes_sent;
    const auto begin = std::chrono::steady_clock::now();
    if (gpu_) gpu_->before(p.bytes(), in_place || broadcast);
    nzcl::Work work = start(p, in_place);
    work.wait();
    if (gpu_) gpu_->behind(p.bytes());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i >= 0) {
      m.seconds.push_back(took.count());
      sent += static_cast<double>(communicator_.statistics().bytes_sent - bytes_before);
      cpu += cpu_seconds() - cpu_before;
    }
    communicator_.barrier();  // the rest must not take a core from ranks that still work
    m.algorithm = work.statistics().algorithm;
    if (i == 0 && settings_.check && gpu_) gpu_->read(std::span(output_).first(p.bytes()), gpu_->output());
    if (i == 0 && settings_.check) bad = static_cast<double>(wrong(p, work, in_place));
  }
  std::vector<double> most = m.seconds;
  most.push_back(sent / settings_.iterations);
  most = totals_.largest(most);
  m.wire_bytes = most.back();
  most.pop_back();
  m.seconds = std::move(most);
  std::sort(m.seconds.begin(), m.seconds.end());
  const auto sums = sum({bad, cpu / settings_.iterations});
  m.wrong = static_cast<std::uint64_t>(sums[0]);
  m.cpu_seconds = sums[1];
  return m;
}

}  // namespace perf::allreduce

// The fake driver's kernels, which run on the CPU. Launches that are misaligned or too large, or whose memory
// was neither allocated nor registered, fail.
#include <algorithm>
#include <string_view>
#include <type_traits>

#include "runtime/gpu/kernels/cpu_shim.h"
#include "tests/system/fake_cuda/fake_state.h"

using namespace nzcl::test::fake;

namespace {

template <typename Job>
void run(const Job& job, unsigned unit, unsigned grid) {
  std::vector<std::uint64_t> words(shared_bytes(kMostSliceWords) / sizeof(std::uint64_t));
  const auto each = [&](auto zero) {
    using Unit = decltype(zero);
    for (unsigned i = 0; i < grid; ++i) {
      CpuBlock block(i, words.data());
      if constexpr (std::is_same_v<Job, PackJob>) {
        if (i < job.shape.slices()) pack_slice<Unit>(block, job);
      } else if constexpr (std::is_same_v<Job, TilesJob>) {
        if (i < job.shape.slices()) pack_tile<Unit>(block, job);
      } else if constexpr (std::is_same_v<Job, PlaceJob>) {
        if (i < job.slices) place_slice<Unit>(block, job);
      } else {
        copy_list<Unit>(block, job);
      }
    }
  };
  if (unit == 16) return each(Unit16{});
  if (unit == 8) return each(std::uint64_t{});
  if (unit == 4) return each(std::uint32_t{});
  if (unit == 2) return each(std::uint16_t{});
  each(std::uint8_t{});
}

/// The addresses of a table as the fake GPU's threads have them.
PeerTable reached(const PeerTable& table) {
  const std::scoped_lock lock(state().mutex);
  const auto reached = [](auto& at) {
    if (at != nullptr)
      at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(
          reach(reinterpret_cast<std::uintptr_t>(at), 1));
  };
  PeerTable found = table;
  for (auto& at : found.contribution) reached(at);
  for (auto& at : found.bits) reached(at);
  for (auto& at : found.result) reached(at);
  return found;
}

/// Memory of slices that a job has somewhere else.
bool make_far_reachable(auto& job) {
  return job.is_far == nullptr ||
         (make_reachable(job.is_far, job.shape.slices(), 1) && make_reachable(job.far, job.shape.bytes, 16));
}

int launch_pack(PackJob job, unsigned unit, unsigned grid, unsigned shared, FakeStream stream) {
  const Shape& shape = job.shape;
  if (grid != std::max<std::uint64_t>(shape.slices(), 1) || shared < shared_bytes(shape.words_per_slice()) ||
      shared > 48 << 10)
    return kInvalidValue;
  if (!make_reachable(job.tensor, shape.bytes, unit) || !make_reachable(job.packed, shape.bytes, unit) ||
      !make_reachable(job.bits, shape.words() * 8, 8) || !make_far_reachable(job) ||
      (job.flags != nullptr && !make_reachable(job.flags, shape.slices() * 4, 4)) ||
      (job.second_bits != nullptr && !make_reachable(job.second_bits, shape.words() * 8, 8)) ||
      (job.go != nullptr && !make_reachable(job.go, 4, 4)))
    return kMisaligned;
  return add(stream, [job, unit, grid] { run(job, unit, grid); });
}

int launch_tiles(TilesJob job, unsigned unit, unsigned grid, unsigned shared, FakeStream stream) {
  const Shape& shape = job.shape;
  if (grid != std::max<std::uint64_t>(shape.slices(), 1) || shared < shared_bytes(shape.words_per_slice()) ||
      shared > 48 << 10)
    return kInvalidValue;
  if (!make_reachable(job.tensor, shape.bytes, unit) || !make_reachable(job.packed, shape.bytes, unit) ||
      !make_reachable(job.sets, shape.words() * 8, 8) || !make_reachable(job.counts, shape.slices() * 4, 4) ||
      (job.flags != nullptr && !make_reachable(job.flags, shape.slices() * 4, 4)))
    return kMisaligned;
  return add(stream, [job, unit, grid] { run(job, unit, grid); });
}

int launch_place(PlaceJob job, unsigned unit, unsigned grid, unsigned shared, FakeStream stream) {
  const Shape& shape = job.shape;
  const std::uint64_t words = shape.words_per_slice();
  if (grid != std::max<std::uint64_t>(job.slices, 1) || job.first_slice + job.slices > shape.slices() ||
      (words <= kMostSliceWords && shared < shared_bytes(words)))
    return kInvalidValue;
  const bool staged = job.peers != nullptr ? make_reachable(job.peers, sizeof *job.peers, 8)
                                           : make_reachable(job.staged, shape.bytes, unit);
  if (!staged || !make_reachable(job.tensor, shape.bytes, unit) || !make_far_reachable(job) ||
      !make_reachable(job.bits, shape.words() * 8, 8) ||
      (job.go != nullptr && !make_reachable(job.go, sizeof *job.go, sizeof *job.go)))
    return kMisaligned;
  return add(stream, [job, unit, grid] {
    if (job.peers == nullptr) return run(job, unit, grid);
    const PeerTable table = reached(*job.peers);
    PlaceJob with_table = job;
    with_table.peers = &table;
    run(with_table, unit, grid);
  });
}

int launch_sum(SumJob job, unsigned type, unsigned grid, unsigned shared, FakeStream stream) {
  const Shape& shape = job.shape;
  if (grid != std::max<std::uint64_t>(shape.slices(), 1) || type != static_cast<unsigned>(job.type) ||
      shared < job.shared_words() * 8 || shared > 48 << 10 || job.ranks > kMostPeers)
    return kInvalidValue;
  if (job.ranks == 0) return kSuccess;
  if (!make_reachable(job.peers, sizeof *job.peers, 8) ||
      !make_reachable(job.result, job.result_bytes(), 16) ||
      !make_reachable(job.union_bits, shape.words() * 8, 8) ||
      (job.go != nullptr && !make_reachable(job.go, 4, 4)))
    return kMisaligned;
  return add(stream, [job, grid, shared] {
    const PeerTable table = reached(*job.peers);
    SumJob with_table = job;
    with_table.peers = &table;
    std::vector<std::uint64_t> words(shared / sizeof(std::uint64_t) + 1);
    for (unsigned i = 0; i < grid; ++i) {
      CpuBlock block(i, words.data());
      sum_any_type(block, with_table);
    }
  });
}

int launch_list(ListJob job, unsigned unit, unsigned grid, FakeStream stream) {
  if (grid != job.runners) return kInvalidValue;
  const ListSizes& sizes = job.sizes;
  if (!make_reachable(job.values.from, sizes.value_bytes, unit) ||
      !make_reachable(job.values.to, sizes.value_bytes, unit) ||
      !make_reachable(job.indices.from, sizes.index_bytes, unit) ||
      !make_reachable(job.indices.to, sizes.index_bytes, unit) ||
      (job.found != nullptr && !make_reachable(job.found, sizeof *job.found, 8)) ||
      (job.count != nullptr && !make_reachable(job.count, 8, 8)) ||
      (job.go != nullptr && !make_reachable(job.go, 4, 4)) ||
      (job.flags != nullptr && !make_reachable(job.flags, job.runners * 4, 4)))
    return kMisaligned;
  return add(stream, [job, unit, grid] { run(job, unit, grid); });
}

int launch_select(SelectJob job, unsigned pass, unsigned grid, unsigned shared, FakeStream stream) {
  if (grid != std::max<std::uint64_t>(job.runners(), 1) || pass != static_cast<unsigned>(job.pass) ||
      shared < shared_bytes(2 * SelectJob::kWords) || shared > 48 << 10)
    return kInvalidValue;
  if (job.elements == 0) return kSuccess;
  bool good = true;
  job.each_array([&](auto*& at, std::size_t bytes) {
    good = good && (at == nullptr || make_reachable(at, bytes, alignof(decltype(*at))));
  });
  if (!good) return kMisaligned;
  return add(stream, [job, grid] {
    std::vector<std::uint64_t> words(shared_bytes(2 * SelectJob::kWords) / sizeof(std::uint64_t) + 1);
    for (unsigned i = 0; i < grid; ++i) {
      CpuBlock block(i, words.data());
      run_any_pass(block, job);
    }
  });
}

}  // namespace

FAKE cuModuleLoadDataEx(Module* module, const void* image, unsigned, int*, void**) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  state().module = static_cast<const char*>(image);
  *module = reinterpret_cast<Module>(&state().module);
  return state().module.find(".version 6.4") != std::string::npos ? kSuccess : kInvalidValue;
}
FAKE cuModuleGetFunction(Function* function, Module, const char* name) {
  if (const int wrong = ready()) return wrong;
  const std::string_view wanted(name);
  if (state().module.find(".entry " + std::string(wanted) + "(") == std::string::npos) return kNotFound;
  const unsigned unit = static_cast<unsigned>(std::stoul(std::string(wanted.substr(wanted.rfind('_') + 1))));
  const auto kind = wanted.starts_with("nzcl_pack_")    ? Kernel::pack
                    : wanted.starts_with("nzcl_tiles_") ? Kernel::tiles
                    : wanted.starts_with("nzcl_place_") ? Kernel::place
                    : wanted.starts_with("nzcl_list_")  ? Kernel::list
                    : wanted.starts_with("nzcl_sum_")   ? Kernel::sum
                                                        : Kernel::select;
  state().kernels.push_back(std::make_unique<Kernel>(Kernel{kind, unit}));
  *function = reinterpret_cast<Function>(state().kernels.back().get());
  return kSuccess;
}
FAKE cuLaunchKernel(Function function, unsigned grid, unsigned grid_y, unsigned grid_z, unsigned threads,
                    unsigned threads_y, unsigned threads_z, unsigned shared, FakeStream stream,
                    void** arguments, void** extra) {
  if (const int wrong = ready()) return wrong;
  if (grid_y != 1 || grid_z != 1 || threads_y != 1 || threads_z != 1 || threads > 1024 || threads % 32 != 0 ||
      extra != nullptr)
    return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  const auto* const kernel = reinterpret_cast<const Kernel*>(function);
  switch (kernel->kind) {
    case Kernel::pack:
      return launch_pack(*static_cast<const PackJob*>(arguments[0]), kernel->unit, grid, shared, stream);
    case Kernel::tiles:
      return launch_tiles(*static_cast<const TilesJob*>(arguments[0]), kernel->unit, grid, shared, stream);
    case Kernel::place:
      return launch_place(*static_cast<const PlaceJob*>(arguments[0]), kernel->unit, grid, shared, stream);
    case Kernel::list:
      return launch_list(*static_cast<const ListJob*>(arguments[0]), kernel->unit, grid, stream);
    case Kernel::sum:
      return launch_sum(*static_cast<const SumJob*>(arguments[0]), kernel->unit, grid, shared, stream);
    case Kernel::select:
      break;
  }
  return launch_select(*static_cast<const SelectJob*>(arguments[0]), kernel->unit, grid, shared, stream);
}

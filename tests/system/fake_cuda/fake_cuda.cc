// A CUDA driver in software, with the functions that nzcl uses, as a library of the driver's name. It is as
// strict as the documentation allows: calls without a current context, without cuInit(), with memory that was
// not allocated or registered, with misaligned or too large launches fail. Memory cannot be touched by the
// host, streams are late, and launches run the kernels on the CPU.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/gpu/cuda/cuda_api.h"
#include "runtime/gpu/emulated/emulated_stream.h"
#include "runtime/gpu/emulated/two_mappings.h"
#include "runtime/gpu/kernels/cpu_shim.h"

#define FAKE extern "C" __attribute__((visibility("default"))) int

using namespace nzcl::gpu;
namespace verbs = nzcl::verbs;
using cuda::Context;
using cuda::Device;
using cuda::DevicePointer;
using cuda::Function;
using cuda::Module;
using FakeStream = cuda::Stream;

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidContext = 201,
              kInvalidHandle = 400, kNotFound = 500, kMisaligned = 716;

struct Kernel {
  enum Kind { pack, place, list, select, sum } kind;
  unsigned unit;  // or, of a selection, the number of its pass, and of a sum that of its type
};

using Graph = std::vector<std::function<void()>>;  // what a stream was told while it was captured

/// A range of addresses of the GPU's. Memory is there in segments: that of cuMemAlloc() is one, and a
/// reserved range has those that were mapped.
struct Memory {
  std::unique_ptr<TwoMappings> pages;
  std::map<std::size_t, std::size_t> segments;  // where each begins in the range, and its bytes
  unsigned type = cuda::kMemoryOfDevice;
  unsigned managed = 0;
  Context context = nullptr;
  int ordinal = 0;
};

/// All of it lives until the process ends, as a driver does.
struct State {
  std::mutex mutex;
  std::atomic<int> broken{kSuccess};
  std::atomic<bool> full{false}, pinned_full{false};
  std::atomic<int> made{0};
  bool initialized = false;
  std::string module;
  std::map<std::uintptr_t, Memory> memory;
  std::map<unsigned long long, std::size_t> created;         // the bytes of what may be mapped, by its handle
  std::map<std::uintptr_t, std::size_t> registered, opened;  // the latter are other processes'
  std::map<void*, std::unique_ptr<EmulatedStream>> streams;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::map<void*, std::unique_ptr<Graph>> captured;  // by the stream
};
State& state() {
  static auto* const s = new State;
  return *s;
}

constexpr std::size_t kGranularity = 64 << 10;  // a GPU's is 2 MiB

thread_local int contexts = 0, capture_mode = 0;
auto* const kPrimary = reinterpret_cast<Context>(0x1000);

/// What every call but the first ones has to find.
int ready(bool needs_context = true) {
  if (const int broken = state().broken) return broken;
  if (!state().initialized) return kNotInitialized;
  return needs_context && contexts == 0 ? kInvalidContext : kSuccess;
}

template <typename Map>
auto piece_of(Map& pieces, std::uintptr_t at) {
  auto next = pieces.upper_bound(at);
  return next == pieces.begin() ? pieces.end() : --next;
}

/// The segment that has the address, as its first address and its bytes. No bytes: there is none.
std::pair<std::uintptr_t, std::size_t> segment_with(std::uintptr_t at) {
  const auto range = piece_of(state().memory, at);
  if (range == state().memory.end()) return {};
  const std::size_t offset = at - range->first;
  const auto segment = piece_of(range->second.segments, offset);
  if (segment == range->second.segments.end() || offset - segment->first >= segment->second) return {};
  return {range->first + segment->first, segment->second};
}

/// Where the fake GPU reaches memory, or 0 if it does not. Segments that follow each other are one memory.
std::uintptr_t reach(std::uintptr_t at, std::size_t bytes) {
  State& s = state();
  std::uintptr_t end = at;
  while (end < at + bytes) {
    const auto [begin, length] = segment_with(end);
    if (length == 0) break;
    end = begin + length;
  }
  if (const auto found = piece_of(s.memory, at); bytes > 0 && end >= at + bytes)
    return reinterpret_cast<std::uintptr_t>(found->second.pages->device()) + (at - found->first);
  if (const auto found = piece_of(s.registered, at); found != s.registered.end())
    if (at - found->first + bytes <= found->second) return at;
  if (const auto found = piece_of(s.opened, at); found != s.opened.end())
    if (at - found->first + bytes <= found->second) return at;
  return 0;
}

template <typename T>
bool make_reachable(T*& at, std::size_t bytes, unsigned unit) {
  if (bytes == 0) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  if (address % unit != 0) return false;
  at = reinterpret_cast<T*>(reach(address, bytes));
  return at != nullptr;
}

EmulatedStream* stream_of(FakeStream stream) {
  State& s = state();
  auto found = s.streams.find(stream);
  if (found == s.streams.end() && stream == nullptr)
    found = s.streams.emplace(nullptr, std::make_unique<EmulatedStream>(1)).first;
  return found == s.streams.end() ? nullptr : found->second.get();
}

int add(FakeStream stream, const std::function<void()>& work) {
  EmulatedStream* const queue = stream_of(stream);
  if (queue == nullptr) return kInvalidHandle;
  const auto unless_broken = [work] {
    if (state().broken == kSuccess) work();
  };
  if (const auto graph = state().captured.find(stream); graph != state().captured.end()) {
    graph->second->emplace_back(unless_broken);
  } else {
    queue->add(unless_broken);
  }
  return kSuccess;
}

template <typename Job>
void run(const Job& job, unsigned unit, unsigned grid) {
  std::vector<std::uint64_t> words(shared_bytes(kMostSliceWords) / sizeof(std::uint64_t));
  const auto each = [&](auto zero) {
    using Unit = decltype(zero);
    for (unsigned i = 0; i < grid; ++i) {
      CpuBlock block(i, words.data());
      if constexpr (std::is_same_v<Job, PackJob>) {
        if (i < job.shape.slices()) pack_slice<Unit>(block, job);
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

// --- What a test controls.

/// From now on every call fails with this error.
FAKE fakeCudaBreak(int error) {
  state().broken = error;
  return kSuccess;
}
/// From now on there is no memory left on the GPU, and none that can be pinned, or there is some again.
FAKE fakeCudaFill(int gpu, int pinned) {
  state().full = gpu != 0;
  state().pinned_full = pinned != 0;
  return kSuccess;
}
/// Says that memory is of another kind: managed, of another context than the primary one, or of another GPU.
FAKE fakeCudaDeclare(DevicePointer pointer, unsigned managed, Context context, int ordinal) {
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end()) return kInvalidValue;
  found->second.managed = managed;
  found->second.context = context;
  found->second.ordinal = ordinal;
  return kSuccess;
}
/// How often something was allocated, registered, opened or made.
FAKE fakeCudaMade() { return state().made; }
/// How many pieces of the host's memory are registered.
FAKE fakeCudaRegistered() {
  const std::scoped_lock lock(state().mutex);
  return static_cast<int>(state().registered.size());
}

// --- The driver.

FAKE cuInit(unsigned) {
  if (const char* const wrong = std::getenv("FAKE_CUDA_INIT")) return std::atoi(wrong);
  state().initialized = true;
  return state().broken;
}
FAKE cuDriverGetVersion(int* version) {
  *version = 12020;
  return kSuccess;
}
FAKE cuGetErrorName(int error, const char** text) {
  *text = error == 700             ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 709           ? "CUDA_ERROR_CONTEXT_IS_DESTROYED"
          : error == 100           ? "CUDA_ERROR_NO_DEVICE"
          : error == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE"
          : error == kOutOfMemory  ? "CUDA_ERROR_OUT_OF_MEMORY"
                                   : nullptr;
  return *text != nullptr ? kSuccess : kInvalidValue;
}
FAKE cuGetErrorString(int error, const char** text) {
  *text = error == 700            ? "an illegal memory access was encountered"
          : error == 709          ? "context is destroyed"
          : error == kOutOfMemory ? "out of memory"
                                  : nullptr;
  return *text != nullptr ? kSuccess : kInvalidValue;
}
FAKE cuDeviceGetCount(int* count) {
  *count = 1;
  return ready(false);
}
FAKE cuDeviceGet(Device* device, int ordinal) {
  *device = 40 + ordinal;
  return ordinal == 0 ? ready(false) : kInvalidValue;
}
FAKE cuDeviceGetName(char* name, int bytes, Device device) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(bytes));
  return device == 40 ? ready(false) : kInvalidValue;
}
FAKE cuDeviceGetAttribute(int* value, int attribute, Device) {
  *value = attribute == cuda::kComputeMajor         ? 9
           : attribute == cuda::kRdmaWritesOrdering ? cuda::kOrderedForOwner
           : attribute == cuda::kDmabufSupported    ? 1
                                                    : 0;
  return ready(false);
}
FAKE cuDevicePrimaryCtxRetain(Context* context, Device) {
  *context = kPrimary;
  return ready(false);
}
FAKE cuCtxPushCurrent_v2(Context context) {
  if (context != kPrimary) return kInvalidContext;
  if (const int wrong = ready(false)) return wrong;
  ++contexts;
  return kSuccess;
}
FAKE cuCtxPopCurrent_v2(Context* context) {
  if (contexts == 0) return kInvalidContext;
  --contexts;
  *context = kPrimary;
  return kSuccess;
}
FAKE cuPointerGetAttributes(unsigned count, int* attributes, void** values, DevicePointer pointer) {
  if (const int wrong = ready(false)) return wrong;
  const std::scoped_lock lock(state().mutex);
  static const Memory nothing{.pages = nullptr, .segments = {}, .type = 0, .ordinal = -2};
  const bool there = segment_with(pointer).second != 0;
  const Memory& found = there ? piece_of(state().memory, pointer)->second : nothing;
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case cuda::kAttributeContext:
        *static_cast<Context*>(values[i]) = found.context;
        break;
      case cuda::kAttributeMemoryType:
        *static_cast<unsigned*>(values[i]) = found.type;
        break;
      case cuda::kAttributeIsManaged:
        *static_cast<unsigned*>(values[i]) = found.managed;
        break;
      case cuda::kAttributeDeviceOrdinal:
        *static_cast<int*>(values[i]) = found.ordinal;
        break;
      default:
        return kInvalidValue;
    }
  }
  return kSuccess;
}
FAKE cuMemGetAddressRange_v2(DevicePointer* base, std::size_t* bytes, DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  std::tie(*base, *bytes) = segment_with(pointer);
  return *bytes == 0 ? kNotFound : kSuccess;
}
FAKE cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (flags != (cuda::kHostRegisterPortable | cuda::kHostRegisterMapped)) return kInvalidValue;
  if (state().pinned_full) return kOutOfMemory;
  const std::scoped_lock lock(state().mutex);
  state().registered[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return kSuccess;
}
FAKE cuMemHostUnregister(void* memory) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return state().registered.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1 ? kSuccess : kInvalidValue;
}
FAKE cuMemHostGetDevicePointer_v2(DevicePointer* pointer, void* memory, unsigned) {
  *pointer = reinterpret_cast<DevicePointer>(memory);
  return ready();
}
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
FAKE cuStreamCreate(FakeStream* stream, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (flags != cuda::kStreamNonBlocking) return kInvalidValue;
  auto made = std::make_unique<EmulatedStream>(2);
  *stream = reinterpret_cast<FakeStream>(made.get());
  const std::scoped_lock lock(state().mutex);
  state().streams[*stream] = std::move(made);
  return kSuccess;
}
FAKE cuStreamDestroy_v2(FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  std::unique_ptr<EmulatedStream> ending;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().streams.find(stream);
  if (found == state().streams.end()) return kInvalidHandle;
  ending = std::move(found->second);
  state().streams.erase(found);
  return kSuccess;
}
FAKE cuStreamQuery(FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return stream_of(stream) != nullptr ? cuda::kNotReady : kInvalidHandle;
}
FAKE cuStreamIsCapturing(FakeStream stream, int* status) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  *status = state().captured.contains(stream) ? 1 : cuda::kCaptureStatusNone;
  return kSuccess;
}
FAKE cuStreamBeginCapture_v2(FakeStream stream, int mode) {
  if (const int wrong = ready()) return wrong;
  if (stream == nullptr || mode < 0 || mode > 2) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  state().captured[stream] = std::make_unique<Graph>();
  return kSuccess;
}
FAKE cuStreamEndCapture(FakeStream stream, void** graph) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().captured.find(stream);
  if (found == state().captured.end()) return kInvalidValue;
  *graph = found->second.release();
  state().captured.erase(found);
  return kSuccess;
}
FAKE cuGraphInstantiateWithFlags(void** launchable, void* graph, unsigned long long flags) {
  *launchable = graph;
  return flags == 0 ? ready() : kInvalidValue;
}
FAKE cuGraphLaunch(void* launchable, FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  for (const auto& work : *static_cast<const Graph*>(launchable)) {
    if (const int wrong = add(stream, work)) return wrong;
  }
  return kSuccess;
}
FAKE cuStreamSynchronize(FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  EmulatedStream* queue = nullptr;
  {
    const std::scoped_lock lock(state().mutex);
    queue = stream_of(stream);
  }
  if (queue == nullptr) return kInvalidHandle;
  queue->synchronize();
  return state().broken;
}
FAKE cuStreamWriteValue32_v2(FakeStream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  auto* const word = reinterpret_cast<std::uint32_t*>(reach(address, 4));
  if (word == nullptr || flags != cuda::kWriteDefault) return kInvalidValue;
  return add(stream, [word, value] { std::atomic_ref(*word).store(value); });
}
FAKE cuStreamWaitValue32_v2(FakeStream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto* const word = reinterpret_cast<const std::uint32_t*>(reach(address, 4));
  EmulatedStream* const queue = stream_of(stream);
  if (word == nullptr || queue == nullptr || flags != cuda::kWaitForGreaterOrEqual) return kInvalidValue;
  return add(stream, [queue, word, value] { queue->await(word, value); });
}
FAKE cuLaunchHostFunc(FakeStream stream, void (*function)(void*), void* argument) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return add(stream, [function, argument] { function(argument); });
}
FAKE cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}
FAKE cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (state().full) return kOutOfMemory;
  auto pages = std::make_unique<TwoMappings>(bytes, false);
  const std::scoped_lock lock(state().mutex);
  *pointer = reinterpret_cast<DevicePointer>(pages->host());
  state().memory[*pointer] = {.pages = std::move(pages), .segments = {{0, bytes}}, .context = kPrimary};
  return kSuccess;
}
FAKE cuMemFree_v2(DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return state().memory.erase(pointer) == 1 ? kSuccess : kInvalidValue;
}
/// Virtual memory: addresses are reserved, and memory is created and mapped there apart from that. It belongs
/// to no context.
FAKE cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) {
  *bytes = kGranularity;
  return ready();
}
FAKE cuMemAddressReserve(DevicePointer* pointer, std::size_t bytes, std::size_t, DevicePointer,
                         unsigned long long) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  auto pages = std::make_unique<TwoMappings>(bytes, false);
  const std::scoped_lock lock(state().mutex);
  *pointer = reinterpret_cast<DevicePointer>(pages->host());
  state().memory[*pointer] = {.pages = std::move(pages), .segments = {}};
  return kSuccess;
}
FAKE cuMemAddressFree(DevicePointer pointer, std::size_t) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end() || !found->second.segments.empty()) return kInvalidValue;
  state().memory.erase(found);
  return kSuccess;
}
FAKE cuMemCreate(unsigned long long* handle, std::size_t bytes, const void*, unsigned long long) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  *handle = state().created.empty() ? 1 : state().created.rbegin()->first + 1;
  state().created[*handle] = bytes;
  return kSuccess;
}
FAKE cuMemRelease(unsigned long long handle) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return state().created.erase(handle) == 1 ? kSuccess : kInvalidValue;
}
FAKE cuMemMap(DevicePointer pointer, std::size_t bytes, std::size_t offset, unsigned long long handle,
              unsigned long long) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto created = state().created.find(handle);
  const auto range = piece_of(state().memory, pointer);
  if (created == state().created.end() || created->second != bytes || offset != 0 ||
      range == state().memory.end() || pointer - range->first + bytes > range->second.pages->bytes())
    return kInvalidValue;
  range->second.segments[pointer - range->first] = bytes;
  return kSuccess;
}
FAKE cuMemSetAccess(DevicePointer, std::size_t, const void*, std::size_t) { return ready(); }
FAKE cuMemUnmap(DevicePointer pointer, std::size_t) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto range = piece_of(state().memory, pointer);
  return range != state().memory.end() && range->second.segments.erase(pointer - range->first) == 1
             ? kSuccess
             : kInvalidValue;
}
/// Whole allocations, which the pages of a memfd stand for.
FAKE cuMemGetHandleForAddressRange(void* handle, DevicePointer pointer, std::size_t bytes, int type,
                                   unsigned long long flags) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (found == state().memory.end() || type != cuda::kRangeHandleDmabuf || flags != 0 ||
      pointer % page != 0 || bytes % page != 0 || bytes > found->second.pages->bytes())
    return kInvalidValue;
  const int descriptor = ::fcntl(found->second.pages->descriptor(), F_DUPFD_CLOEXEC, 0);
  std::memcpy(handle, &descriptor, sizeof descriptor);
  return descriptor < 0 ? kInvalidHandle : kSuccess;
}
/// A handle is the process and the descriptor of the memory's pages. Only other processes can open it.
FAKE cuIpcGetMemHandle(cuda::IpcHandle* handle, DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end() || found->second.context == nullptr) return kInvalidValue;
  const TwoMappings& pages = *found->second.pages;
  const long all[]{::getpid(), pages.descriptor(), static_cast<long>(pages.bytes())};
  std::memcpy(handle->bytes, all, sizeof all);
  return kSuccess;
}
FAKE cuIpcOpenMemHandle_v2(DevicePointer* pointer, cuda::IpcHandle handle, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  long all[3]{};
  std::memcpy(all, handle.bytes, sizeof all);
  if (all[0] == ::getpid() || flags != cuda::kIpcLazyEnablePeerAccess) return kInvalidValue;
  const std::string path = "/proc/" + std::to_string(all[0]) + "/fd/" + std::to_string(all[1]);
  const verbs::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto bytes = static_cast<std::size_t>(all[2]);
  void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return kInvalidHandle;
  *pointer = reinterpret_cast<DevicePointer>(at);
  const std::scoped_lock lock(state().mutex);
  state().opened[*pointer] = bytes;
  return kSuccess;
}
FAKE cuIpcCloseMemHandle(DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().opened.find(pointer);
  if (found == state().opened.end()) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(pointer), found->second);
  state().opened.erase(found);
  return kSuccess;
}
/// There is one GPU.
FAKE cuDeviceCanAccessPeer(int* can, Device, Device) {
  *can = 0;
  return kInvalidValue;
}
FAKE cuCtxEnablePeerAccess(Context, unsigned) { return kInvalidValue; }
FAKE cuMemcpyAsync(DevicePointer to, DevicePointer from, std::size_t bytes, FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto at = [&](DevicePointer pointer) {
    const std::uintptr_t reached = reach(pointer, bytes);
    return reinterpret_cast<void*>(reached != 0 ? reached : pointer);  // ordinary memory of the host
  };
  void *const target = at(to), *const source = at(from);
  return add(stream, [=] { std::memcpy(target, source, bytes); });
}

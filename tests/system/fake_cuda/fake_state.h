// What the parts of the CUDA driver in software share: its state, and the checks that every call makes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/gpu/cuda/cuda_api.h"
#include "runtime/gpu/emulated/emulated_stream.h"
#include "runtime/gpu/emulated/two_mappings.h"

/// A function of the library.
#define FAKE extern "C" __attribute__((visibility("default"))) int

namespace nzcl::test::fake {

using namespace nzcl::gpu;
using cuda::Context;
using cuda::Device;
using cuda::DevicePointer;
using cuda::Function;
using cuda::Module;
using FakeStream = cuda::Stream;

inline constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
                     kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500, kMisaligned = 716;

struct Kernel {
  enum Kind { pack, tiles, place, list, select, sum } kind;
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
inline State& state() {
  static auto* const s = new State;
  return *s;
}

inline thread_local int contexts = 0, capture_mode = 0;
inline auto* const kPrimary = reinterpret_cast<Context>(0x1000);

/// What every call but the first ones has to find.
inline int ready(bool needs_context = true) {
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
inline std::pair<std::uintptr_t, std::size_t> segment_with(std::uintptr_t at) {
  const auto range = piece_of(state().memory, at);
  if (range == state().memory.end()) return {};
  const std::size_t offset = at - range->first;
  const auto segment = piece_of(range->second.segments, offset);
  if (segment == range->second.segments.end() || offset - segment->first >= segment->second) return {};
  return {range->first + segment->first, segment->second};
}

/// Where the fake GPU reaches memory, or 0 if it does not. Segments that follow each other are one memory.
inline std::uintptr_t reach(std::uintptr_t at, std::size_t bytes) {
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

inline EmulatedStream* stream_of(FakeStream stream) {
  State& s = state();
  auto found = s.streams.find(stream);
  if (found == s.streams.end() && stream == nullptr)
    found = s.streams.emplace(nullptr, std::make_unique<EmulatedStream>(1)).first;
  return found == s.streams.end() ? nullptr : found->second.get();
}

inline int add(FakeStream stream, const std::function<void()>& work) {
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

}  // namespace nzcl::test::fake

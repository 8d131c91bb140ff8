#include "runtime/gpu/emulated/emulated_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "nzcl/error.h"
#include "runtime/gpu/kernels/cpu_shim.h"

namespace nzcl::gpu {
namespace {

/// All emulated GPUs of this process. It is never destroyed, because such a GPU may be a static object.
struct AllEmulated {
  std::mutex mutex;
  std::vector<std::weak_ptr<EmulatedGpu>> all;
  static AllEmulated& instance() {
    static auto* const all = new AllEmulated;
    return *all;
  }
};

/// Calls f with a number of the type by which a kernel reads and writes.
void with_unit(unsigned bytes, auto f) {
  switch (bytes) {
    case 16:
      return f(Unit16{});
    case 8:
      return f(std::uint64_t{});
    case 4:
      return f(std::uint32_t{});
    case 2:
      return f(std::uint16_t{});
    default:
      return f(std::uint8_t{});
  }
}

std::uint64_t number(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

/// Calls f for each slice: first for every other one, because blocks of threads end in no particular order.
void each_slice(EmulatedStream& stream, std::uint64_t slices, auto f) {
  std::vector<std::uint64_t> words(shared_bytes(kMostSliceWords) / sizeof(std::uint64_t));
  constexpr std::uint64_t kBetweenPauses = 16;
  for (std::uint64_t first : {1, 0}) {
    for (std::uint64_t s = first; s < slices; s += 2) {
      CpuBlock block(s, words.data());
      f(block);
      if (s % kBetweenPauses == 0) stream.dawdle();
    }
  }
}

}  // namespace

std::shared_ptr<EmulatedGpu> EmulatedGpu::make(unsigned seed) {
  std::shared_ptr<EmulatedGpu> gpu(new EmulatedGpu(seed));
  AllEmulated& everywhere = AllEmulated::instance();
  const std::scoped_lock lock(everywhere.mutex);
  std::erase_if(everywhere.all, [](const auto& other) { return other.expired(); });
  everywhere.all.push_back(gpu);
  return gpu;
}

std::shared_ptr<EmulatedGpu> EmulatedGpu::owner_of(std::span<const std::byte> range) {
  std::vector<std::shared_ptr<EmulatedGpu>> living;  // a last one is destroyed without the lock
  AllEmulated& everywhere = AllEmulated::instance();
  {
    const std::scoped_lock lock(everywhere.mutex);
    for (const auto& other : everywhere.all) {
      if (auto gpu = other.lock()) living.push_back(std::move(gpu));
    }
  }
  for (const auto& gpu : living) {
    const std::scoped_lock lock(gpu->mutex_);
    const Piece* const piece = gpu->piece_with(range.data());
    if (piece == nullptr || piece->pinned) continue;
    if (range.data() + range.size() > piece->pages->host() + piece->pages->bytes())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} bytes at {} are not all in one piece of memory of the emulated GPU",
                              range.size(), static_cast<const void*>(range.data())));
    return gpu;
  }
  return nullptr;
}

/// Streams end first, because their work uses the memory.
EmulatedGpu::~EmulatedGpu() { streams_.clear(); }

const EmulatedGpu::Piece* EmulatedGpu::piece_with(const std::byte* at) const {
  auto next = pieces_.upper_bound(at);
  if (next == pieces_.begin()) return nullptr;
  --next;
  return at < next->first + next->second.pages->bytes() ? &next->second : nullptr;
}

template <typename T>
T* EmulatedGpu::reach(T* at, std::size_t bytes) {
  const auto* const begin = reinterpret_cast<const std::byte*>(at);
  const std::scoped_lock lock(mutex_);
  const Piece* const piece = piece_with(begin);
  const std::byte* const base = piece == nullptr ? nullptr
                                : piece->pinned  ? piece->pages->device()
                                                 : piece->pages->host();
  if (piece == nullptr || begin + bytes > base + piece->pages->bytes())
    throw Error(ErrorCode::system, fmt::format("emulated GPU: an illegal access to {} bytes at {}", bytes,
                                               static_cast<const void*>(begin)));
  return reinterpret_cast<T*>(piece->pages->device() + (begin - base));
}

PinnedMemory EmulatedGpu::pin(std::size_t bytes) {
  auto pages = std::make_unique<TwoMappings>(bytes, true);
  const PinnedMemory memory{.host = pages->host(), .device = pages->device(), .bytes = bytes};
  const std::scoped_lock lock(mutex_);
  pieces_[memory.device] = {.pages = std::move(pages), .pinned = true};
  return memory;
}

void EmulatedGpu::unpin(const PinnedMemory& memory) noexcept {
  const std::scoped_lock lock(mutex_);
  pieces_.erase(memory.device);
}

std::byte* EmulatedGpu::allocate(std::size_t bytes) {
  auto pages = std::make_unique<TwoMappings>(bytes, false);
  std::byte* const at = pages->host();
  const std::scoped_lock lock(mutex_);
  pieces_[at] = {.pages = std::move(pages), .pinned = false};
  return at;
}

/// As cuMemFree() does, it waits for what streams have to do, because that may use the memory, and nobody can
/// launch anything meanwhile.
void EmulatedGpu::free(std::byte* memory) noexcept {
  const std::unique_lock frees(launch_mutex_);
  std::vector<EmulatedStream*> streams;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [key, stream] : streams_) streams.push_back(stream.get());
  }
  for (EmulatedStream* const stream : streams) stream->synchronize();
  const std::scoped_lock lock(mutex_);
  pieces_.erase(memory);
}

Stream EmulatedGpu::make_stream() {
  const std::scoped_lock lock(mutex_);
  auto stream = std::make_unique<EmulatedStream>(seed_ + static_cast<unsigned>(streams_.size()));
  const Stream key = stream.get();
  streams_[key] = std::move(stream);
  return key;
}

void EmulatedGpu::destroy_stream(Stream stream) noexcept {
  std::unique_ptr<EmulatedStream> ending;  // ends without the lock, because its work may take that
  const std::scoped_lock lock(mutex_);
  if (const auto found = streams_.find(stream); found != streams_.end()) {
    ending = std::move(found->second);
    streams_.erase(found);
  }
}

EmulatedStream& EmulatedGpu::stream_of(Stream stream) {
  const std::scoped_lock lock(mutex_);
  if (!broken_.empty()) throw Error(ErrorCode::system, "emulated GPU: " + broken_);
  auto found = streams_.find(stream);
  if (found == streams_.end() && stream == nullptr)
    found = streams_.emplace(nullptr, std::make_unique<EmulatedStream>(seed_)).first;
  if (found == streams_.end())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("emulated GPU: {} is no stream of this GPU", stream));
  return *found->second;
}

void EmulatedGpu::launch(Stream stream, std::function<void(EmulatedStream&)> work) {
  const std::shared_lock launches(launch_mutex_);
  add(stream, std::move(work));
}

void EmulatedGpu::add(Stream stream, std::function<void(EmulatedStream&)> work) {
  EmulatedStream& queue = stream_of(stream);
  queue.add([this, &queue, work = std::move(work)] {
    if (!why_broken(nullptr)) work(queue);
  });
}

void EmulatedGpu::pack(Stream stream, const PackJob& asked) {
  PackJob job = asked;
  const Shape& shape = job.shape;
  const unsigned unit = unit_bytes(number(job.tensor), number(job.packed), shape.block_bytes, shape.bytes);
  job.tensor = reach(job.tensor, shape.bytes);
  job.packed = reach(job.packed, shape.bytes);
  job.bits = reach(job.bits, shape.words() * sizeof(std::uint64_t));
  job.flags = reach(job.flags, shape.slices() * sizeof(std::uint32_t));
  launch(stream, [job, unit](EmulatedStream& queue) {
    with_unit(unit, [&](auto u) {
      each_slice(queue, job.shape.slices(), [&](CpuBlock& block) { pack_slice<decltype(u)>(block, job); });
    });
  });
}

void EmulatedGpu::place(Stream stream, const PlaceJob& asked) {
  PlaceJob job = asked;
  const Shape& shape = job.shape;
  const unsigned unit = unit_bytes(number(job.tensor), number(job.staged), shape.block_bytes, shape.bytes);
  job.tensor = reach(job.tensor, shape.bytes);
  job.staged = reach(job.staged, shape.bytes);
  job.bits = reach(job.bits, shape.words() * sizeof(std::uint64_t));
  if (job.go != nullptr) job.go = reach(job.go, sizeof *job.go);
  launch(stream, [job, unit](EmulatedStream& queue) {
    with_unit(unit, [&](auto u) {
      each_slice(queue, job.slices, [&](CpuBlock& block) { place_slice<decltype(u)>(block, job); });
    });
  });
}

void EmulatedGpu::raise(Stream stream, std::uint32_t* flag, std::uint32_t value) {
  std::uint32_t* const at = reach(flag, sizeof *flag);
  add(stream, [at, value](EmulatedStream&) { std::atomic_ref(*at).store(value, std::memory_order_release); });
}

void EmulatedGpu::await(Stream stream, std::uint32_t* flag, std::uint32_t value) {
  const std::uint32_t* const at = reach(flag, sizeof *flag);
  stream_of(stream).await(at, value);
}

std::optional<std::string> EmulatedGpu::why_broken(Stream) noexcept {
  const std::scoped_lock lock(mutex_);
  return broken_.empty() ? std::nullopt : std::optional("emulated GPU: " + broken_);
}

std::size_t EmulatedGpu::pieces() {
  const std::scoped_lock lock(mutex_);
  return pieces_.size();
}

void EmulatedGpu::break_down(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  broken_ = why;
}

void EmulatedGpu::copy(Stream stream, void* to, const void* from, std::size_t bytes) {
  const auto here = [&](const void* at) {
    const std::scoped_lock lock(mutex_);
    return piece_with(static_cast<const std::byte*>(at)) != nullptr;
  };
  void* const target = here(to) ? reach(static_cast<std::byte*>(to), bytes) : to;
  const void* const source = here(from) ? reach(static_cast<const std::byte*>(from), bytes) : from;
  launch(stream, [=](EmulatedStream&) { std::memcpy(target, source, bytes); });
}

void EmulatedGpu::synchronize(Stream stream) { stream_of(stream).synchronize(); }

}  // namespace nzcl::gpu

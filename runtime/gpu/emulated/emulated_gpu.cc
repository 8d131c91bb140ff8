#include "runtime/gpu/emulated/emulated_gpu.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
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
  std::atomic<bool> announced{false};
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

/// What SharedMemory says of memory of an emulated GPU.
constexpr std::uint32_t kKindEmulated = 2;

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

void EmulatedGpu::announce() { AllEmulated::instance().announced.store(true, std::memory_order_relaxed); }
bool EmulatedGpu::are_announced() {
  return AllEmulated::instance().announced.load(std::memory_order_relaxed);
}

std::shared_ptr<EmulatedGpu> EmulatedGpu::make(unsigned seed) {
  announce();
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

std::unique_ptr<TwoMappings> EmulatedGpu::new_pages(std::size_t bytes, bool host_may_touch) const {
  if (full_) throw Error(ErrorCode::system, "emulated GPU: CUDA_ERROR_OUT_OF_MEMORY");
  return std::make_unique<TwoMappings>(bytes, host_may_touch);
}

PinnedMemory EmulatedGpu::pin(std::size_t bytes) {
  auto pages = new_pages(bytes, true);
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
  auto pages = new_pages(bytes, false);
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

SharedMemory EmulatedGpu::share(std::byte* memory) {
  const std::scoped_lock lock(mutex_);
  const Piece* const piece = piece_with(memory);
  if (piece == nullptr || piece->pinned || piece->pages->host() != memory)
    throw Error(ErrorCode::invalid_argument, "emulated GPU: this is not the beginning of memory of its own");
  return {.process = static_cast<std::uint64_t>(::getpid()),
          .address = number(memory),
          .bytes = piece->pages->bytes(),
          .kind = kKindEmulated,
          .number = static_cast<std::uint32_t>(piece->pages->descriptor())};
}

/// Pages that only reads reach, so that whoever writes there is found out. They stay when their process has
/// ended.
std::byte* EmulatedGpu::open(const SharedMemory& memory) {
  if (memory.kind != kKindEmulated || !reads_peers_)
    throw Error(ErrorCode::unsupported, "emulated GPU: it does not reach the memory of that GPU");
  const std::string path = fmt::format("/proc/{}/fd/{}", memory.process, memory.number);
  const auto refuse = [&] {
    throw Error(ErrorCode::system, fmt::format("emulated GPU: {}: {}", path, std::strerror(errno)));
  };
  const verbs::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0) refuse();
  if (static_cast<std::uint64_t>(status.st_size) < memory.bytes)
    throw Error(ErrorCode::system, "emulated GPU: " + path + " is not that memory any more");
  void* const at = ::mmap(nullptr, memory.bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) refuse();
  return static_cast<std::byte*>(at);
}

void EmulatedGpu::close(const SharedMemory& memory, std::byte* opened) noexcept {
  ::munmap(opened, memory.bytes);
}

LentMemory EmulatedGpu::lend(std::span<std::byte> bytes) {
  const std::scoped_lock lock(mutex_);
  const Piece* const piece = piece_with(bytes.data());
  if (piece == nullptr || piece->pinned ||
      bytes.data() + bytes.size() > piece->pages->host() + piece->pages->bytes())
    throw Error(ErrorCode::invalid_argument,
                "emulated GPU: this is not all in one piece of memory of its own");
  verbs::Fd descriptor(::fcntl(piece->pages->descriptor(), F_DUPFD_CLOEXEC, 0));
  if (descriptor.get() < 0)
    throw Error(ErrorCode::system,
                fmt::format("emulated GPU: a descriptor to lend: {}", std::strerror(errno)));
  return {std::move(descriptor), static_cast<std::uint64_t>(bytes.data() - piece->pages->host())};
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
  {
    const std::scoped_lock lock(mutex_);
    if (const auto graph = captured_.find(stream); graph != captured_.end())
      return graph->second.push_back(std::move(work));
  }
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
  if (job.is_far != nullptr) {
    job.is_far = reach(job.is_far, shape.slices());
    job.far = reach(job.far, shape.bytes);
  }
  if (job.second_bits != nullptr)
    job.second_bits = reach(job.second_bits, shape.words() * sizeof(std::uint64_t));
  if (job.flags != nullptr) job.flags = reach(job.flags, shape.slices() * sizeof(std::uint32_t));
  if (job.go != nullptr) job.go = reach(job.go, sizeof *job.go);
  launch(stream, [job, unit](EmulatedStream& queue) {
    with_unit(unit, [&](auto u) {
      each_slice(queue, job.shape.slices(), [&](CpuBlock& block) { pack_slice<decltype(u)>(block, job); });
    });
  });
}

void EmulatedGpu::pack_tiles(Stream stream, const TilesJob& asked) {
  TilesJob job = asked;
  const Shape& shape = job.shape;
  const unsigned unit = unit_bytes(number(job.tensor), number(job.packed), shape.block_bytes, shape.bytes);
  job.tensor = reach(job.tensor, shape.bytes);
  job.packed = reach(job.packed, shape.bytes);
  job.sets = reach(job.sets, shape.words() * sizeof(std::uint64_t));
  job.counts = reach(job.counts, shape.slices() * sizeof(std::uint32_t));
  if (job.flags != nullptr) job.flags = reach(job.flags, shape.slices() * sizeof(std::uint32_t));
  launch(stream, [job, unit](EmulatedStream& queue) {
    with_unit(unit, [&](auto u) {
      each_slice(queue, job.shape.slices(), [&](CpuBlock& block) { pack_tile<decltype(u)>(block, job); });
    });
  });
  packed_in_tiles_.fetch_add(1, std::memory_order_relaxed);
}

void EmulatedGpu::place(Stream stream, const PlaceJob& asked) {
  PlaceJob job = asked;
  const Shape& shape = job.shape;
  const unsigned unit = unit_bytes(number(job.tensor), number(job.staged), shape.block_bytes, shape.bytes);
  job.tensor = reach(job.tensor, shape.bytes);
  if (job.peers == nullptr) job.staged = reach(job.staged, shape.bytes);
  if (job.peers != nullptr) job.peers = reach(job.peers, sizeof *job.peers);
  if (job.is_far != nullptr) {
    job.is_far = reach(job.is_far, shape.slices());
    job.far = reach(job.far, shape.bytes);
  }
  job.bits = reach(job.bits, shape.words() * sizeof(std::uint64_t));
  if (job.go != nullptr) job.go = reach(job.go, sizeof *job.go);
  launch(stream, [job, unit](EmulatedStream& queue) {
    with_unit(unit, [&](auto u) {
      each_slice(queue, job.slices, [&](CpuBlock& block) { place_slice<decltype(u)>(block, job); });
    });
  });
}

void EmulatedGpu::sum(Stream stream, const SumJob& asked) {
  SumJob job = asked;
  job.peers = reach(job.peers, sizeof *job.peers);
  if (job.result_bytes() > 0) job.result = reach(job.result, job.result_bytes());
  job.union_bits = reach(job.union_bits, job.shape.words() * sizeof(std::uint64_t));
  if (job.go != nullptr) job.go = reach(job.go, sizeof *job.go);
  launch(stream, [job](EmulatedStream& queue) {
    each_slice(queue, job.shape.slices(), [&](CpuBlock& block) { sum_any_type(block, job); });
  });
}

void EmulatedGpu::copy_list(Stream stream, const ListJob& asked) {
  ListJob job = asked;
  const unsigned unit = unit_bytes(number(job.values.from), number(job.values.to), number(job.indices.from),
                                   number(job.indices.to));
  const auto reach_part = [&](ListJob::Part& part, std::uint64_t bytes) {
    if (bytes == 0) return;
    part.from = reach(part.from, bytes);
    part.to = reach(part.to, bytes);
  };
  reach_part(job.values, job.sizes.value_bytes);
  reach_part(job.indices, job.sizes.index_bytes);
  if (job.found != nullptr) job.found = reach(job.found, sizeof *job.found);
  if (job.count != nullptr) job.count = reach(job.count, sizeof *job.count);
  if (job.go != nullptr) job.go = reach(job.go, sizeof *job.go);
  if (job.flags != nullptr) job.flags = reach(job.flags, job.runners * sizeof(std::uint32_t));
  launch(stream, [job, unit](EmulatedStream& queue) {
    with_unit(unit, [&](auto u) {
      each_slice(queue, job.runners, [&](CpuBlock& block) { nzcl::gpu::copy_list<decltype(u)>(block, job); });
    });
  });
}

void EmulatedGpu::run_pass(Stream stream, const SelectJob& asked) {
  SelectJob job = asked;
  if (job.elements == 0) return;
  job.each_array([&](auto*& at, std::size_t bytes) {
    if (at != nullptr) at = reach(at, bytes);
  });
  launch(stream, [job](EmulatedStream& queue) {
    each_slice(queue, job.runners(), [&](CpuBlock& block) { run_any_pass(block, job); });
  });
}

void EmulatedGpu::raise(Stream stream, std::uint32_t* flag, std::uint32_t value) {
  std::uint32_t* const at = reach(flag, sizeof *flag);
  add(stream, [at, value](EmulatedStream&) { std::atomic_ref(*at).store(value, std::memory_order_release); });
}

void EmulatedGpu::await(Stream stream, std::uint32_t* flag, std::uint32_t value) {
  const std::uint32_t* const at = reach(flag, sizeof *flag);
  add(stream, [at, value](EmulatedStream& queue) { queue.await(at, value); });
}

void EmulatedGpu::call(Stream stream, HostFunction function, void* argument) {
  add(stream, [function, argument](EmulatedStream&) { function(argument); });
}

bool EmulatedGpu::captures(Stream stream) {
  const std::scoped_lock lock(mutex_);
  return captured_.contains(stream);
}

void EmulatedGpu::begin_capture(Stream stream) {
  stream_of(stream);  // which has to exist
  const std::scoped_lock lock(mutex_);
  captured_[stream];
}

EmulatedGpu::Graph EmulatedGpu::take_graph(Stream stream) {
  const std::scoped_lock lock(mutex_);
  auto graph = captured_.extract(stream);
  return graph ? std::move(graph.mapped()) : Graph();
}

void EmulatedGpu::launch_graph(Stream stream, const Graph& graph) {
  for (const auto& work : graph) launch(stream, work);
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
  if (bytes == 0) return;  // nobody has to have memory for that
  void* const target = here(to) ? reach(static_cast<std::byte*>(to), bytes) : to;
  const void* const source = here(from) ? reach(static_cast<const std::byte*>(from), bytes) : from;
  launch(stream, [=](EmulatedStream&) { std::memcpy(target, source, bytes); });
}

void EmulatedGpu::synchronize(Stream stream) { stream_of(stream).synchronize(); }

}  // namespace nzcl::gpu

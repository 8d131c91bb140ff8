// The seam to memory of a GPU: who it belongs to, and who reads and writes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/gpu/kernels/jobs.h"
#include "verbs/fd.h"

namespace nzcl::gpu {

/// A queue of a GPU's work: a CUstream, or one of an emulated GPU. nullptr is its default stream.
using Stream = void*;

/// What a GPU calls on the host.
using HostFunction = void (*)(void* argument);

/// Host memory that a GPU reads and writes as well. The GPU may see it at another address.
struct PinnedMemory {
  std::byte* host = nullptr;
  std::byte* device = nullptr;
  std::size_t bytes = 0;

  /// Returns the address at which the GPU sees what the host has at `at`, inside this memory.
  template <typename T>
  T* seen(T* at) const {
    return reinterpret_cast<T*>(device + (reinterpret_cast<std::byte*>(at) - host));
  }
};

/// Memory of a GPU that other GPUs of the host may read, those of other processes too. It is what they have
/// to know, as plain bytes.
struct SharedMemory {
  std::uint64_t process = 0, address = 0, bytes = 0;
  std::uint32_t kind = 0, number = 0;  // which Gpu has made it, and what that likes
  std::array<std::byte, 64> handle{};
};

/// Memory of a GPU that other devices may reach: a descriptor, a dmabuf's or that of an emulated GPU's pages,
/// and where in it the memory begins. The memory outlives the descriptor.
struct LentMemory {
  verbs::Fd descriptor;
  std::uint64_t offset = 0;
};

/// A word that streams may wait for. Its value only grows, in the cyclic order of 32 bits, from use to use.
struct Flag {
  std::uint32_t* host = nullptr;
  std::uint32_t* device = nullptr;
  std::uint32_t value = 0;  // that of its last use
  explicit operator bool() const { return host != nullptr; }
  /// Sets the word, takes that back, and looks at it, from the host.
  void raise_here() const;
  void lower_here() const;
  bool is_raised() const;
};

/// A GPU. All calls that take a stream return at once; what they ask for happens in the stream's order. Any
/// thread may call. Every call but why_broken() throws Error: {system} with the driver's name for what is
/// wrong, {invalid_argument} for a stream or memory that is not this GPU's.
class Gpu {
 public:
  Gpu() = default;
  virtual ~Gpu() = default;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// For people: which GPU it is.
  virtual std::string name() const = 0;

  // --- Memory.
  /// Pages of zeros, which stay until unpin(). No work may use them then.
  virtual PinnedMemory pin(std::size_t bytes) = 0;
  virtual void unpin(const PinnedMemory& memory) noexcept = 0;
  /// A flag for one more use, with the value that stands for this use. Flags are never freed: a stream may
  /// look at one long after its use is over.
  Flag take_flag();
  void give_back(const Flag& flag);

  // --- Memory that several GPUs read. These calls may wait for all that a GPU has to do.
  /// Lets others read what allocate() has returned. It stays theirs when it is freed here, until they close
  /// it.
  virtual SharedMemory share(std::byte* memory) = 0;
  /// Returns where kernels of this GPU read such memory, also that of its own. Throws Error{unsupported} for
  /// that of a GPU which it cannot reach.
  virtual std::byte* open(const SharedMemory& memory) = 0;
  /// No work may read it any more.
  virtual void close(const SharedMemory& memory, std::byte* opened) noexcept = 0;

  // --- Memory that devices of other kinds read and write, such as NICs.
  /// Lends `bytes` of what allocate() has returned, from a page on. Throws Error{unsupported} if the GPU or
  /// its driver lends nothing, or does not promise its kernels what a device has written before the host was
  /// told so.
  virtual LentMemory lend(std::span<std::byte> bytes) = 0;

  // --- Work, in the order of a stream.
  virtual Stream make_stream() = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void pack(Stream stream, const PackJob& job) = 0;
  virtual void pack_tiles(Stream stream, const TilesJob& job) = 0;
  virtual void place(Stream stream, const PlaceJob& job) = 0;
  /// Precondition: fits_sum().
  virtual void sum(Stream stream, const SumJob& job) = 0;
  virtual void copy_list(Stream stream, const ListJob& job) = 0;
  virtual void run_pass(Stream stream, const SelectJob& job) = 0;
  /// All passes of a step of a compressor, see step.cc. If it throws, nothing has changed that lives from
  /// step to step, and no flag will be raised.
  void select(Stream stream, SelectJob job);
  /// Sets a word of pinned memory, given as the GPU sees it, after all work before it has become visible.
  virtual void raise(Stream stream, std::uint32_t* flag, std::uint32_t value) = 0;
  /// Nothing behind it in the stream begins before the word has reached the value, in the cyclic order of 32
  /// bits. The host may be the one that sets it.
  virtual void await(Stream stream, std::uint32_t* flag, std::uint32_t value) = 0;
  /// Calls `function` on a thread of the GPU's when all work before it is over; nothing behind it begins
  /// before it has returned. It may not use the GPU, nor throw.
  virtual void call(Stream stream, HostFunction function, void* argument) = 0;
  /// Whether what is put into the stream is not done, but becomes a part of a graph, which may be launched
  /// any number of times.
  virtual bool captures(Stream stream) = 0;
  /// Why the GPU does no more work, in the driver's words, or nothing as far as is known. It does not wait.
  virtual std::optional<std::string> why_broken(Stream stream) noexcept = 0;

  // --- For programs that have no other way to the GPU: tests and benchmarks.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
  /// Copies between the host's memory and the GPU's, in either direction. The host's part must stay until the
  /// copy is over.
  virtual void copy(Stream stream, void* to, const void* from, std::size_t bytes) = 0;
  /// Returns when the stream has done its work.
  virtual void synchronize(Stream stream) = 0;

 private:
  std::mutex flag_mutex_;
  std::vector<Flag> flags_;  // that are not in use
};

}  // namespace nzcl::gpu

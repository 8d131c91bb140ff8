// A GPU in software, for tests and for engines whose CI has no GPU.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "runtime/gpu/emulated/emulated_stream.h"
#include "runtime/gpu/emulated/two_mappings.h"
#include "runtime/gpu/gpu.h"

namespace nzcl::gpu {

/// It does on the CPU what a GPU does, and nothing that a GPU does not do: the host cannot touch its memory,
/// it reaches pinned memory at another address than the host, and everything that a stream is told happens
/// later, on a thread of the stream's. It refuses work on memory that is not its own, as a GPU reports an
/// illegal access. Thread-safe.
class EmulatedGpu final : public Gpu {
 public:
  /// Registered memory is found to be this one's as long as it lives.
  static std::shared_ptr<EmulatedGpu> make(unsigned seed = 1);
  /// Says that this process will make one, before its communicators are: their members tell each other
  /// whether they may have memory of a GPU. make() does so as well.
  static void announce();
  static bool are_announced();
  /// The emulated GPU that has any of these bytes, or nullptr. Throws Error{invalid_argument} if they are not
  /// all in one piece of its memory.
  static std::shared_ptr<EmulatedGpu> owner_of(std::span<const std::byte> range);
  ~EmulatedGpu() override;

  std::string name() const override { return "emulated GPU"; }
  PinnedMemory pin(std::size_t bytes) override;
  void unpin(const PinnedMemory& memory) noexcept override;
  SharedMemory share(std::byte* memory) override;
  std::byte* open(const SharedMemory& memory) override;
  void close(const SharedMemory& memory, std::byte* opened) noexcept override;
  LentMemory lend(std::span<std::byte> bytes) override;
  Stream make_stream() override;
  void destroy_stream(Stream stream) noexcept override;
  void pack(Stream stream, const PackJob& job) override;
  void pack_tiles(Stream stream, const TilesJob& job) override;
  void place(Stream stream, const PlaceJob& job) override;
  void sum(Stream stream, const SumJob& job) override;
  void copy_list(Stream stream, const ListJob& job) override;
  void run_pass(Stream stream, const SelectJob& job) override;
  void raise(Stream stream, std::uint32_t* flag, std::uint32_t value) override;
  void await(Stream stream, std::uint32_t* flag, std::uint32_t value) override;
  void call(Stream stream, HostFunction function, void* argument) override;
  bool captures(Stream stream) override;
  std::optional<std::string> why_broken(Stream stream) noexcept override;
  std::byte* allocate(std::size_t bytes) override;
  void free(std::byte* memory) noexcept override;
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override;
  void synchronize(Stream stream) override;

  /// What a stream was told while it was captured.
  using Graph = std::vector<std::function<void(EmulatedStream&)>>;
  /// From now on the stream does nothing, until take_graph() returns what it was told.
  void begin_capture(Stream stream);
  Graph take_graph(Stream stream);
  /// Does all that is in the graph. The memory that it uses must still be there.
  void launch_graph(Stream stream, const Graph& graph);

  /// From now on it reads no other GPU's memory.
  void refuse_peers() { reads_peers_ = false; }
  /// From now on it has no memory left, and pins none; or it has some again.
  void run_out_of_memory(bool out) { full_ = out; }
  /// How many pieces of memory there are, pinned ones too.
  std::size_t pieces();
  /// How many tensors it was told to pack in tiles.
  std::size_t packed_in_tiles() const { return packed_in_tiles_.load(std::memory_order_relaxed); }
  /// From now on it does nothing any more, as after an illegal access; `why` is what a driver would say.
  void break_down(const std::string& why);

 private:
  explicit EmulatedGpu(unsigned seed) : seed_(seed) {}
  struct Piece {
    std::unique_ptr<TwoMappings> pages;
    bool pinned = false;
  };
  void add(Stream stream, std::function<void(EmulatedStream&)> work);
  /// The same for work that cannot be added while another thread frees memory.
  void launch(Stream stream, std::function<void(EmulatedStream&)> work);
  EmulatedStream& stream_of(Stream stream);
  /// Where the GPU's threads have what a kernel is told to use.
  template <typename T>
  T* reach(T* at, std::size_t bytes);
  const Piece* piece_with(const std::byte* at) const;
  std::unique_ptr<TwoMappings> new_pages(std::size_t bytes, bool host_may_touch) const;

  const unsigned seed_;
  std::shared_mutex launch_mutex_;  // taken before the other one
  std::mutex mutex_;                // of all below
  std::string broken_;
  std::atomic<bool> reads_peers_{true}, full_{false};
  std::atomic<std::size_t> packed_in_tiles_{0};
  std::map<const std::byte*, Piece> pieces_;  // by the address at which work finds them
  std::map<Stream, std::unique_ptr<EmulatedStream>> streams_;
  std::map<Stream, Graph> captured_;  // of streams that are captured
};

}  // namespace nzcl::gpu

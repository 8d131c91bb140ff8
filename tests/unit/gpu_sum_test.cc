// Sums that a GPU makes of what several have packed, and their placing: every type, operation, block size and
// number of ranks, with values of all kinds, against the plain loop of the host. Like the tests of the other
// kernels they run on an emulated GPU, or with DEVICE_CHECK=1 on the first one of CUDA's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/base/divide.h"
#include "runtime/gpu/cuda/cuda_gpu.h"
#include "runtime/gpu/emulated/emulated_gpu.h"
#include "tests/unit/any_values.h"
#include "tests/unit/reference.h"

namespace nzcl::gpu {
namespace {

struct Case {
  DataType type;
  ReduceOp op;
  int ranks;
  std::uint64_t elements, block, slice_blocks;
  int percent;  // of the blocks that a rank has

  Shape shape() const {
    return {.bytes = elements * element_bytes(type),
            .block_bytes = block * element_bytes(type),
            .slice_blocks = slice_blocks};
  }
  std::string text() const {
    return std::string(name_of(type)) + " " + std::string(name_of(op)) + " ranks " + std::to_string(ranks) +
           " elements " + std::to_string(elements) + " block " + std::to_string(block) + " slice " +
           std::to_string(slice_blocks) + " percent " + std::to_string(percent);
  }
};

/// The ranks of a test, all on one GPU: each has a slot of memory, and opens those of all.
class Peers {
 public:
  static constexpr std::size_t kRoom = 1 << 18;
  Peers()
      : gpu_(std::getenv("DEVICE_CHECK") != nullptr
                 ? std::shared_ptr<Gpu>(CudaGpu::number(CudaDriver::open(), 0))
                 : EmulatedGpu::make(5)),
        stream_(gpu_->make_stream()),
        tensor_(gpu_->allocate(kRoom)),
        pinned_(gpu_->pin(kRoom)) {
    for (unsigned rank = 0; rank < kMostPeers; ++rank) {
      slots_.push_back(gpu_->allocate(3 * kRoom));
      shared_.push_back(gpu_->share(slots_.back()));
      opened_.push_back(gpu_->open(shared_.back()));
    }
  }
  ~Peers() {
    for (unsigned rank = 0; rank < kMostPeers; ++rank) {
      gpu_->close(shared_[rank], opened_[rank]);
      gpu_->free(slots_[rank]);
    }
    gpu_->free(tensor_);
    gpu_->unpin(pinned_);
    gpu_->destroy_stream(stream_);
  }

  void check(const Case& c, std::mt19937_64& random);

 private:
  struct Words {
    PeerTable table;
    std::uint32_t go;
    std::uint64_t bits[2048], union_bits[2048];
  };
  static_assert(sizeof(Words) <= kRoom);

  std::shared_ptr<Gpu> gpu_;
  Stream stream_;
  std::byte* tensor_;
  PinnedMemory pinned_;
  std::vector<std::byte*> slots_, opened_;
  std::vector<SharedMemory> shared_;
};

/// Random values of all kinds in some blocks, and a bit for each of these.
std::vector<std::byte> make_input(const Case& c, std::mt19937_64& random, std::vector<bool>& has) {
  const Shape shape = c.shape();
  std::vector<std::byte> input(shape.bytes);
  has.assign(shape.blocks(), false);
  for (std::uint64_t b = 0; b < shape.blocks(); ++b) {
    if (static_cast<int>(random() % 100) >= c.percent) continue;
    const auto block = std::span(input).subspan(
        b * shape.block_bytes, std::min(shape.block_bytes, shape.bytes - b * shape.block_bytes));
    test::fill_with_any_values(block, c.type, random);
    has[b] = std::any_of(block.begin(), block.end(), [](std::byte x) { return x != std::byte{0}; });
  }
  return input;
}

void Peers::check(const Case& c, std::mt19937_64& random) {
  const Shape shape = c.shape();
  const auto ranks = static_cast<std::uint32_t>(c.ranks);
  const std::uint64_t each = ceil_div(shape.slices(), ranks);
  auto& words = *reinterpret_cast<Words*>(pinned_.host);
  ASSERT_LE(shape.bytes, kRoom);
  ASSERT_LE(shape.words(), std::size(words.bits));
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::vector<bool>> has(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    inputs.push_back(make_input(c, random, has[rank]));
    gpu_->copy(stream_, tensor_, inputs.back().data(), shape.bytes);
    gpu_->pack(stream_, {.shape = shape,
                         .tensor = tensor_,
                         .packed = slots_[rank],
                         .bits = pinned_.seen(words.bits),
                         .in_places = true,
                         .second_bits = reinterpret_cast<std::uint64_t*>(slots_[rank] + kRoom)});
    gpu_->synchronize(stream_);
    words.table.contribution[rank] = opened_[rank];
    words.table.bits[rank] = reinterpret_cast<const std::uint64_t*>(opened_[rank] + kRoom);
    words.table.result[rank] = opened_[rank] + 2 * kRoom;
  }
  words.go = 7;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::fill_n(words.union_bits, shape.words(), ~std::uint64_t{0});
    gpu_->sum(stream_, {.shape = shape,
                        .type = static_cast<SumType>(c.type),
                        .op = static_cast<SumOp>(c.op),
                        .ranks = ranks,
                        .rank = rank,
                        .slices_each = each,
                        .peers = &pinned_.seen(&words)->table,
                        .result = slots_[rank] + 2 * kRoom,
                        .union_bits = pinned_.seen(&words)->union_bits,
                        .go = &pinned_.seen(&words)->go,
                        .go_value = 7});
    gpu_->synchronize(stream_);
  }
  std::vector<std::byte> result(shape.bytes, std::byte{0x5a});
  gpu_->copy(stream_, tensor_, result.data(), shape.bytes);
  gpu_->place(stream_, {.shape = shape,
                        .slices = shape.slices(),
                        .tensor = tensor_,
                        .bits = pinned_.seen(&words)->union_bits,
                        .fill = true,
                        .peers = &pinned_.seen(&words)->table,
                        .slices_each = each});
  gpu_->copy(stream_, result.data(), tensor_, shape.bytes);
  gpu_->synchronize(stream_);

  for (std::uint64_t b = 0; b < shape.blocks(); ++b) {
    std::vector<const std::byte*> sources;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (has[rank][b]) sources.push_back(inputs[rank].data() + b * shape.block_bytes);
    }
    const std::uint64_t bit = b / shape.slice_blocks * shape.words_per_slice() * 64 + b % shape.slice_blocks;
    ASSERT_EQ(words.union_bits[bit / 64] >> bit % 64 & 1, sources.empty() ? 0 : 1) << c.text() << " " << b;
    const std::uint64_t bytes = std::min(shape.block_bytes, shape.bytes - b * shape.block_bytes);
    std::vector<std::byte> expected(bytes);
    if (!sources.empty())
      expected = test::reference_reduce(c.type, c.op, sources, bytes / element_bytes(c.type),
                                        {.ranks = c.ranks, .with_zero = sources.size() < ranks});
    const auto got = std::span(result).subspan(b * shape.block_bytes, bytes);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin())) << c.text() << " block " << b;
  }
}

class GpuSum : public testing::TestWithParam<DataType> {};

TEST_P(GpuSum, HasTheBitsOfTheHost) {
  Peers peers;
  std::mt19937_64 random(11);
  for (int op = 0; op < kReduceOps; ++op) {
    for (const int ranks : {2, 3, 4, 5, 8}) {
      for (const std::uint64_t block : {1, 3, 16, 256, 3000}) {
        for (const int percent : {0, 30, 100}) {
          const std::uint64_t slice_blocks = block == 1 ? 200 : 3;
          const std::uint64_t elements = block * (slice_blocks * 4 + 1) + block / 2;
          if (elements * element_bytes(GetParam()) > Peers::kRoom) continue;
          ASSERT_NO_FATAL_FAILURE(peers.check({.type = GetParam(),
                                               .op = static_cast<ReduceOp>(op),
                                               .ranks = ranks,
                                               .elements = elements,
                                               .block = block,
                                               .slice_blocks = slice_blocks,
                                               .percent = percent},
                                              random));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuSum,
                         testing::Values(DataType::float32, DataType::float64, DataType::float16,
                                         DataType::bfloat16, DataType::int32, DataType::int64,
                                         DataType::uint8),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST(GpuShare, MemoryOfAnotherKindOfGpuIsRefused) {
  const auto gpu = EmulatedGpu::make();
  EXPECT_THROW(gpu->open({.kind = 77}), Error);
  std::byte* const memory = gpu->allocate(100);
  EXPECT_THROW(gpu->share(memory + 1), Error);
  const SharedMemory shared = gpu->share(memory);
  gpu->refuse_peers();
  EXPECT_THROW(gpu->open(shared), Error);
}

/// Who has opened memory may read it when it has been freed.
TEST(GpuShare, MemoryStaysUntilItIsClosed) {
  const auto one = EmulatedGpu::make(), other = EmulatedGpu::make();
  std::byte* const memory = one->allocate(4096);
  const std::vector<std::byte> written(4096, std::byte{9});
  one->copy(nullptr, memory, written.data(), written.size());
  one->synchronize(nullptr);
  const SharedMemory shared = one->share(memory);
  std::byte* const opened = other->open(shared);
  one->free(memory);
  EXPECT_EQ(opened[4095], std::byte{9});
  other->close(shared, opened);
}

}  // namespace
}  // namespace nzcl::gpu

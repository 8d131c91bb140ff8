// Calls for which memory runs out: they are refused as any other call that cannot be, on all ranks by name,
// and the communicator goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "nzcl/compress.h"
#include "tests/system/misuse.h"

namespace {

/// The most bytes that this thread gets at once.
thread_local std::size_t most = std::numeric_limits<std::size_t>::max();

void* allocate(std::size_t bytes) {
  void* const at = bytes > most ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }

namespace nzcl::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pair;

/// While this lives, larger allocations of this thread fail.
class Scarce {
 public:
  explicit Scarce(std::size_t bytes) { most = bytes; }
  ~Scarce() { most = std::numeric_limits<std::size_t>::max(); }
  Scarce(const Scarce&) = delete;
  Scarce& operator=(const Scarce&) = delete;
};

constexpr auto kSystem = static_cast<int>(ErrorCode::system);

/// What is kept of a stream and of a packed result follows what is in them, and not the tensor.
TEST(NoMemory, IsTakenForWhatAHugeStreamHasNot) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer b(c);
    const std::vector<std::int64_t> indices{3, (std::int64_t{1} << 36) - 1};
    std::vector<float> packed(2);
    const Scarce scarce(std::size_t{1} << 20);
    for (const Algorithm algorithm : {Algorithm::push, Algorithm::merging}) {
      for (const bool grows : {false, true}) {
        std::ranges::fill(packed, 0.0f);
        Work work = c.allreduce_sparse({.values = b.data.data(),
                                        .indices = indices,
                                        .count = std::uint64_t{1} << 36,
                                        .block_elems = 1,
                                        .packed_values = grows ? nullptr : packed.data(),
                                        .packed_capacity = grows ? 0u : 2u,
                                        .packed_grow =
                                            [&](std::uint64_t) {
                                              return PackedMemory{packed.data(), {}};
                                            },
                                        .algorithm = algorithm});
        work.wait();
        EXPECT_TRUE(std::ranges::equal(work.packed_indices(), indices));
        EXPECT_EQ(packed.front(), 2.0f);
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(NoMemory, ForTheBooksOfAHugeResultOnAllRanks) {
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    Buffer b(c);
    const auto error = [&] {
      const Scarce scarce(std::size_t{1} << 30);
      return error_of([&] {
        c.allreduce_sparse({.count = std::uint64_t{1} << 36,
                            .block_elems = 1,
                            .packed_values = b.data.data(),
                            .packed_capacity = std::uint64_t{1} << 36})
            .wait();
      });
    }();
    EXPECT_THAT(error, Pair(kSystem, HasSubstr("allreduce: there is no memory to keep track of 68719476736 "
                                               "elements in blocks of 1")));
    c.allreduce(b.request()).wait();
    EXPECT_EQ(b.data.front(), 2.0f);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(NoMemory, ForTheStateOfACompressor) {
  for (const char* text : {"topk:0.01", "adacomp:4,residual=0"}) {
    const Scarce scarce(std::size_t{1} << 26);
    EXPECT_THAT(error_of([&] { CompressorState(compressor_from_text(text), std::uint64_t{1} << 36); }),
                Pair(kSystem, HasSubstr("no memory for the state of a tensor of 68719476736 elements")));
  }
}

// In its first step a state makes buffers.
TEST(NoMemory, ForTheBuffersOfACompressorOnOneRank) {
  for (const std::size_t elements : {1000u, 140'001u}) {
    const auto errors = run_ranks(quick(2), [&](Communicator& c) {
      CompressorState state(compressor_from_text("topk:0.1:exact"), elements);
      std::vector<float> data(elements, 1.0f), result(elements);
      const auto registered = c.register_buffer(result.data(), elements * sizeof(float));
      const auto call = [&] {
        c.allreduce_compressed({.state = &state, .input = data.data(), .output = result.data()}).wait();
      };
      if (c.rank() == 0) {
        EXPECT_THAT(error_of(call), Pair(kSystem, AllOf(HasSubstr("rank 1"), HasSubstr("out of memory"))));
        state.reset();  // the step was lost with the operation
      } else {
        const Scarce scarce(3500);
        EXPECT_THAT(error_of(call), Pair(kSystem, HasSubstr("allreduce: out of memory")));
        EXPECT_EQ(state.report().steps, 0u);
      }
      call();
      EXPECT_EQ(result.front(), 2.0f);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(NoMemory, ForACopyOfTheBitmapOnOneRank) {
  constexpr std::size_t kCount = std::size_t{1} << 20;
  const auto errors = run_ranks(quick(2), [](Communicator& c) {
    std::vector<std::uint8_t> data(kCount, 1);
    const auto registered = c.register_buffer(data.data(), data.size());
    const std::vector<std::uint64_t> bitmap(kCount / 64, ~std::uint64_t{0});
    const auto call = [&] {
      c.allreduce({.input = data.data(),
                   .output = data.data(),
                   .count = kCount,
                   .type = DataType::uint8,
                   .block_elems = 1,
                   .bitmap = bitmap})
          .wait();
    };
    if (c.rank() == 0) {
      EXPECT_THAT(error_of(call), Pair(kSystem, AllOf(HasSubstr("rank 1"), HasSubstr("out of memory"))));
    } else {
      const Scarce scarce(100'000);
      EXPECT_THAT(error_of(call), Pair(kSystem, HasSubstr("allreduce: out of memory")));
    }
    call();
    EXPECT_EQ(data.back(), 2);
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace nzcl::test

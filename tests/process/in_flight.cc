// One rank of the tests that lose dedicated aggregators: it has operations of all kinds in flight, compares
// each result with a plain sum.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/communicator.h"

namespace {

using nzcl::Communicator;
using nzcl::Work;

constexpr std::size_t kBlock = 64;

bool holds(int rank, int round, std::size_t block) {
  return (block * 5 + static_cast<std::size_t>(rank + round)) % 4 == 0;
}
float value(int rank, int round, std::size_t i) {
  return static_cast<float>(1 + (static_cast<std::size_t>(rank * 7 + round * 3) + i) % 11);
}
float sum_of(int ranks, int round, std::size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += holds(r, round, i / kBlock) ? value(r, round, i) : 0.0f;
  return sum;
}

/// An operation in flight: its memory, how to start it, and what its result has to be.
class Case {
 public:
  Case(Communicator& comm, std::size_t count) : comm_(comm), count_(count), in_(count), out_(count) {
    registered_.push_back(comm.register_buffer(in_.data(), in_.size() * sizeof(float)));
    registered_.push_back(comm.register_buffer(out_.data(), out_.size() * sizeof(float)));
  }
  virtual ~Case() = default;
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  virtual Work start(int round) = 0;
  /// What element i of output() has to be.
  virtual float expected(int round, std::size_t i) const { return sum_of(comm_.size(), round, i); }
  virtual std::vector<float>& output() { return out_; }
  virtual void end(Work& work) { work.wait(); }

  void check(const char* name, int round) {
    const std::vector<float>& result = output();
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (result[i] == expected(round, i)) continue;
      std::fprintf(stderr, "%s, rank %d, round %d, element %zu: %g, not %g\n", name, comm_.rank(), round, i,
                   result[i], expected(round, i));
      std::exit(4);
    }
  }

 protected:
  void fill(int round) {
    for (std::size_t i = 0; i < count_; ++i)
      in_[i] = holds(comm_.rank(), round, i / kBlock) ? value(comm_.rank(), round, i) : 0.0f;
    std::fill(out_.begin(), out_.end(), -1.0f);
  }
  Communicator& comm_;
  const std::size_t count_;
  std::vector<float> in_, out_;
  std::vector<nzcl::RegisteredBuffer> registered_;
};

class OutOfPlace : public Case {
 public:
  using Case::Case;
  Work start(int round) override {
    fill(round);
    return comm_.allreduce(
        {.input = in_.data(), .output = out_.data(), .count = count_, .block_elems = kBlock});
  }
};

/// With a bitmap that the caller overwrites behind the call, and a callback.
class ByCallback final : public OutOfPlace {
 public:
  using OutOfPlace::OutOfPlace;
  Work start(int round) override {
    fill(round);
    bitmap_.assign(((count_ + kBlock - 1) / kBlock + 63) / 64, 0);
    for (std::size_t b = 0; b < (count_ + kBlock - 1) / kBlock; ++b)
      if (holds(comm_.rank(), round, b)) bitmap_[b / 64] |= std::uint64_t{1} << b % 64;
    Work work = comm_.allreduce({.input = in_.data(),
                                 .output = out_.data(),
                                 .count = count_,
                                 .block_elems = kBlock,
                                 .bitmap = bitmap_});
    std::fill(bitmap_.begin(), bitmap_.end(), 0);
    auto told = std::make_shared<std::promise<std::string>>();
    told_ = told->get_future();
    work.on_complete(
        [told](const nzcl::Error* error) { told->set_value(error != nullptr ? error->what() : ""); });
    return work;
  }
  void end(Work&) override {
    if (const std::string error = told_.get(); !error.empty())
      throw nzcl::Error(nzcl::ErrorCode::peer_failed, error);
  }

 private:
  std::vector<std::uint64_t> bitmap_;
  std::future<std::string> told_;
};

class InPlace final : public Case {
 public:
  using Case::Case;
  Work start(int round) override {
    fill(round);
    return comm_.allreduce(
        {.input = in_.data(), .output = in_.data(), .count = count_, .block_elems = kBlock});
  }
  std::vector<float>& output() override { return in_; }
};

/// A list whose indices the caller overwrites behind the call, and a packed result without room at first.
class Packed final : public Case {
 public:
  using Case::Case;
  Work start(int round) override {
    indices_.clear(), values_.clear(), packed_.clear();
    for (std::size_t b = 0; b < count_ / kBlock; ++b) {
      if (!holds(comm_.rank(), round, b)) continue;
      indices_.push_back(static_cast<std::int64_t>(b));
      for (std::size_t i = b * kBlock; i < (b + 1) * kBlock; ++i)
        values_.push_back(value(comm_.rank(), round, i));
    }
    std::copy(values_.begin(), values_.end(), in_.begin());
    Work work = comm_.allreduce_sparse({.values = in_.data(),
                                        .indices = indices_,
                                        .count = count_ / kBlock * kBlock,
                                        .block_elems = kBlock,
                                        .packed_values = out_.data(),
                                        .packed_capacity = 1,
                                        .packed_grow = [this](std::uint64_t blocks) {
                                          packed_.resize(blocks * kBlock);
                                          return nzcl::PackedMemory{.values = packed_.data()};
                                        }});
    std::fill(indices_.begin(), indices_.end(), 0);
    return work;
  }
  void end(Work& work) override {
    work.wait();
    const auto indices = work.packed_indices();
    dense_.assign(count_ / kBlock * kBlock, 0.0f);
    for (std::size_t k = 0; k < indices.size(); ++k)
      std::copy_n(
          packed_.begin() + static_cast<std::ptrdiff_t>(k * kBlock), kBlock,
          dense_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(indices[k]) * kBlock));
  }
  std::vector<float>& output() override { return dense_; }

 private:
  std::vector<std::int64_t> indices_;
  std::vector<float> values_, packed_, dense_;
};

class Broadcast final : public Case {
 public:
  using Case::Case;
  Work start(int round) override {
    fill(round);
    root_ = round % comm_.size();
    if (comm_.rank() != root_) std::fill(in_.begin(), in_.end(), -1.0f);
    return comm_.broadcast({.data = in_.data(), .count = count_, .root = root_, .block_elems = kBlock});
  }
  float expected(int round, std::size_t i) const override {
    return holds(root_, round, i / kBlock) ? value(root_, round, i) : 0.0f;
  }
  std::vector<float>& output() override { return in_; }

 private:
  int root_ = 0;
};

/// Allgather of parts of different sizes.
class Gathered final : public Case {
 public:
  using Case::Case;
  Work start(int round) override {
    fill(round);
    counts_.clear();
    for (int r = 0; r < comm_.size(); ++r)
      counts_.push_back(count_ / static_cast<std::size_t>(comm_.size()) - static_cast<std::size_t>(r));
    std::size_t total = 0;
    for (const std::uint64_t n : counts_) total += n;
    all_.resize(total);
    registered_all_ = comm_.register_buffer(all_.data(), all_.size() * sizeof(float));
    Work work = comm_.allgather(
        {.input = in_.data(), .output = all_.data(), .counts = counts_, .block_elems = kBlock});
    return work;
  }
  float expected(int round, std::size_t i) const override {
    int r = 0;
    while (i >= counts_[static_cast<std::size_t>(r)]) i -= counts_[static_cast<std::size_t>(r++)];
    return holds(r, round, i / kBlock) ? value(r, round, i) : 0.0f;
  }
  std::vector<float>& output() override { return all_; }

 private:
  std::vector<std::uint64_t> counts_;
  std::vector<float> all_;
  nzcl::RegisteredBuffer registered_all_;
};

/// A reduction to one rank; the others have no result.
class Reduced final : public Case {
 public:
  using Case::Case;
  Work start(int round) override {
    fill(round);
    const int root = round % comm_.size();
    here_ = comm_.rank() == root;
    return comm_.reduce(
        {.input = in_.data(), .output = out_.data(), .count = count_, .root = root, .block_elems = kBlock});
  }
  std::vector<float>& output() override { return here_ ? out_ : none_; }

 private:
  bool here_ = false;
  std::vector<float> none_;
};

/// What may happen to an operation, and to its call, when an aggregator is lost.
bool is_not_begun_again(const nzcl::Error& error) {
  return std::string_view(error.what()).find("does not begin once more: ") != std::string_view::npos;
}

struct Named {
  const char* name;
  std::unique_ptr<Case> operation;
  Work work;
};

/// All operations of a round. Their buffers belong to nzcl until they are over, also if one of them fails.
class Round {
 public:
  std::vector<Named> all;
  Round() = default;
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;
  ~Round() {
    for (Named& one : all) {
      try {
        if (one.work.valid()) one.work.wait();
      } catch (const nzcl::Error&) {  // the first one is known
      }
    }
  }
};

/// Returns how many operations did not begin once more.
int run(Communicator& comm, std::size_t count, int rounds) {
  Round operations;
  std::vector<Named>& all = operations.all;
  for (int copy = 0; copy < 2; ++copy) {
    all.push_back({"out of place", std::make_unique<OutOfPlace>(comm, count), {}});
    all.push_back({"by callback", std::make_unique<ByCallback>(comm, count), {}});
    all.push_back({"small", std::make_unique<OutOfPlace>(comm, 100), {}});
    all.push_back({"in place", std::make_unique<InPlace>(comm, count), {}});
    all.push_back({"packed", std::make_unique<Packed>(comm, count), {}});
    all.push_back({"broadcast", std::make_unique<Broadcast>(comm, count), {}});
    all.push_back({"allgather", std::make_unique<Gathered>(comm, count), {}});
    all.push_back({"reduce", std::make_unique<Reduced>(comm, count), {}});
  }
  int lost = 0;
  for (int round = 0; round < rounds; ++round) {
    for (Named& one : all) {
      try {
        one.work = one.operation->start(round);
      } catch (const nzcl::Error& e) {
        if (!is_not_begun_again(e)) throw;
        one.work = {};
        ++lost;
      }
    }
    for (Named& one : all) {
      if (!one.work.valid()) continue;
      try {
        one.operation->end(one.work);
        one.operation->check(one.name, round);
      } catch (const nzcl::Error& e) {
        if (!is_not_begun_again(e)) throw;
        std::printf("%s, round %d: %s\n", one.name, round, e.what());
        ++lost;
      }
      one.work = {};
    }
    if (round % 10 == 0) std::printf("round %d\n", round), std::fflush(stdout);
  }
  return lost;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t count = 50000;
  CLI::App app("A rank of the tests that lose aggregators", "in_flight");
  int rounds = 100;
  app.add_option("--count", count, "Elements");
  app.add_option("--rounds", rounds, "Each starts all operations, and waits for all");
  CLI11_PARSE(app, argc, argv);
  try {
    Communicator comm;
    std::puts("joined"), std::fflush(stdout);
    const int lost = run(comm, count, rounds);
    std::printf("%d operations did not begin once more\n", lost);
    std::printf("rank %d of %d: ok\n", comm.rank(), comm.size());
    comm.close();
    return 0;
  } catch (const nzcl::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
}

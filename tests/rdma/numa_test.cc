// Tests placement on a machine with several NUMA nodes (a VM with --numa 2): a rank that is bound to a node
// has its threads and slots there, and a buffer on another node is mentioned in the log.
// tests/unit/placement_test.cc tests the plan itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>

#include "nzcl/communicator.h"
#include "runtime/channel/lane_memory.h"
#include "runtime/placement/memory.h"
#include "runtime/placement/topology.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Pair;

constexpr std::size_t kBytes = 4 << 20;

std::map<int, std::set<int>> cpus_by_node() {
  std::map<int, std::set<int>> all;
  for (const auto& core : placement::read_topology().cores) all[core.node].insert(core.cpu);
  return all;
}

void bind_process(const std::set<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<unsigned>(cpu), &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

/// The name and the core of every thread that is pinned to one core.
std::map<std::string, int> pinned_threads() {
  std::map<std::string, int> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    std::getline(comm, name);
    cpu_set_t set;
    if (::sched_getaffinity(std::stoi(task.path().filename()), sizeof set, &set) != 0 || CPU_COUNT(&set) != 1)
      continue;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<unsigned>(cpu), &set)) found[name] = cpu;
    }
  }
  return found;
}

/// The number of pages on each node, for the mappings that are bound to this node, as /proc/self/numa_maps
/// counts them.
std::map<int, long> pages_of_bound(int node) {
  std::map<int, long> pages;
  std::ifstream file("/proc/self/numa_maps");
  for (std::string line; std::getline(file, line);) {
    const std::string number = std::to_string(node);
    if (line.find(" prefer:" + number) == line.npos && line.find(" bind:" + number) == line.npos &&
        line.find(" prefer (many):" + number) == line.npos)
      continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      int n = 0;
      long count = 0;
      if (std::sscanf(word.c_str(), "N%d=%ld", &n, &count) == 2) pages[n] += count;
    }
  }
  return pages;
}

/// Describes what is not on the node where the threads and slots of a rank should be, after an allreduce of
/// `data`. It returns a text because a death test shows only what its child prints, and no failed
/// expectations.
std::string complaints_about(int node, std::span<std::byte> data, const Options& options) {
  LocalGroup group(1);
  Communicator communicator(group, 0, options);
  const auto registered = communicator.register_buffer(data.data(), data.size());
  const long before = pages_of_bound(node)[node];
  communicator.allreduce({.input = data.data(), .output = data.data(), .count = data.size() / 4}).wait();
  std::ostringstream text;
  auto threads = pinned_threads();
  const std::array names{"nzcl-lane-0", "nzcl-scan-0"};
  // The threads are waited for, because the caller may have done all of the work before they ran for the
  // first time.
  for (int tenth = 0; tenth < 100 && !(threads.contains(names[0]) && threads.contains(names[1])); ++tenth) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    threads = pinned_threads();
  }
  for (const char* name : names) {
    if (!threads.contains(name)) {
      text << name << " is not pinned; ";
    } else if (!cpus_by_node().at(node).contains(threads.at(name))) {
      text << name << " is on cpu " << threads.at(name) << "; ";
    }
  }
  const auto pages = pages_of_bound(node);
  if (!pages.contains(node) || pages.at(node) <= before) text << "no slots are bound to it; ";
  for (const auto& [other, count] : pages) {
    if (other != node) text << count << " pages of slots are on node " << other << "; ";
  }
  return text.str();
}

/// A communicator of one rank that has engine threads of its own.
Options pinned_options() {
  Options options;
  options.pin = Pinning::on;
  options.tune.scan_threads = 1;
  options.lanes = 1;
  return options;
}

class Numa : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (cpus_by_node().size() < 2) GTEST_SKIP() << "this machine has one NUMA node";
  }
};

struct Pages {  // memory whose pages were all touched on one node
  explicit Pages(int node) {
    data = static_cast<std::byte*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    placement::prefer_node({data, kBytes}, node);
    std::fill_n(data, kBytes, std::byte{1});
  }
  ~Pages() { ::munmap(data, kBytes); }
  std::byte* data;
};

TEST_F(Numa, MemoryIsWhereItWasWished) {
  for (const auto& [node, cpus] : cpus_by_node())
    EXPECT_EQ(placement::node_of({Pages(node).data, kBytes}), node);
}

TEST_F(Numa, ThreadsAndSlotsAreWhereTheRankIs) {
  for (const auto& [node, cpus] : cpus_by_node()) {
    EXPECT_EXIT(
        {
          bind_process(cpus);
          std::vector<float> gradient(kBytes / 4, 1.0f);
          std::fprintf(
              stderr, "complaints: %s\n",
              complaints_about(node, std::as_writable_bytes(std::span(gradient)), pinned_options()).c_str());
          std::exit(0);
        },
        testing::ExitedWithCode(0), "complaints: \n$");
  }
}

TEST_F(Numa, ThreadsAndSlotsAreWhereTheGradientsAreSaidToBe) {
  for (const auto& [node, cpus] : cpus_by_node()) {
    EXPECT_EXIT(
        {
          const Pages gradient(node);
          Options options = pinned_options();
          options.numa_node = numa_node_of(gradient.data, kBytes);
          std::fprintf(stderr, "complaints: %s\n",
                       complaints_about(node, {gradient.data, kBytes}, options).c_str());
          std::exit(0);
        },
        testing::ExitedWithCode(0), "complaints: \n$");
  }
}

/// The node that the staging buffers of one bank lie on, once they have been touched.
int node_of_bank(const engine::LaneMemory& memory, const engine::EngineConfig& config, std::size_t bank) {
  std::uint64_t at = engine::LaneLayout(config).staging_offset(config.members.self, wire::Priority::bulk);
  const std::uint64_t slot = config.channel(wire::Priority::bulk).slot_bytes;
  const auto banks = engine::staging_banks(config, config.members.self, wire::Priority::bulk);
  for (std::size_t before = 0; before < bank; ++before) at += banks[before].buffers * slot;
  return placement::node_of(memory.bytes().subspan(at + 4096, (banks[bank].buffers - 1) * slot));
}

TEST_F(Numa, StagingBuffersAreWhereTheyAreRead) {
  const auto nodes = cpus_by_node();
  const int here = nodes.begin()->first, there = nodes.rbegin()->first;
  engine::EngineConfig config;
  config.members.workers = 3;
  config.channels = {engine::ChannelConfig{128 << 10, 4, true}, engine::ChannelConfig{4096, 4}};
  config.set_links({});
  config.nodes = {here, here, there};
  verbs::LoopbackNetwork network;
  const auto device = network.device();
  const engine::LaneMemory memory(config, *device);
  const auto bytes = memory.bytes();
  std::fill_n(const_cast<std::byte*>(bytes.data()), bytes.size(), std::byte{1});
  EXPECT_EQ(node_of_bank(memory, config, 0), here);
  EXPECT_EQ(node_of_bank(memory, config, 1), there);
  EXPECT_EQ(placement::node_of(bytes.first(4096)), here) << "what others write here";
}

TEST_F(Numa, RanksTellEachOtherWhereTheyAre) {
  const auto nodes = cpus_by_node();
  const int here = nodes.begin()->first, there = nodes.rbegin()->first;
  LocalGroup group(2);
  const auto join = [&](int rank) {
    Options options;
    options.numa_node = rank == 0 ? here : there;
    return Communicator(group, rank, options).describe();
  };
  std::string first, second;
  std::thread other([&] { second = join(1); });
  first = join(0);
  other.join();
  EXPECT_THAT(first, HasSubstr("on nodes " + std::to_string(here) + "," + std::to_string(there)));
  EXPECT_THAT(second, HasSubstr("on nodes " + std::to_string(here) + "," + std::to_string(there)));
}

TEST_F(Numa, ANodeThatDoesNotExistIsRefused) {
  Options options;
  options.numa_node = 77;
  LocalGroup group(1);
  try {
    Communicator communicator(group, 0, options);
    FAIL() << "taken";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("no NUMA node 77"));
  }
}

TEST_F(Numa, ABufferElsewhereIsSpokenOf) {
  const auto nodes = cpus_by_node();
  const int here = nodes.begin()->first, there = nodes.rbegin()->first;
  EXPECT_EXIT(
      {
        bind_process(nodes.at(here));
        LocalGroup group(1);
        Communicator communicator(group, 0, {});
        const Pages near(here);
        const Pages far(there);
        const auto first = communicator.register_buffer(near.data, kBytes);
        std::fprintf(stderr, "near is over\n");
        const auto second = communicator.register_buffer(far.data, kBytes);
        std::exit(0);
      },
      testing::ExitedWithCode(0),
      "^near is over\n.*a buffer of 4 MiB lies on NUMA node " + std::to_string(there));
}

}  // namespace
}  // namespace nzcl::test

// On a machine with several NUMA nodes (a VM with --numa 2): a rank bound to a node has its threads and its
// slots there, and a buffer that lies elsewhere is spoken of. The plan itself: tests/unit/placement_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "nzcl/communicator.h"
#include "runtime/placement/memory.h"
#include "runtime/placement/topology.h"

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

/// Name and only core of every thread that is pinned to one.
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

/// Of the mappings that are bound to this node: pages by node, as /proc/self/numa_maps counts them.
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

/// A rank of its own in a process of its own: binding is the process's.
void in_process_of_node(int node, const std::function<void()>& body) {
  const auto nodes = cpus_by_node();
  EXPECT_EXIT(
      {
        bind_process(nodes.at(node));
        body();
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

class Numa : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (cpus_by_node().size() < 2) GTEST_SKIP() << "this machine has one NUMA node";
  }
};

struct Pages {  // on one node, touched
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
  const auto nodes = cpus_by_node();
  for (const auto& [node, cpus] : nodes) {
    in_process_of_node(node, [node = node, cpus = cpus] {
      Options options;
      options.pin = "on";
      options.scan_threads = 1;
      options.lanes = 1;
      LocalGroup group(1);
      Communicator communicator(group, 0, options);
      std::vector<float> data(1 << 20, 1.0f);
      const auto registered = communicator.register_buffer(data.data(), data.size() * 4);
      communicator.allreduce({.input = data.data(), .output = data.data(), .count = data.size()}).wait();
      const auto threads = pinned_threads();
      for (const char* name : {"nzcl-lane-0", "nzcl-scan-0"}) {
        ASSERT_TRUE(threads.contains(name)) << name << " is not pinned";
        EXPECT_TRUE(cpus.contains(threads.at(name))) << name << " is on cpu " << threads.at(name);
      }
      const auto pages = pages_of_bound(node);
      ASSERT_TRUE(pages.contains(node)) << "no memory is bound to node " << node;
      EXPECT_EQ(pages.size(), 1u) << "slots on another node than " << node;
    });
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

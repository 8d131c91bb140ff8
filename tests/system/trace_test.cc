// The timeline. A process has only one, so these tests are a program of their own.
#include "runtime/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/trace/timeline_file.h"

namespace nzcl::test {
namespace {

using nlohmann::json;
using testing::IsSupersetOf;

struct Folder {
  Folder() {
    std::string name = "/tmp/nzcl-trace-XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

json read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

TEST(TimelineFile, IsValidJsonAfterEveryAppend) {
  const Folder folder;
  const std::string path = folder.path / "t.json";
  trace::TimelineFile first(path, true);
  first.append("{\"a\":1},\n");
  EXPECT_EQ(read(path), json::parse(R"([{"a":1}])"));
  trace::TimelineFile second(path, false);
  second.append("{\"b\":2},\n{\"c\":3},\n");
  first.append("");
  first.append("{\"d\":4},\n");
  EXPECT_EQ(read(path), json::parse(R"([{"a":1},{"b":2},{"c":3},{"d":4}])"));
  const trace::TimelineFile anew(path, true);
  EXPECT_EQ(std::filesystem::file_size(path), 0u);
}

TEST(TimelineFile, APathThatCannotBeWrittenIsNamed) {
  try {
    const trace::TimelineFile file("/nowhere/t.json", true);
    FAIL() << "taken";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("/nowhere/t.json: No such file or directory"));
  }
}

// This test comes first, because tracing cannot be turned off again.
TEST(Trace, OffRecordsNothing) {
  EXPECT_EQ(trace::now(), 0);
  { const trace::Span span(trace::What::scan, 1, 2); }
  EXPECT_NO_THROW(trace::write());
}

TEST(Trace, AnAllreduceOfThreeRanksIsThereInAllItsParts) {
  const Folder folder;
  const std::string path = folder.path / "t.json";
  LocalGroup group(3);
  std::vector<std::jthread> ranks;
  constexpr std::size_t kCount = 300'000;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Options options;
      options.trace = path;
      options.tune.slice_bytes = 64 << 10;
      Communicator communicator(group, rank, options);
      // A name of the user's choice, which JSON must escape.
      ::pthread_setname_np(::pthread_self(), "a \"thread\" \xff");
      { const trace::Span span(trace::What::post, 0, 0); }
      std::vector<float> input(kCount), output(kCount);
      for (std::size_t i = static_cast<std::size_t>(rank); i < kCount; i += 5000) input[i] = 1;
      const auto in = communicator.register_buffer(input.data(), kCount * 4);
      const auto out = communicator.register_buffer(output.data(), kCount * 4);
      for (int round = 0; round < 2; ++round)
        communicator.allreduce({.input = input.data(), .output = output.data(), .count = kCount}).wait();
      communicator.close();
    });
  }
  ranks.clear();

  std::set<std::string> kinds, names;
  std::map<std::pair<int, std::string>, int> slices_scanned;  // the key is the operation and the kind of span
  std::map<std::string, int> phases;
  for (const json& e : read(path)) {
    const std::string phase = e.at("ph");
    ++phases[phase];
    if (phase == "M") names.insert(e.at("args").at("name").get<std::string>());
    if (phase != "X") continue;
    EXPECT_GT(e.at("ts").get<double>(), 0);
    EXPECT_GE(e.at("dur").get<double>(), 0);
    kinds.insert(e.at("name"));
    if (e.at("name") == "scan") ++slices_scanned[{e.at("args").at("operation"), "scan"}];
  }
  EXPECT_THAT(kinds, IsSupersetOf({"scan", "push", "post", "reduce", "zero", "result"}));
  EXPECT_THAT(names, IsSupersetOf({"rank 0", "a \"thread\" \uFFFD"}));
  EXPECT_EQ(phases["b"], 6) << "three ranks, two operations";
  EXPECT_EQ(phases["e"], 6);
  const int slices = (kCount * 4 + (64 << 10) - 1) / (64 << 10);
  ASSERT_EQ(slices_scanned.size(), 2u);
  for (const auto& [operation, count] : slices_scanned) EXPECT_EQ(count, 3 * slices);
}

}  // namespace
}  // namespace nzcl::test

// Feeds any bytes as what a member says to the members of a communicator: by which it introduces itself,
// tells where it is and what it has, takes part in a split, and tells of its operations when an aggregator is
// lost. They go to the parsers, and to the code that makes the lists of members.
#include "nzcl/error.h"
#include "runtime/comm/communicator/reassignment.h"
#include "runtime/comm/join/hello.h"
#include "runtime/comm/join/node_and_link.h"
#include "runtime/comm/join/split_plan.h"
#include "runtime/comm/join/whereabouts.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

comm::Hello hello(comm::Role role, int index) { return comm::make_hello({}, role, index); }

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::string huge = hello(comm::Role::aggregator, 1).encode();
  huge.replace(huge.find("\"index\":1"), 9, "\"index\":2147483647");
  return {hello(comm::Role::worker, 1).encode(),
          hello(comm::Role::aggregator, -1).encode(),
          huge,
          "{}",
          "[]",
          comm::NodeAndLink{.node = 1, .link = engine::own_link(25, 0)}.encode(),
          R"({"node":1e300,"gbps":1,"source":1,"scan_streams":1})",
          comm::Whereabouts{.port = "{}", .node_and_link = comm::NodeAndLink{.link = {}}.encode()}.encode(),
          comm::SplitChoice{.color = 3, .key = -1}.encode(),
          R"({"color":1e300,"key":0})",
          "7 wsue",
          "18446744073709551600 w"};
}

/// A worker of two says `text`; the other one says what it should.
void try_split(const std::string& text) {
  engine::Membership m;
  m.members = {.self = 0, .workers = 2, .dedicated = 0};
  m.position_of = m.member_of = {0, 1};
  m.names = {"rank 0 (a)", "rank 1"};
  m.hosts = m.networks = m.process_spaces = m.cores = engine::Groups({0, 0});
  for (const auto& group : comm::plan_split(m, {comm::SplitChoice{.color = 3, .key = 0}.encode(), text})) {
    if (group.members[0] == 0 || group.members.size() > 1)
      engine::membership_among(m, group.members, group.workers);
  }
}

/// One rank of two says `text`.
void try_operations(const std::string& text) {
  const auto told = comm::OperationsInFlight::decode(text, "rank 1");
  if (comm::OperationsInFlight::decode(told.encode(), "rank 1").states != told.states) __builtin_trap();
  using State = comm::OperationsInFlight::State;
  const comm::Reassignment both({{.first = 7, .states = {State::whole, State::spoiled}}, told});
  for (std::uint64_t operation = 7; operation < 9; ++operation) (void)both.why_not(operation);
  if (both.end() < told.end()) __builtin_trap();
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  static const comm::Hello own = test::hello(comm::Role::worker, 0);
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    comm::membership_of({own, comm::Hello::decode(text)}, 0);
  } catch (const Error&) {
  }
  try {
    (void)comm::NodeAndLink::decode(text, "rank 1");
  } catch (const Error&) {
  }
  try {
    const auto w = comm::Whereabouts::decode(text, "rank 1");
    if (w.encode() != text) __builtin_trap();
    (void)comm::NodeAndLink::decode(w.node_and_link, "rank 1");
  } catch (const Error&) {
  }
  try {
    test::try_split(text);
  } catch (const Error&) {
  }
  try {
    test::try_operations(text);
  } catch (const Error&) {
  }
  return 0;
}

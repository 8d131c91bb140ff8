// Feeds any bytes as the text by which a member introduces itself, to its parser and to the code that makes
// the list of members from it.
#include "nzcl/error.h"
#include "runtime/comm/hello.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

comm::Hello hello(comm::Role role, int index) { return comm::make_hello({}, role, index); }

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::string huge = hello(comm::Role::aggregator, 1).encode();
  huge.replace(huge.find("\"index\":1"), 9, "\"index\":2147483647");
  return {hello(comm::Role::worker, 1).encode(), hello(comm::Role::aggregator, -1).encode(), huge, "{}",
          "[]"};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  static const comm::Hello own = test::hello(comm::Role::worker, 0);
  try {
    comm::membership_of({own, comm::Hello::decode({reinterpret_cast<const char*>(data), size})}, 0);
  } catch (const Error&) {
  }
  return 0;
}

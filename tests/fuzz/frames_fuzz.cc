// Feeds any bytes to the parsers of the frames of the meeting and of the control plane. They may throw
// nzcl::Error and nothing else.
#include "nzcl/error.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/string_list.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

template <typename Parse>
void try_parse(Parse parse) {
  try {
    parse();
  } catch (const Error&) {
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {"\0" + bootstrap::encode_strings({"a", "", "ccc"}),
          R"({"hosts":["10.0.0.1"],"host_id":"x","port":4711,"key":"y"})",
          R"({"hosts":[],"host_id":"x","port":4711,"key":"y"})",
          R"({"session":"s","index":1,"size":2,"who":"rank 1"})",
          R"({"member":1})",
          R"({"member":-1e300})",
          R"({"type":"failed","code":6,"text":"late"})",
          R"({"type":"abort","code":99,"text":"late"})",
          R"({"type":"all_bye"})",
          R"({"code":6,"text":"late"})"};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  const std::string text(reinterpret_cast<const char*>(data), size);
  test::try_parse([&] { bootstrap::parse_hub_address(text); });
  test::try_parse([&] { bootstrap::parse_star_hello(text); });
  test::try_parse([&] { bootstrap::parse_control_hello(text); });
  test::try_parse([&] { bootstrap::parse_control_frame(text); });
  test::try_parse([&] { static_cast<void>(bootstrap::parse_error(text)); });
  test::try_parse([&] {
    const auto parts = bootstrap::decode_strings(text);
    if (bootstrap::encode_strings(parts) != text) __builtin_trap();
  });
  return 0;
}

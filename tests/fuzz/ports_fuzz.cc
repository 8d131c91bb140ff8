// Feeds any bytes to the parsers of the addresses of datagram ports.
#include "nzcl/error.h"
#include "runtime/switch/port.h"
#include "tests/fuzz/fuzz.h"
#include "verbs/datagram/udp/address.h"

namespace nzcl::test {
namespace {

using engine::slot_pool::PortAddress;

template <typename Parse>
void try_parse(Parse parse) {
  try {
    parse();
  } catch (const Error&) {
  }
}

/// What was read says the same when it is written.
void read_port(const std::string& text) {
  const auto port = PortAddress::decode(text, "aggregator 0");
  if (PortAddress::decode(port.encode(), "aggregator 0").encode() != port.encode()) __builtin_trap();
}
void read_udp(const std::string& text) {
  if (verbs::udp::parse_address(verbs::udp::parse_address(text).text()).text().empty()) __builtin_trap();
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const PortAddress port{
      .address = "192.0.2.1:4791", .max_bytes = 1472, .slots = 64, .job = {}, .zeros = true};
  return {port.encode(), port.address};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  const std::string text(reinterpret_cast<const char*>(data), size);
  test::try_parse([&] { test::read_port(text); });
  test::try_parse([&] { test::read_udp(text); });
  return 0;
}

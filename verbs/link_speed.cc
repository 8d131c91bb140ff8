#include "verbs/link_speed.h"

#include <charconv>
#include <fstream>

namespace nzcl::verbs {

double gbps_of_text(const std::string& mbps) {
  int value = 0;
  const auto [end, error] = std::from_chars(mbps.data(), mbps.data() + mbps.size(), value);
  return error == std::errc() && end == mbps.data() + mbps.size() && value > 0 ? value / 1000.0 : 0;
}

double interface_gbps(const std::string& interface) {
  if (interface.empty() || interface.find('/') != std::string::npos) return 0;
  std::ifstream file("/sys/class/net/" + interface + "/speed");
  std::string line;
  std::getline(file, line);
  return gbps_of_text(line);
}

double port_gbps(std::uint8_t active_speed, std::uint8_t active_width) {
  // Of one lane, without what its line code takes: 8b/10b up to QDR, and 64b/66b from FDR on.
  constexpr struct {
    std::uint8_t code;
    double gbps;
  } kSpeeds[] = {{1, 2}, {2, 4}, {4, 8}, {8, 10}, {16, 13.64}, {32, 25}, {64, 50}, {128, 100}};
  constexpr struct {
    std::uint8_t code;
    int lanes;
  } kWidths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  for (const auto& speed : kSpeeds) {
    for (const auto& width : kWidths) {
      if (speed.code == active_speed && width.code == active_width) return speed.gbps * width.lanes;
    }
  }
  return 0;
}

}  // namespace nzcl::verbs

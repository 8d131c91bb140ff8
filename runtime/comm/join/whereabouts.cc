#include "runtime/comm/join/whereabouts.h"

#include "nzcl/error.h"
#include "runtime/bootstrap/string_list.h"
#include "runtime/comm/join/node_and_link.h"

namespace nzcl::comm {

std::string Whereabouts::encode() const { return bootstrap::encode_strings({port, node_and_link}); }

Whereabouts Whereabouts::decode(const std::string& text, const std::string& who) {
  const auto strings = bootstrap::decode_strings(text);
  if (strings.size() != 2)
    throw Error(ErrorCode::mismatch, who + " sent something else than where it is and what it has");
  return {.port = strings[0], .node_and_link = strings[1]};
}

void take_whereabouts(const std::vector<std::string>& told, bootstrap::ControlPlane& control,
                      engine::Membership& membership) {
  std::vector<std::string> ports, nodes_and_links;
  for (std::size_t position = 0; position < told.size(); ++position) {
    Whereabouts w = Whereabouts::decode(told[position], membership.names[position]);
    ports.push_back(std::move(w.port));
    nodes_and_links.push_back(std::move(w.node_and_link));
  }
  control.settle(ports);
  enter_nodes_and_links(nodes_and_links, membership);
}

}  // namespace nzcl::comm

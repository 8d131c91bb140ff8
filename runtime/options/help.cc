#include "runtime/options/help.h"

#include <fmt/format.h>

#include "runtime/options/table.h"

namespace nzcl {
namespace {

/// Text for a cell of a Markdown table, in which a plain "|" would end the cell.
std::string escaped(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

}  // namespace

std::string describe_options(const Resolved& resolved) {
  std::string text;
  for (std::size_t i = 0; i < settings().size(); ++i) {
    const Setting& s = settings()[i];
    const std::string value = s.text(resolved.options);
    text += fmt::format("  {:<20} {:<12} {}\n", s.name, value.empty() ? "\"\"" : value, resolved.origins[i]);
  }
  return text;
}

std::string options_markdown() {
  const Options defaults;
  std::string text = "| variable | default | range | meaning |\n|---|---|---|---|\n";
  for (const Setting& s : settings()) {
    const std::string value = s.text(defaults);
    text += fmt::format("| `{}` | {} | {} | {} |\n", s.variable(), value.empty() ? "" : "`" + value + "`",
                        escaped(s.range()), s.meaning);
  }
  return text;
}

}  // namespace nzcl

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
  const auto describe = [&](std::span<const Setting> list, const std::vector<std::string>& origins,
                            const char* before) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string value = list[i].text(resolved.options);
      text += fmt::format("  {:<20} {:<12} {}\n", fmt::format("{}{}", before, list[i].name),
                          value.empty() ? "\"\"" : value, origins[i]);
    }
  };
  describe(settings(), resolved.origins, "");
  describe(tunings(), resolved.tuning_origins, "tune.");
  return text;
}

std::string options_markdown() {
  const Options defaults;
  std::string text;
  const auto add_row = [&](const Setting& s, std::string_view name) {
    const std::string value = s.text(defaults);
    text += fmt::format("| `{}` | {} | {} | {} |\n", name, value.empty() ? "" : "`" + value + "`",
                        escaped(s.range()), s.meaning);
  };
  text += "| variable | default | range | meaning |\n|---|---|---|---|\n";
  for (const Setting& s : settings()) add_row(s, s.variable());
  text +=
      "| `NZCL_TUNE` |  |  | A list `name=value,...` of what nzcl otherwise chooses, for measurements |\n";
  text += "\n| name in `NZCL_TUNE` | default | range | meaning |\n|---|---|---|---|\n";
  for (const Setting& s : tunings()) add_row(s, s.name);
  return text;
}

}  // namespace nzcl

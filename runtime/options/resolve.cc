#include "runtime/options/resolve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/options/table.h"
#include "runtime/options/validate.h"

namespace nzcl {
namespace {

constexpr const char* kFileVariable = "NZCL_CONFIG";

/// The Levenshtein distance of two names, by which "did you mean" finds the most similar one.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string unknown_text(std::string_view what, std::string_view name, auto spelling) {
  const auto nearest =
      std::min_element(settings().begin(), settings().end(), [&](const Setting& a, const Setting& b) {
        return distance(spelling(a), name) < distance(spelling(b), name);
      });
  std::string text = fmt::format("{} {} is not an option of nzcl", what, name);
  if (distance(spelling(*nearest), name) <= 4) text += fmt::format("; did you mean {}?", spelling(*nearest));
  return text;
}

void apply_file(const std::string& path, Resolved& resolved) {
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: cannot read the file {}", kFileVariable, path));
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(file);
  } catch (const CLI::Error& e) {
    throw Error(ErrorCode::invalid_argument, fmt::format("file {}: {}", path, e.what()));
  }
  const std::string origin = "file " + path;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks where a section begins and ends
    const Setting* setting = find_setting(item.fullname());
    if (!setting) {
      throw Error(
          ErrorCode::invalid_argument,
          unknown_text(origin + ":", item.fullname(), [](const Setting& s) { return std::string(s.name); }));
    }
    if (item.inputs.size() != 1)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: option {} takes one value", origin, item.name));
    setting->set(resolved.options, item.inputs.front(), origin);
    resolved.origins[static_cast<std::size_t>(setting - settings().data())] = origin;
  }
}

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::vector<std::string> process_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

Resolved resolve(const Options& base, const Lookup& lookup, const std::vector<std::string>& variables) {
  Resolved resolved{.options = base, .origins = {}, .warnings = {}};
  const Options defaults;
  for (const Setting& s : settings()) {
    const bool same = std::visit([&](auto member) { return base.*member == defaults.*member; }, s.field);
    resolved.origins.emplace_back(same ? "default" : "code");
    s.check(base, "code");
  }
  if (const auto path = lookup(kFileVariable); path && !path->empty()) apply_file(*path, resolved);
  for (std::size_t i = 0; i < settings().size(); ++i) {
    const std::string name = settings()[i].variable();
    if (const auto value = lookup(name.c_str())) {
      settings()[i].set(resolved.options, *value, name);
      resolved.origins[i] = name;
    }
  }
  for (const std::string& name : variables) {
    const bool known =
        name == kFileVariable || std::any_of(settings().begin(), settings().end(),
                                             [&](const Setting& s) { return s.variable() == name; });
    if (name.starts_with("NZCL_") && !known) {
      resolved.warnings.push_back(
          unknown_text("environment variable", name, [](const Setting& s) { return s.variable(); }));
    }
  }
  return resolved;
}

Options options_from_environment(Options base) {
  Resolved resolved = resolve(base, process_environment, process_variables());
  const int rank = resolved.options.rank;
  for (const std::string& warning : resolved.warnings)
    log().warn("{}{}", rank < 0 ? "" : "rank " + std::to_string(rank) + ": ", warning);
  return std::move(resolved.options);
}

void validate(const Options& options) {
  for (const Setting& s : settings()) s.check(options, "as given");
}

}  // namespace nzcl

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
constexpr const char* kTuneVariable = "NZCL_TUNE";
constexpr const char* kTorchVariable = "NZCL_TORCH_FALLBACK";  // of the plugin for libtorch

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

std::string unknown_text(std::string_view what, std::string_view name, std::span<const Setting> known,
                         auto spelling) {
  const auto nearest =
      std::ranges::min_element(known, {}, [&](const Setting& s) { return distance(spelling(s), name); });
  std::string text = fmt::format("{} {} is not an option of nzcl", what, name);
  if (distance(spelling(*nearest), name) <= 4) text += fmt::format("; did you mean {}?", spelling(*nearest));
  return text;
}

std::string name_in(const Setting& s) { return std::string(s.name); }

/// Sets the tunings of a list "name=value,...".
void apply_tunings(std::string_view list, const std::string& origin, Resolved& resolved) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(item.size() + 1, list.size()));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("option tune ({}): \"{}\" has no value; write NAME=VALUE,...", origin, item));
    const std::string_view name = item.substr(0, equals);
    const Setting* const tuning = find_in(tunings(), name);
    if (!tuning)
      throw Error(ErrorCode::invalid_argument, unknown_text(origin + ":", name, tunings(), name_in));
    tuning->set(resolved.options, item.substr(equals + 1), origin);
    resolved.tuning_origins[static_cast<std::size_t>(tuning - tunings().data())] = origin;
  }
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
    if (item.inputs.size() != 1)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: option {} takes one value", origin, item.name));
    if (item.fullname() == "tune") {
      apply_tunings(item.inputs.front(), origin, resolved);
      continue;
    }
    const Setting* setting = find_in(settings(), item.fullname());
    if (!setting)
      throw Error(ErrorCode::invalid_argument,
                  unknown_text(origin + ":", item.fullname(), settings(), name_in));
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
  Resolved resolved{.options = base, .origins = {}, .tuning_origins = {}, .warnings = {}};
  const Options defaults;
  const auto begin = [&](std::span<const Setting> list, std::vector<std::string>& origins) {
    for (const Setting& s : list) {
      const bool same = std::visit(
          [&](auto member) { return value_in(base, member) == value_in(defaults, member); }, s.field);
      origins.emplace_back(same ? "default" : "code");
      s.check(base, "code");
    }
  };
  begin(settings(), resolved.origins);
  begin(tunings(), resolved.tuning_origins);
  if (const auto path = lookup(kFileVariable); path && !path->empty()) apply_file(*path, resolved);
  for (std::size_t i = 0; i < settings().size(); ++i) {
    const std::string name = settings()[i].variable();
    if (const auto value = lookup(name.c_str())) {
      settings()[i].set(resolved.options, *value, name);
      resolved.origins[i] = name;
    }
  }
  if (const auto list = lookup(kTuneVariable)) apply_tunings(*list, kTuneVariable, resolved);
  for (const std::string& name : variables) {
    if (!name.starts_with("NZCL_") || name == kFileVariable || name == kTuneVariable) continue;
    if (name == kTorchVariable) continue;
    const auto spelling = [](const Setting& s) { return s.variable(); };
    if (std::ranges::any_of(settings(), [&](const Setting& s) { return s.variable() == name; })) continue;
    const auto tuning = std::ranges::find(tunings(), name, spelling);
    resolved.warnings.push_back(
        tuning == tunings().end()
            ? unknown_text("environment variable", name, settings(), spelling)
            : fmt::format("environment variable {} is not an option of nzcl; it is {}={}=VALUE", name,
                          kTuneVariable, tuning->name));
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

Options options_from_environment() { return options_from_environment(Options{}); }

void validate(const Options& options) {
  for (const auto list : {settings(), tunings()})
    for (const Setting& s : list) s.check(options, "as given");
}

}  // namespace nzcl

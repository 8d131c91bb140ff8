// The table of options: how values are parsed, what ranges they have, and where they came from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "runtime/options/help.h"
#include "runtime/options/resolve.h"
#include "runtime/options/table.h"
#include "runtime/options/validate.h"

namespace nzcl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Variables = std::map<std::string, std::string>;

Resolved resolved(const Variables& variables, const Options& base = {}) {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) names.push_back(name);
  return resolve(
      base,
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      names);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "no error";
}

std::string origin(const Resolved& r, std::string_view name) {
  if (const Setting* const tuning = find_in(tunings(), name))
    return r.tuning_origins[static_cast<std::size_t>(tuning - tunings().data())];
  return r.origins[static_cast<std::size_t>(find_in(settings(), name) - settings().data())];
}

std::vector<Setting> all_settings() {
  std::vector<Setting> all(settings().begin(), settings().end());
  all.insert(all.end(), tunings().begin(), tunings().end());
  return all;
}

/// A file whose name no other test uses, because tests run side by side.
class File {
 public:
  explicit File(const std::string& text) : path_(testing::TempDir() + "nzcl_options_test_XXXXXX") {
    ::close(::mkstemp(path_.data()));
    std::ofstream(path_) << text;
  }
  ~File() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(OptionTable, NamesAreUniqueAndDefaultsAreValid) {
  std::set<std::string_view> names;
  for (const Setting& s : all_settings()) {
    EXPECT_TRUE(names.insert(s.name).second) << s.name;
    EXPECT_FALSE(s.meaning.empty()) << s.name;
  }
  EXPECT_NO_THROW(validate({}));
}

/// Stands for a value of any type, in order to count how many values a structure can be made from.
struct Anything {
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

/// The number of fields of a structure without constructors.
template <typename T, typename... Values>
constexpr std::size_t fields_of() {
  if constexpr (requires { T{Values{}..., Anything{}}; }) return fields_of<T, Values..., Anything>();
  return sizeof...(Values);
}

TEST(OptionTable, HasEveryFieldOfOptions) {
  // A field that the table lacks could not be set from outside.
  EXPECT_EQ(settings().size() + 1, fields_of<Options>());  // `tune` has a table of its own
  EXPECT_EQ(tunings().size(), fields_of<Tuning>());
}

TEST(OptionTable, ValuesComeBackFromTheirText) {
  for (const Setting& s : all_settings()) {
    if (s.kind == SettingKind::secret) continue;
    Options copy;
    s.set(copy, s.text({}), "test");
    EXPECT_EQ(s.text(copy), s.text({})) << s.name;
  }
}

TEST(OptionTable, APairOfTransportsIsWithinAHostAndBetweenHosts) {
  const auto error = [](const char* transport) -> std::string {
    Options options;
    options.transport = transport;
    try {
      validate(options);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  };
  for (const char* good : {"auto", "cma", "anything", "cma,tcp", "shm,tcp;ofi_rxm", "cma,ibverbs", "auto,tcp",
                           "libfabric-shm", "libfabric-shm,tcp"})
    EXPECT_EQ(error(good), "");
  EXPECT_THAT(error("tcp,cma"), HasSubstr("\"tcp\" is not a transport within a host"));
  EXPECT_THAT(error(",tcp"), HasSubstr("\"\" is not a transport within a host"));
  EXPECT_THAT(error("cma,"), HasSubstr("the transport between hosts is missing"));
  for (const char* no_network : {"cma,shm", "cma,libfabric-shm", "cma,auto", "cma,loopback", "cma, tcp"})
    EXPECT_THAT(error(no_network), HasSubstr("does not name a transport between hosts"));
  EXPECT_THAT(error("cma,tcp,tcp"), HasSubstr("a pair has two names"));
  EXPECT_THAT(error("cma,"), HasSubstr("NZCL_TRANSPORT=cma,tcp")) << "what to write instead";
}

RC_GTEST_PROP(OptionTable, BytesComeBackFromTheirText, ()) {
  const auto value = *rc::gen::inRange<std::uint64_t>(0, std::uint64_t{1} << 40);
  Options options;
  options.tune.slice_bytes = value;
  const Setting& s = *find_in(tunings(), "slice_bytes");
  Options copy;
  s.set(copy, s.text(options), "test");
  RC_ASSERT(copy.tune.slice_bytes == value);
}

TEST(Resolve, DefaultsThenCodeThenFileThenEnvironment) {
  const File file(
      "# a comment\ntransport = \"tcp\"\ntune = \"slot_bytes=64K,max_segments=3\"\ntimeout_s = 2.5\n");
  Options base;
  base.lanes = 2;
  base.transport = "shm";
  const Resolved r =
      resolved({{"NZCL_CONFIG", file.path()}, {"NZCL_TUNE", "slot_bytes=256KiB,staging=cached"}}, base);
  EXPECT_EQ(r.options.lanes, 2);
  EXPECT_EQ(origin(r, "lanes"), "code");
  EXPECT_EQ(r.options.transport, "tcp");
  EXPECT_THAT(origin(r, "transport"), HasSubstr("file "));
  EXPECT_EQ(r.options.timeout_s, 2.5);
  EXPECT_EQ(r.options.tune.slot_bytes, 256u << 10);
  EXPECT_EQ(origin(r, "slot_bytes"), "NZCL_TUNE");
  EXPECT_EQ(r.options.tune.max_segments, 3);
  EXPECT_THAT(origin(r, "max_segments"), HasSubstr("file "));
  EXPECT_EQ(r.options.tune.staging, Staging::cached);
  EXPECT_EQ(origin(r, "channel_slots"), "default");
  EXPECT_THAT(r.warnings, IsEmpty());
}

TEST(Resolve, BadValuesNameOptionOriginAndRange) {
  EXPECT_THAT(error_of([] {
                resolved({{"NZCL_TUNE", "channel_slots=many"}});
              }),
              AllOf(HasSubstr("channel_slots"), HasSubstr("NZCL_TUNE"), HasSubstr("\"many\""),
                    HasSubstr("0 .. 1024")));
  EXPECT_THAT(error_of([] { resolved({{"NZCL_PIN", "maybe"}}); }), HasSubstr("auto|on|off"));
  EXPECT_THAT(error_of([] { resolved({{"NZCL_TUNE", "slot_bytes=1K"}}); }), HasSubstr("0, 4K .. 16M"));
  EXPECT_EQ(resolved({{"NZCL_TUNE", "slot_bytes=0"}}).options.tune.slot_bytes,
            0);  // 0 leaves the choice to nzcl
  EXPECT_THAT(error_of([] {
                resolved({{"NZCL_TUNE", "slot_bytes=99999999999999999999"}});
              }),
              HasSubstr("slot_bytes"));
  EXPECT_THAT(error_of([] {
                resolved({{"NZCL_TUNE", "slice_bytes=17179869185G"}});
              }),
              HasSubstr("slice_bytes"));
  EXPECT_THAT(error_of([] {
                resolved({{"NZCL_TUNE", "slot_bites=64K"}});
              }),
              AllOf(HasSubstr("slot_bites"), HasSubstr("did you mean slot_bytes?")));
  EXPECT_THAT(error_of([] {
                resolved({{"NZCL_TUNE", "slot_bytes=64K,staging"}});
              }),
              AllOf(HasSubstr("\"staging\" has no value"), HasSubstr("NAME=VALUE")));
  EXPECT_THAT(error_of([] { resolved({{"NZCL_TIMEOUT_S", "nan"}}); }), HasSubstr("timeout_s"));
  EXPECT_THAT(error_of([] { resolved({{"NZCL_TIMEOUT_S", ""}}); }), HasSubstr("timeout_s"));
  EXPECT_THAT(error_of([] { resolved({{"NZCL_CONFIG", "/does/not/exist"}}); }), HasSubstr("/does/not/exist"));
  const File unknown("trnsport = \"tcp\"\n");
  EXPECT_THAT(error_of([&] {
                resolved({{"NZCL_CONFIG", unknown.path()}});
              }),
              AllOf(HasSubstr("trnsport"), HasSubstr("transport?")));
  Options bad;
  bad.lanes = 99;
  EXPECT_THAT(error_of([&] { validate(bad); }), AllOf(HasSubstr("lanes"), HasSubstr("0 .. 16")));
}

TEST(Resolve, UnknownVariablesAreWarningsWithASuggestion) {
  EXPECT_THAT(resolved({{"NZCL_TRANSPROT", "tcp"}, {"OTHER_TRANSPORT", "x"}}).warnings,
              ElementsAre(AllOf(HasSubstr("NZCL_TRANSPROT"), HasSubstr("did you mean NZCL_TRANSPORT?"))));
  EXPECT_THAT(resolved({{"NZCL_COMPLETELY_DIFFERENT_THING", "1"}}).warnings,
              ElementsAre(Not(HasSubstr("did you mean"))));
  EXPECT_THAT(resolved({{"NZCL_TORCH_FALLBACK", "0"}}).warnings, IsEmpty())
      << "the plugin for libtorch's own";
  EXPECT_THAT(resolved({{"NZCL_SLOT_BYTES", "64K"}}).warnings,
              ElementsAre(AllOf(HasSubstr("NZCL_SLOT_BYTES"), HasSubstr("NZCL_TUNE=slot_bytes=VALUE"))));
}

TEST(Secret, ShortOnesAreRefusedWithoutBeingShown) {
  for (const std::string& origin : {std::string("code"), std::string("NZCL_SECRET")}) {
    try {
      find_in(settings(), "secret")->set(*std::make_unique<Options>(), "fifteen letters", origin);
      FAIL() << "taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(e.what(), AllOf(HasSubstr("NZCL_SECRET"), HasSubstr("nzcl_info --new-secret"),
                                  Not(HasSubstr("fifteen"))));
    }
  }
  EXPECT_NO_THROW(resolved({{"NZCL_SECRET", ""}}));
  EXPECT_NO_THROW(resolved({{"NZCL_SECRET", "sixteen letters."}}));
}

TEST(Help, NeverShowsTheSecret) {
  const std::string text = describe_options(resolved({{"NZCL_SECRET", "hunter2 and his friends"}}));
  EXPECT_THAT(text, AllOf(HasSubstr("(set)"), Not(HasSubstr("hunter2"))));
}

TEST(Help, MarkdownHasARowPerOption) {
  const std::string text = options_markdown();
  for (const Setting& s : settings()) EXPECT_THAT(text, HasSubstr("| `" + s.variable() + "` |"));
  for (const Setting& s : tunings()) EXPECT_THAT(text, HasSubstr("| `" + std::string(s.name) + "` |"));
}

TEST(Resolve, NamesOfAlgorithmsAreThoseOfTheOption) {
  for (int i = 0; i < kRequestAlgorithms; ++i) {
    const std::string name(name_of(static_cast<Algorithm>(i)));
    EXPECT_EQ(resolved({{"NZCL_ALGORITHM", name}}).options.algorithm, static_cast<Algorithm>(i));
  }
}

}  // namespace
}  // namespace nzcl

#include "verbs/cma/permission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

namespace nzcl::verbs::cma {
namespace {

using testing::HasSubstr;

TEST(CmaPermission, OrdinaryProcessesMay) {
  EXPECT_EQ(what_forbids({}), "");
  EXPECT_EQ(what_forbids({.yama_scope = 1}), "")
      << "with scope 1 the device itself allows the other processes of its user";
}

TEST(CmaPermission, AProcessThatIsNotDumpableIsClosed) {
  EXPECT_THAT(what_forbids({.dumpable = 0}), HasSubstr("not dumpable"));
  EXPECT_THAT(what_forbids({.dumpable = 2}), HasSubstr("not dumpable"));
  EXPECT_EQ(what_forbids({.dumpable = 0, .may_trace = true}), "");
}

TEST(CmaPermission, YamaForbidsItFromTwoOn) {
  EXPECT_THAT(what_forbids({.yama_scope = 2}), HasSubstr("ptrace_scope is 2"));
  EXPECT_EQ(what_forbids({.yama_scope = 2, .may_trace = true}), "");
  EXPECT_THAT(what_forbids({.yama_scope = 3}), HasSubstr("ptrace_scope is 3"));
  EXPECT_THAT(what_forbids({.yama_scope = 3, .may_trace = true}), HasSubstr("ptrace_scope is 3"));
}

TEST(CmaPermission, SeesThatThisProcessIsNotDumpable) {
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
  EXPECT_EQ(read_permission().dumpable, 1);
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), 0);
  EXPECT_EQ(read_permission().dumpable, 0);
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

}  // namespace
}  // namespace nzcl::verbs::cma

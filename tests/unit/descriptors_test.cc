// Tests how the limit of descriptors is raised, and that errors name it.
#include "verbs/descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

#include "verbs/fd.h"

namespace nzcl::verbs {
namespace {

using testing::HasSubstr;

/// Gives the soft limit back at the end.
class DescriptorsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void set_soft(rlim_t soft) {
    const rlimit limit{.rlim_cur = soft, .rlim_max = before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  rlimit before_{};
};

TEST_F(DescriptorsTest, CountsThoseThatAreOpen) {
  const auto before = read_descriptors();
  const Fd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(read_descriptors().open, before.open + 1);
  EXPECT_EQ(before.hard, before_.rlim_max);
}

TEST_F(DescriptorsTest, TheSoftLimitIsRaisedOnlyIfMoreAreNeededThanFit) {
  const std::uint64_t open = read_descriptors().open;
  set_soft(open + 10);
  make_room_for_descriptors(10);
  EXPECT_EQ(read_descriptors().soft, open + 10);
  make_room_for_descriptors(11);
  EXPECT_EQ(read_descriptors().soft, before_.rlim_max);
}

TEST_F(DescriptorsTest, AnErrorNamesTheLimit) {
  set_soft(200);
  EXPECT_THAT(error_text(EMFILE),
              AllOf(HasSubstr("may have 200 descriptors open"), HasSubstr("RLIMIT_NOFILE")));
  EXPECT_THAT(error_text(ENFILE), HasSubstr("fs.file-max"));
  EXPECT_EQ(error_text(ENOENT), "No such file or directory");
}

}  // namespace
}  // namespace nzcl::verbs

// Tests the files of libfabric's shm in /dev/shm: that their memory is there before it is used, that only
// this user can open them, and that members find out whether they see the same ones.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

#include "nzcl/error.h"
#include "verbs/ofi/shm_files.h"
#include "verbs/ofi/shm_room.h"
#include "verbs/ofi/shm_trial.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ofi {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

struct stat about(const std::string& name) {
  struct stat file {};
  EXPECT_EQ(::stat(("/dev/shm/" + name).c_str(), &file), 0) << name;
  return file;
}
std::size_t allocated(const std::string& name) {
  return static_cast<std::size_t>(about(name).st_blocks) * 512;
}

/// The files in /dev/shm that this process has made.
std::set<std::string> own_files() {
  std::set<std::string> all;
  const std::string own = "-" + std::to_string(::getpid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nzcl-") && name.find(own) != std::string::npos) all.insert(name);
  }
  return all;
}

TEST(ShmRoom, IsAllocatedAndGivenBackEndpointByEndpoint) {
  std::string name;
  {
    ShmRoom room(2);
    name = room.name();
    EXPECT_EQ(allocated(name), 2 * kShmEndpointBytes);
    EXPECT_EQ(about(name).st_mode & 07777u, 0600u);
    room.hand_over();
    EXPECT_EQ(allocated(name), kShmEndpointBytes);
    room.hand_over();
    EXPECT_EQ(allocated(name), 0u);
  }
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/" + name));
}

TEST(ShmRoom, WhereThereIsNoneTheErrorNamesFolderAndSizesAndNothingIsLeft) {
  const auto space = std::filesystem::space("/dev/shm");
  if (space.capacity == 0) GTEST_SKIP() << "/dev/shm has no limit here";
  const auto before = own_files();
  try {
    const ShmRoom room(space.capacity / kShmEndpointBytes + 1);
    FAIL() << "there cannot be so much room";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unavailable);
    EXPECT_THAT(e.what(),
                AllOf(ContainsRegex("need [0-9]+ MiB in /dev/shm: No space left on device"),
                      HasSubstr("/dev/shm has " + std::to_string(space.capacity >> 20) + " MiB, of which"),
                      HasSubstr("NZCL_TRANSPORT=shm")));
  }
  EXPECT_EQ(own_files(), before);
}

TEST(ShmTrial, SucceedsWithinOnePidNamespaceAndFolder) {
  ShmTrial own(std::make_shared<ShmRoom>(1)), peer(std::make_shared<ShmRoom>(1));
  EXPECT_EQ(own.try_peer(peer.offer()), "");
  EXPECT_EQ(peer.try_peer(own.offer()), "");
}

TEST(ShmTrial, SaysWhatIsNotShared) {
  const auto room = std::make_shared<ShmRoom>(1);
  ShmTrial own(std::make_shared<ShmRoom>(1));
  const std::string offer = ShmTrial(room).offer();
  std::string changed = offer;
  changed[0] = static_cast<char>(~changed[0]);
  EXPECT_THAT(own.try_peer(changed), HasSubstr("is not the peer's file"));
  changed = offer;
  changed[8] = static_cast<char>(~changed[8]);
  EXPECT_THAT(own.try_peer(changed), HasSubstr("another pid namespace"));
  EXPECT_THAT(own.try_peer(offer + "x"), HasSubstr("another /dev/shm"));
}

TEST(ShmTrial, ANameOutsideOfTheFolderIsNotOpened) {
  ShmTrial own(std::make_shared<ShmRoom>(1));
  const std::string start = own.offer().substr(0, 16);
  for (const char* name : {"", "nzcl-/../../etc/passwd", "another-file"})
    EXPECT_THAT(own.try_peer(start + name), testing::Not(testing::IsEmpty())) << name;
}

TEST(ShmFiles, MoreMembersThanLibfabricJoinsAreRefused) {
  ShmFiles files;
  EXPECT_THROW(files.begin_trial({.self = 0, .peers = 257, .endpoints = 1}), Error);
  EXPECT_NE(files.begin_trial({.self = 0, .peers = 256, .endpoints = 1}), nullptr);
}

class ShmEndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    DeviceOptions options;
    options.transport = "libfabric-shm";
    try {
      device = open_device(options);
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  std::shared_ptr<Device> device;
};

TEST_F(ShmEndpointTest, AllMemoryOfAnEndpointIsThereFromTheBeginningAndForThisUserOnly) {
  const auto before = own_files();
  const auto endpoint = device->open_endpoint({.self = 0, .peers = 2, .arrivals = 8});
  std::set<std::string> files = own_files();
  for (const std::string& name : before) files.erase(name);
  ASSERT_EQ(files.size(), 1u) << "the endpoint's file, and none of what kept its room";
  const auto file = about(*files.begin());
  EXPECT_EQ(file.st_mode & 07777u, 0600u);
  EXPECT_GE(allocated(*files.begin()), static_cast<std::size_t>(file.st_size));
  EXPECT_LE(static_cast<std::size_t>(file.st_size), kShmEndpointBytes);
}

TEST_F(ShmEndpointTest, FilesThatOthersMayOpenOrHaveMadeAreRefused) {
  const std::string name = ShmRoom(1).name();  // which is not there any more
  const std::string path = "/dev/shm/" + name;
  EXPECT_THROW(fill_endpoint_file(name), Error);
  ASSERT_EQ(::symlink("/dev/null", path.c_str()), 0);
  EXPECT_THROW(fill_endpoint_file(name), Error);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  const Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), 8192), 0);
  fill_endpoint_file(name);
  EXPECT_EQ(allocated(name), 8192u);
  ASSERT_EQ(::fchmod(file.get(), 0620), 0);
  try {
    fill_endpoint_file(name);
    ADD_FAILURE() << "the group may write it";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr(path), HasSubstr("mode 620")));
  }
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace nzcl::verbs::ofi

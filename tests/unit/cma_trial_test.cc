// Tests how members of one host find out whether they may write each other's memory.
#include "verbs/cma/trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "verbs/cma/device.h"

namespace nzcl::verbs::cma {
namespace {

using testing::HasSubstr;

class CmaTrialTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto info = probe(); !info.available) GTEST_SKIP() << info.detail;
  }
  /// The peer's offer with another value at the place of one of its fields.
  template <typename T>
  std::string changed(std::size_t at, T value) const {
    std::string offer = peer.offer();
    std::memcpy(offer.data() + at, &value, sizeof value);
    return offer;
  }
  static constexpr std::size_t kNonceAt = 0, kAddressAt = 8, kNamespaceAt = 16, kPidAt = 24, kFdAt = 28;

  CmaTrial own{{.self = 0, .peers = 2, .endpoints = 1}}, peer{{.self = 1, .peers = 2, .endpoints = 1}};
};

TEST_F(CmaTrialTest, SucceedsBetweenMembersThatMayWriteEachOther) {
  EXPECT_EQ(own.try_peer(peer.offer()), "");
  EXPECT_EQ(peer.try_peer(own.offer()), "");
  EXPECT_EQ(own.try_peer(peer.offer()), "");
}

TEST_F(CmaTrialTest, AnotherProcessWithTheSameIdIsNotThePeer) {
  EXPECT_THAT(own.try_peer(changed(kNonceAt, std::uint64_t{4711})), HasSubstr("another one here"));
  EXPECT_THAT(own.try_peer(changed(kFdAt, std::int32_t{0})), HasSubstr("another one here"));
  EXPECT_THAT(own.try_peer(changed(kFdAt, std::int32_t{9999})), HasSubstr("Bad file descriptor"));
}

TEST_F(CmaTrialTest, ProcessIdsOfAnotherNamespaceAreNotLookedFor) {
  EXPECT_THAT(own.try_peer(changed(kNamespaceAt, std::uint64_t{4711})), HasSubstr("another pid namespace"));
}

TEST_F(CmaTrialTest, AProcessThatCannotBeFoundIsNamed) {
  EXPECT_THAT(own.try_peer(changed(kPidAt, std::int32_t{0x3fffffff})), HasSubstr("process 1073741823"));
}

TEST_F(CmaTrialTest, MemoryThatCannotBeWrittenIsNotTaken) {
  EXPECT_THAT(own.try_peer(changed(kAddressAt, std::uint64_t{0})), HasSubstr("Bad address"));
}

TEST_F(CmaTrialTest, WhatDoesNotArriveIsNoticed) {
  std::uint64_t elsewhere[2] = {};
  EXPECT_THAT(own.try_peer(changed(kAddressAt, reinterpret_cast<std::uint64_t>(elsewhere) - 8)),
              HasSubstr("did not arrive"));
}

TEST_F(CmaTrialTest, SomethingElseThanAnOfferIsRefused) {
  EXPECT_THAT(own.try_peer(""), HasSubstr("wrong length"));
  EXPECT_THAT(own.try_peer(peer.offer() + "x"), HasSubstr("wrong length"));
}

TEST(SharedMemory, OnlyItsOwnerMayOpenItAndNobodyMayChangeItsSize) {
  const Fd memory = segment::make_memory_fd(8192);
  struct stat about {};
  ASSERT_EQ(::fstat(memory.get(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777u, 0600u);
  for (const off_t bytes : {4096, 16384}) {
    EXPECT_EQ(::ftruncate(memory.get(), bytes), -1);
    EXPECT_EQ(errno, EPERM);
  }
}

}  // namespace
}  // namespace nzcl::verbs::cma

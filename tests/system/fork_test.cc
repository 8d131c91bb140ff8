// Processes that fork while they have a communicator: what the child may do with it, and what the parent does
// not notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "tests/system/ranks.h"

namespace nzcl::test {
namespace {

using testing::Each;

/// Runs `body` in a child process, which is killed after 5 s. Returns the child's exit status, which is what
/// `body` returns, or the negative number of the signal that ended it.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool is_refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.code() == ErrorCode::invalid_usage &&
           std::string(e.what()).find("this communicator belongs to process") != std::string::npos;
  }
  return false;
}

class ForkTest : public testing::TestWithParam<std::string> {
 protected:
  /// Rank 0 forks a child that does this and returns 0 if all is well. Afterwards the ranks go on with the
  /// communicator as if nothing had happened.
  void run(
      const std::function<int(Communicator&, RegisteredBuffer&, const AllreduceRequest&, Work&)>& child) {
    Setting setting{.transport = GetParam(), .ranks = 2, .options = {}};
    setting.options.pin = Pinning::off;
    setting.options.log_level = LogLevel::off;
    setting.options.timeout_s = 10;
    EXPECT_THAT(run_ranks(setting,
                          [&](Communicator& c) {
                            std::vector<float> data(100000, 1.0f);
                            auto handle = c.register_buffer(data.data(), data.size() * 4);
                            const AllreduceRequest request{
                                .input = data.data(), .output = data.data(), .count = data.size()};
                            Work work = c.allreduce(request);
                            work.wait();
                            if (c.rank() == 0) {
                              EXPECT_EQ(in_child([&] { return child(c, handle, request, work); }), 0);
                            }
                            c.allreduce(request).wait();
                            EXPECT_EQ(std::count(data.begin(), data.end(), 4.0f), 100000);
                          }),
                Each(""));
  }
};

TEST_P(ForkTest, AChildIsRefusedByName) {
  run([](Communicator& c, RegisteredBuffer&, const AllreduceRequest& request, Work& work) {
    int status = 0;
    if (!is_refused([&] { (void)c.allreduce(request); })) status |= 1;
    if (!is_refused([&] { c.barrier(); }) || !is_refused([&] { (void)c.split(0); })) status |= 2;
    if (!is_refused([&] { (void)c.register_buffer(request.output, 4); })) status |= 4;
    if (!is_refused([&] { c.abort("child"); })) status |= 8;
    if (!is_refused([&] { work.wait(); })) status |= 16;
    if (!is_refused([&] { (void)work.test(); })) status |= 32;
    return status;
  });
}

TEST_P(ForkTest, AChildMayDestroyWhatItInherited) {
  run([](Communicator& c, RegisteredBuffer& handle, const AllreduceRequest&, Work& work) {
    { const RegisteredBuffer gone = std::move(handle); }
    work = {};
    { const Communicator gone = std::move(c); }
    return 0;
  });
}

TEST_P(ForkTest, AChildThatWritesItsCopiesDisturbsNobody) {
  run([](Communicator&, RegisteredBuffer& handle, const AllreduceRequest&, Work&) {
    // After a fork, parent and child share each page until one of them writes to it. Devices must then go on
    // with the parent's page.
    std::fill(handle.bytes().begin(), handle.bytes().end(), std::byte{9});
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, ForkTest, testing::Values("loopback", "cma", "shm", "tcp"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace nzcl::test

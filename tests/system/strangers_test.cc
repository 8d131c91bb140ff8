// Connections to and from processes that do not know the secret of the job. They learn nothing, and cannot
// keep members out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio.hpp>
#include <asio/ssl.hpp>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/bootstrap/control.h"
#include "runtime/bootstrap/file_meeting.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/local.h"
#include "runtime/bootstrap/secure_stream.h"
#include "runtime/bootstrap/stream_threads.h"
#include "tests/system/meeting.h"
#include "verbs/descriptors.h"

namespace nzcl::bootstrap {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Context = std::unique_ptr<asio::ssl::context>;

/// Makes the context use a self-signed certificate for "localhost".
void use_own_certificate(SSL_CTX* context) {
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(EVP_EC_gen("P-256"), ::EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&::X509_free)> certificate(X509_new(), ::X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"),
                             -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  ASSERT_EQ(SSL_CTX_use_certificate(context, certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context, key.get()), 1);
}

Context certificate_context() {
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tlsv13);
  use_own_certificate(context->native_handle());
  return context;
}

/// Reads everything that the other side sends until it closes the connection.
template <typename Stream>
std::string read_all(Stream& stream) {
  std::string received;
  asio::error_code error;
  asio::read(stream, asio::dynamic_buffer(received), error);
  return received;
}

/// Listens in member 0's stead, and collects what the members that connect tell it.
class ImpostorHub {
 public:
  /// Without a context its connections are not encrypted.
  explicit ImpostorHub(Context context)
      : context_(std::move(context)),
        acceptor_(io_, {asio::ip::address_v4::loopback(), 0}),
        thread_([this] { serve(); }) {}
  int port() const { return acceptor_.local_endpoint().port(); }
  std::string received() {
    thread_.join();
    return received_;
  }

 private:
  void serve() {
    tcp::socket socket = acceptor_.accept();
    if (!context_) {
      received_ = read_all(socket);
      return;
    }
    Stream stream(std::move(socket), *context_);
    SSL_set_session_id_context(stream.native_handle(), reinterpret_cast<const unsigned char*>("nzcl"), 4);
    asio::error_code error;
    stream.handshake(asio::ssl::stream_base::server, error);
    if (!error) received_ = read_all(stream);
  }
  const Context context_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::string received_;
  std::jthread thread_;
};

std::string error_of_member_at(int port) { return run({{1, 2}}, port, kShort, three_rounds).front(); }

TEST(ImpostorHub, WithACertificateIsToldNothing) {
  ImpostorHub impostor(certificate_context());
  EXPECT_THAT(error_of_member_at(impostor.port()), HasSubstr("does not know this job's secret"));
  EXPECT_EQ(impostor.received(), "");
}

TEST(ImpostorHub, WithAnotherKeyIsToldNothing) {
  ImpostorHub impostor(make_psk_context("another secret of a job"));
  EXPECT_THAT(error_of_member_at(impostor.port()), HasSubstr("does not know this job's secret"));
  EXPECT_EQ(impostor.received(), "");
}

TEST(ImpostorHub, WithACertificateAndAnotherKeyIsToldNothing) {
  auto context = make_psk_context("another secret of a job");
  use_own_certificate(context->native_handle());
  ImpostorHub impostor(std::move(context));
  EXPECT_THAT(error_of_member_at(impostor.port()), HasSubstr("does not know this job's secret"));
  EXPECT_EQ(impostor.received(), "");
}

TEST(ImpostorHub, InPlainTextSeesNoHello) {
  ImpostorHub impostor(nullptr);
  EXPECT_THAT(error_of_member_at(impostor.port()), HasSubstr("rank 0 was not reached"));
  EXPECT_THAT(impostor.received(), Not(HasSubstr("session")));
}

TEST(SilentHub, WithTheRightKeyIsGivenUpAtTheDeadline) {
  ImpostorHub silent(make_psk_context("the secret of the job"));
  EXPECT_THAT(error_of_member_at(silent.port()), HasSubstr("rank 0 was not reached at the test"));
  EXPECT_THAT(silent.received(), HasSubstr("session"));
}

/// Connects to the hub, when it listens, and sends a valid hello. `error` is set if the hub denies the key.
void greet_hub(Stream& stream, int port, asio::error_code& error) {
  error = asio::error::not_connected;
  for (const auto deadline = in(kLong); error && Clock::now() < deadline;) {
    asio::error_code closed;
    stream.lowest_layer().close(closed);
    stream.lowest_layer().connect({asio::ip::address_v4::loopback(), static_cast<unsigned short>(port)},
                                  error);
  }
  stream.handshake(asio::ssl::stream_base::client, error);
  if (error) return;
  const std::string hello = R"({"version":)" + std::to_string(kMeetingVersion) +
                            R"(,"session":"s","index":1,"size":2,"who":"an impostor"})";
  const auto bytes = static_cast<std::uint32_t>(hello.size());
  asio::write(stream, std::array{asio::buffer(&bytes, sizeof bytes), asio::buffer(hello)}, error);
}

/// The hub's answer to a valid hello that is sent with `context`.
std::string answer_of_hub(int port, asio::ssl::context& context) {
  asio::io_context io;
  Stream stream(io, context);
  asio::error_code error;
  greet_hub(stream, port, error);
  return error ? "" : read_all(stream);
}

TEST(ImpostorMember, IsToldNothingAndDisturbsNobody) {
  std::vector<Context> contexts;
  contexts.push_back(certificate_context());
  contexts.push_back(std::make_unique<asio::ssl::context>(asio::ssl::context::tlsv12_client));
  contexts.push_back(make_psk_context("another secret of a job"));
  for (const Context& context : contexts) {
    const int port = free_port();
    std::vector<std::string> hub;
    std::jthread thread([&] { hub = run({{0, 2}}, port, kLong, three_rounds); });
    EXPECT_EQ(answer_of_hub(port, *context), "");
    EXPECT_EQ(run({{1, 2}}, port, kLong, three_rounds).front(), "");
    thread.join();
    EXPECT_EQ(hub.front(), "");
  }
}

/// Connections to a port that never send anything. The port may not be listened on yet.
class SilentStrangers {
 public:
  SilentStrangers(int port, int count, std::chrono::milliseconds patience = kLong) {
    for (int i = 0; i < count; ++i) sockets_.push_back(call(port, patience));
  }
  /// The number of connections that the other side has closed. Waits until there are `expected`, but not for
  /// long.
  int closed(int expected) {
    for (const auto limit = in(std::chrono::milliseconds(5000)); Clock::now() < limit;) {
      if (count_closed() >= expected) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return count_closed();
  }

 private:
  std::unique_ptr<tcp::socket> call(int port, std::chrono::milliseconds patience) {
    auto socket = std::make_unique<tcp::socket>(io_);
    asio::error_code error = asio::error::not_connected;
    for (const auto limit = in(patience); error && Clock::now() < limit;) {
      asio::error_code ignored;
      socket->close(ignored);
      socket->connect({asio::ip::address_v4::loopback(), static_cast<unsigned short>(port)}, error);
    }
    if (!error) socket->non_blocking(true);
    return socket;
  }
  int count_closed() {
    int count = 0;
    for (const auto& socket : sockets_) {
      char byte = 0;
      asio::error_code error;
      socket->read_some(asio::buffer(&byte, 1), error);
      if (error && error != asio::error::would_block) ++count;
    }
    return count;
  }
  asio::io_context io_;
  std::vector<std::unique_ptr<tcp::socket>> sockets_;
};

TEST(Flood, OnlySoManyStrangersAreKeptAndAMemberStillGetsIn) {
  constexpr int kKept = 256, kTooMany = 100;
  const int port = free_port();
  std::vector<std::string> hub;
  std::jthread thread([&] { hub = run({{0, 2}}, port, kLong, three_rounds); });
  SilentStrangers strangers(port, kKept + kTooMany);
  EXPECT_EQ(strangers.closed(kTooMany), kTooMany);
  EXPECT_EQ(run({{1, 2}}, port, kLong, three_rounds).front(), "");
  thread.join();
  EXPECT_EQ(hub.front(), "");
}

TEST(Flood, StrangersDoNotKeepOutTheManyMembersOfALargeMeeting) {
  constexpr int kMembers = static_cast<int>(kStreamsPerThread) + 2, kStrangers = 300;
  verbs::make_room_for_descriptors(6 * kMembers + 2 * kStrangers);  // all of them are in this process
  const int port = free_port();
  std::vector<std::string> hub;
  std::jthread thread([&] { hub = run({{0, kMembers}}, port, kForMany, three_rounds); });
  SilentStrangers strangers(port, kStrangers);
  std::vector<Member> others;
  for (int i = 1; i < kMembers; ++i) others.push_back({i, kMembers});
  EXPECT_THAT(run(others, port, kForMany, three_rounds), testing::Each(""));
  thread.join();
  EXPECT_EQ(hub.front(), "");
  EXPECT_EQ(strangers.closed(kStrangers), kStrangers);
}

TEST(Flood, WithoutEndKeepsNoMemberOut) {
  const int port = free_port();
  std::jthread flood([port](std::stop_token stop) {
    std::deque<SilentStrangers> all;
    while (!stop.stop_requested()) {
      all.emplace_back(port, 1, std::chrono::milliseconds(100));
      if (all.size() > 1000) all.pop_front();
    }
  });
  std::vector<std::string> hub;
  std::jthread thread([&] { hub = run({{0, 2}}, port, kLong, three_rounds); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(run({{1, 2}}, port, kLong, three_rounds).front(), "");
  flood.request_stop();
  thread.join();
  EXPECT_EQ(hub.front(), "");
}

/// Runs `work` in a child process that may open only so many descriptors.
pid_t with_few_descriptors(rlim_t count, const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const rlimit few{count, count};
  ::setrlimit(RLIMIT_NOFILE, &few);
  ::_exit(work() ? 0 : 1);
}

bool ended_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(FewDescriptors, AMemberGetsInAfterStrangersHaveTakenThemAll) {
  const int port = free_port();
  const pid_t hub = with_few_descriptors(32, [&] {
    return run({{0, 2}}, port, kLong, three_rounds).front().empty();
  });
  const SilentStrangers strangers(port, 100);
  EXPECT_EQ(run({{1, 2}}, port, std::chrono::milliseconds(5000), three_rounds).front(), "");
  EXPECT_TRUE(ended_well(hub));
}

TEST(FewDescriptors, ManyMembersGetInAfterStrangersHaveTakenThemAll) {
  // Just enough for a thread that the connections belong to.
  constexpr int kMembers = static_cast<int>(kStreamsPerThread) + 2;
  const int port = free_port();
  const pid_t hub = with_few_descriptors(kMembers + 64 + 3, [&] {
    return run({{0, kMembers}}, port, kForMany, three_rounds).front().empty();
  });
  verbs::make_room_for_descriptors(6 * kMembers + 250);
  const SilentStrangers strangers(port, 250);
  std::vector<Member> others;
  for (int i = 1; i < kMembers; ++i) others.push_back({i, kMembers});
  EXPECT_THAT(run(others, port, kForMany, three_rounds), testing::Each(""));
  EXPECT_TRUE(ended_well(hub));
}

std::uint64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib << 10;
  }
  return 0;
}

/// Joins a meeting of two as rank 1, and leaves it after the header of a frame of so many bytes.
void announce(int port, std::uint32_t bytes) {
  const Context context = make_psk_context("the secret of the job");
  asio::io_context io;
  Stream stream(io, *context);
  asio::error_code error;
  greet_hub(stream, port, error);
  std::array<char, 6> welcome{};
  asio::read(stream, asio::buffer(welcome), error);
  EXPECT_EQ(welcome[4], 'W');
  asio::write(stream, asio::buffer(&bytes, sizeof bytes), error);
  stream.shutdown(error);
}

TEST(LargeFrames, TakeNoMemoryBeforeTheyCome) {
  const int port = free_port();
  const pid_t hub = ::fork();
  if (hub == 0) {
    const std::uint64_t before = peak_memory();
    const std::string error = run({{0, 2}}, port, kLong, three_rounds).front();
    const std::uint64_t grown = peak_memory() - before;
    std::cerr << error << "; the peak of memory grew by " << (grown >> 20) << " MiB\n";
    ::_exit(before > 0 && grown < 16 << 20 && error.find("left the meeting") != error.npos ? 0 : 1);
  }
  announce(port, kPartLimit);
  EXPECT_TRUE(ended_well(hub));
}

TEST(LargeFrames, ThatNoRoundHasRoomForAreRefused) {
  const int port = free_port();
  std::vector<std::string> hub;
  std::jthread thread([&] { hub = run({{0, 2}}, port, kLong, three_rounds); });
  announce(port, kGatherHeadLimit + kPartLimit + 1);
  thread.join();
  EXPECT_THAT(hub.front(),
              AllOf(HasSubstr("left the meeting"), HasSubstr("at most"), HasSubstr("are allowed")));
}

/// A meeting that tells the test where member 0 listens, as an eavesdropper might learn it.
class Eavesdropper final : public Meeting {
 public:
  Eavesdropper(std::unique_ptr<Meeting> inner, std::function<void(int port)> tell)
      : Meeting(inner->settings()), inner_(std::move(inner)), tell_(std::move(tell)) {}
  std::variant<HubPlace, NotYet> place(Deadline deadline) override { return inner_->place(deadline); }
  void publish(int port, Deadline deadline) override {
    tell_(port);
    inner_->publish(port, deadline);
  }
  void all_have_come() override { inner_->all_have_come(); }
  std::variant<MeetingPoint, NotYet> find(Deadline deadline) override { return inner_->find(deadline); }

 private:
  const std::unique_ptr<Meeting> inner_;
  const std::function<void(int)> tell_;
};

bool reaches(const char* address, int port) {
  asio::io_context io;
  tcp::socket socket(io);
  asio::error_code error;
  socket.connect({asio::ip::make_address(address), static_cast<unsigned short>(port)}, error);
  return !error;
}

// 127.0.0.2 stands for every other address of this host, because not every machine has another one.
void expect_hub_at(const std::vector<std::unique_ptr<Meeting>*>& members, bool one_host) {
  std::vector<std::jthread> threads;
  for (auto* member : members) {
    threads.emplace_back([member, one_host] {
      Eavesdropper meeting(std::move(*member), [&](int port) {
        EXPECT_TRUE(reaches("127.0.0.1", port));
        EXPECT_EQ(reaches("127.0.0.2", port), !one_host);
      });
      EXPECT_TRUE(ControlPlane::join(meeting, in(kLong))->leave(in(kLong)));
    });
  }
}

TEST(HubOfOneHost, ListensOnOneLoopbackAddressOnly) {
  for (const bool one_host : {true, false}) {
    const std::string path = testing::TempDir() + "nzcl_one_host_" + std::to_string(::getpid());
    auto hub = make_file_meeting(settings(0, 2), path, one_host);
    auto other = make_file_meeting(settings(1, 2), path, one_host);
    expect_hub_at({&hub, &other}, one_host);
  }
}

TEST(HubOfOneHost, IsFoundOutByAnExchange) {
  const auto local = std::make_shared<LocalMeeting>(2);
  for (const bool one_host : {true, false}) {
    auto hub = make_exchange_meeting(settings(0, 2), local_allgather(local, 0));
    auto other = make_exchange_meeting(settings(1, 2), [=, inner = local_allgather(local, 1), first = true](
                                                           std::string_view mine, Deadline until) mutable {
      const bool elsewhere = std::exchange(first, false) && !one_host;
      return inner(elsewhere ? "Manother host" : std::string(mine), until);
    });
    expect_hub_at({&hub, &other}, one_host);
  }
}

}  // namespace
}  // namespace nzcl::bootstrap

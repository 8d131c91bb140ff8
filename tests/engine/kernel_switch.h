// The program of nzcl_switch without a network: the kernel runs it on frames that a test makes.
#pragma once

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sched.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "runtime/switch/xdp/kernel_switch.h"
#include "tests/engine/switch_tensor.h"
#include "tests/engine/switch_watched.h"

namespace nzcl::engine::slot_pool::test {

/// One pool in the kernel, which a rack can have as its aggregator. Rank r has the
/// address 10.0.0.(r+1):5000+r, and its packets come in at an interface of their own; the aggregator
/// has 10.0.0.100:7000.
class KernelServer final : public simulation::RackAggregator {
 public:
  /// Returns nullptr where this is not possible, and says why.
  static std::unique_ptr<KernelServer> make(const Pool& pool, std::string& why_not) {
    // A namespace for this process alone, which goes away with it.
    if (::unshare(CLONE_NEWNET) != 0) return why_not = "not allowed to make network namespaces", nullptr;
    for (int r = 0; r < pool.workers; ++r) {
      const std::string command =
          fmt::format("ip link add port{} type veth peer name end{} 2>/dev/null", r, r);
      if (std::system(command.c_str()) != 0) return why_not = "not allowed to make veth interfaces", nullptr;
    }
    try {
      return std::unique_ptr<KernelServer>(new KernelServer(pool));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unavailable) throw;
      why_not = e.what();
      return nullptr;
    }
  }

  struct Frame {
    std::vector<std::byte> bytes;
    unsigned verdict = 0;  // XDP_TX and so on
  };
  /// Runs the program on a frame with this packet as if it had come from a rank, at the interface of rank
  /// `at`.
  Frame run(int rank, std::span<const std::byte> packet, int at) const {
    return run_frame(frame(rank, packet), at);
  }
  Frame run_frame(const std::vector<std::byte>& in, int at) const {
    Frame out{std::vector<std::byte>(4096), 0};
    xdp_md context{};
    context.data_end = static_cast<std::uint32_t>(in.size());
    context.ingress_ifindex = ::if_nametoindex(fmt::format("port{}", at).c_str());
    LIBBPF_OPTS(bpf_test_run_opts, options);
    options.data_in = in.data();
    options.data_size_in = static_cast<std::uint32_t>(in.size());
    options.data_out = out.bytes.data();
    options.data_size_out = static_cast<std::uint32_t>(out.bytes.size());
    options.ctx_in = &context;
    options.ctx_size_in = sizeof context;
    options.repeat = 1;
    const int error = bpf_prog_test_run_opts(in_kernel_->program(), &options);
    EXPECT_EQ(error, 0) << "the kernel did not run the program on " << in.size() << " bytes";
    out.bytes.resize(options.data_size_out);
    out.verdict = options.retval;
    return out;
  }
  /// What the program sends in answer to a packet from a rank. Whatever it sends must be well addressed.
  std::vector<Sent> answers_to(int rank, std::span<const std::byte> packet) const {
    const Frame out = run(rank, packet, rank);
    if (out.verdict == XDP_DROP) return {};
    EXPECT_TRUE(out.verdict == XDP_TX || out.verdict == XDP_REDIRECT) << out.verdict;
    expect_addressed(out.bytes, rank);
    return {{out.verdict == XDP_TX ? rank : kToAll, {out.bytes.begin() + 42, out.bytes.end()}}};
  }

  static std::vector<std::byte> frame(int rank, std::span<const std::byte> packet) {
    std::vector<std::byte> frame(42 + packet.size());
    frame[0] = frame[6] = std::byte{2};  // locally administered
    frame[11] = static_cast<std::byte>(rank);
    frame[12] = std::byte{8};  // IPv4
    iphdr ip{};
    ip.version = 4;
    ip.ihl = 5;
    ip.protocol = IPPROTO_UDP;
    ip.ttl = 9;
    ip.tot_len = htons(static_cast<std::uint16_t>(28 + packet.size()));
    ::inet_pton(AF_INET, fmt::format("10.0.0.{}", rank + 1).c_str(), &ip.saddr);
    ::inet_pton(AF_INET, "10.0.0.100", &ip.daddr);
    udphdr udp{};
    udp.source = htons(static_cast<std::uint16_t>(5000 + rank));
    udp.dest = htons(7000);
    udp.len = htons(static_cast<std::uint16_t>(8 + packet.size()));
    std::memcpy(&frame[14], &ip, sizeof ip);
    std::memcpy(&frame[34], &udp, sizeof udp);
    std::copy(packet.begin(), packet.end(), frame.begin() + 42);
    return frame;
  }

  void receive(int rank, std::span<const std::byte> packet) override {
    for (Sent& answer : answers_to(rank, packet)) kept_.push(std::move(answer));
  }
  std::optional<Out> front() override { return kept_.front(); }
  void pop() override { kept_.pop(); }
  std::string failure() const override { return pool_->failure(); }
  std::string notice() const { return pool_->notice(); }
  /// Ends the pool, and begins another one with the same address, which gets the same number.
  void close_pool() { pool_.reset(); }
  void open_pool() { pool_ = in_kernel_->open(setting_, "10.0.0.100:7000", ranks_); }
  std::uint64_t completed() const override { return counts().completed; }
  std::uint64_t refused() const override { return counts().refused; }
  tools::xdp::Counts counts() const { return in_kernel_->counts(); }

 private:
  explicit KernelServer(const Pool& pool)
      : setting_(pool),
        in_kernel_(tools::xdp::KernelSwitch::load({.interfaces = {}, .slots = pool.slots, .pools = 2})) {
    for (int r = 0; r < pool.workers; ++r) ranks_.push_back(fmt::format("10.0.0.{}:{}", r + 1, 5000 + r));
    open_pool();
  }

  static void expect_addressed(const std::vector<std::byte>& bytes, int rank) {
    iphdr ip;
    udphdr udp;
    std::memcpy(&ip, &bytes[14], sizeof ip);
    std::memcpy(&udp, &bytes[34], sizeof udp);
    EXPECT_EQ(ntohl(ip.daddr), 0x0a000001u + static_cast<unsigned>(rank));
    EXPECT_EQ(ntohl(ip.saddr), 0x0a000064u);
    EXPECT_EQ(ntohs(udp.dest), 5000 + rank);
    EXPECT_EQ(ntohs(udp.source), 7000);
    EXPECT_EQ(udp.check, 0);
    EXPECT_EQ(ntohs(ip.tot_len), bytes.size() - 14);
    EXPECT_EQ(ntohs(udp.len), bytes.size() - 34);
    EXPECT_EQ(static_cast<int>(bytes[5]), rank) << "the frame goes back to where it came from";
    std::uint32_t sum = 0;
    for (std::size_t i = 14; i < 34; i += 2)
      sum += static_cast<std::uint32_t>(bytes[i]) << 8 | static_cast<std::uint32_t>(bytes[i + 1]);
    EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffu) << "checksum of the IPv4 header";
  }

  const Pool setting_;
  std::vector<std::string> ranks_;
  const std::shared_ptr<tools::xdp::KernelSwitch> in_kernel_;
  std::unique_ptr<KernelPool> pool_;
  KeptAnswers kept_;
};

}  // namespace nzcl::engine::slot_pool::test

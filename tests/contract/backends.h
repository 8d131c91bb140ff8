// The transports that the contract tests run against. A new backend adds an entry to all_backends().
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "verbs/loopback/network.h"
#include "verbs/mixed/device.h"
#include "verbs/transport.h"

namespace nzcl::verbs::test {

using Devices = std::vector<std::shared_ptr<Device>>;

struct Backend {
  std::string name;
  /// Opens this many devices whose endpoints can reach each other. Each endpoint has a device of its own, as
  /// in separate processes. Throws Error{unavailable} if the backend cannot run; the tests are then skipped
  /// with the text of the error.
  std::function<Devices(std::size_t)> open;

  friend std::ostream& operator<<(std::ostream& out, const Backend& backend) { return out << backend.name; }
};

inline Backend loopback(const std::string& name, const LoopbackOptions& options) {
  return {name, [options](std::size_t count) {
            LoopbackNetwork network;
            Devices devices;
            while (devices.size() < count) devices.push_back(network.device(options));
            return devices;
          }};
}

/// A transport that open_device() knows. `name` is needed if the name of the transport cannot be part of a
/// test name. The devices of this host are used in turn.
inline Backend by_name(const std::string& transport, const std::string& name = "",
                       const DeviceOptions& base = {}) {
  return {name.empty() ? transport : name, [transport, base](std::size_t count) {
            Devices devices;
            while (devices.size() < count) {
              DeviceOptions options = base;
              options.transport = transport;
              options.local_rank = static_cast<int>(devices.size());
              devices.push_back(open_device(options));
            }
            return devices;
          }};
}

/// Devices that join those of two backends, each pair of endpoints by one of them.
inline Backend mixed(const Backend& between, const Backend& within) {
  return {"mixed_" + within.name + "_" + between.name, [between, within](std::size_t count) {
            Devices devices;
            const Devices network = between.open(count), host = within.open(count);
            for (std::size_t i = 0; i < count; ++i)
              devices.push_back(std::make_shared<mixed::MixedDevice>(network[i], host[i]));
            return devices;
          }};
}

inline std::vector<Backend> all_backends() {
  LoopbackOptions delayed;  // the contract must hold even if no write lands at once
  delayed.limits.ordered = delayed.limits.readable = true;
  delayed.faults.delay_polls = 5;
  delayed.faults.accept_at_most = 7;
  DeviceOptions rdma_cm, one_segment;
  rdma_cm.rdma_cm = true;
  one_segment.max_segments = 1;
  return {
      loopback("loopback", {}), loopback("loopback_delayed", delayed), by_name("cma"), by_name("shm"),
      by_name("libfabric-shm", "libfabric_shm"), by_name("tcp"), by_name("tcp;ofi_rxm", "tcp_ofi_rxm"),
      by_name("ibverbs"), by_name("ibverbs", "ibverbs_rdma_cm", rdma_cm),
      by_name("ibverbs", "ibverbs_one_segment", one_segment), by_name("verbs;ofi_rxm", "verbs_ofi_rxm"),
      mixed(by_name("tcp"), by_name("cma")), mixed(by_name("tcp"), by_name("shm")),
      mixed(by_name("tcp"), by_name("libfabric-shm", "libfabric_shm")),
      // Most tests write from endpoint 0 to 1, which are on one host. Here these go where the network does.
      mixed(by_name("cma"), by_name("tcp")),
      mixed(loopback("loopback_delayed", delayed), loopback("loopback", {})),
      mixed(by_name("ibverbs"), by_name("cma"))};
}

/// Opens the devices, or skips the test if the backend cannot run.
class ContractTest : public ::testing::TestWithParam<Backend> {
 protected:
  static constexpr std::size_t kMostEndpoints = 4;

  void SetUp() override {
    try {
      devices_ = GetParam().open(kMostEndpoints);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      GTEST_SKIP() << error.what();
    }
  }
  const Devices& devices() const { return devices_; }
  const Limits& limits() const { return devices_.front()->limits(); }

 private:
  Devices devices_;
};

inline std::string backend_name(const ::testing::TestParamInfo<Backend>& info) { return info.param.name; }

}  // namespace nzcl::verbs::test

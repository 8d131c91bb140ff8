#include "runtime/switch/xdp/kernel_switch.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "nzcl/error.h"
#include "runtime/base/list_text.h"
#include "runtime/switch/xdp/handles.h"
#include "runtime/switch/xdp/interfaces.h"
#include "runtime/switch/xdp/layout.h"
#include "runtime/switch/xdp/pool_table.h"

namespace nzcl::tools::xdp {
namespace {

/// The oldest kernel that has all that the program uses.
constexpr int kLeastKernel[] = {5, 18};

bool kernel_is_too_old() {
  utsname name{};
  int major = 0, minor = 0;
  if (::uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &major, &minor) != 2) return false;
  return std::pair(major, minor) < std::pair(kLeastKernel[0], kLeastKernel[1]);
}

/// What the kernel's verifier has written about a program. Only its end says why it was refused.
class VerifierLog {
 public:
  char* data() { return text_.get(); }
  std::size_t size() const { return kBytes; }
  std::string end() const {
    const std::string_view all(text_.get(), ::strnlen(text_.get(), kBytes));
    return std::string(all.substr(all.size() - std::min(all.size(), kShown)));
  }

 private:
  static constexpr std::size_t kBytes = 1 << 24, kShown = 1500;
  const std::unique_ptr<char[]> text_ = [] {
    auto text = std::make_unique_for_overwrite<char[]>(kBytes);
    text[0] = 0;
    return text;
  }();
};

/// Only what this machine forbids or lacks is "unavailable". A program that the verifier refuses is broken.
[[noreturn]] void fail_to_load(int error, const std::string& log) {
  if (error == EPERM)
    throw Error(ErrorCode::unavailable,
                "loading a program into the kernel is not permitted: it needs root, or the capabilities "
                "CAP_BPF and CAP_NET_ADMIN, in the first user namespace");
  if (error == ENOSYS)
    throw Error(ErrorCode::unavailable, "this kernel has no bpf(2): it was built without CONFIG_BPF_SYSCALL");
  if (kernel_is_too_old())
    throw Error(ErrorCode::unavailable,
                fmt::format("this kernel is too old for the program ({}): it needs Linux {}.{}",
                            std::strerror(error), kLeastKernel[0], kLeastKernel[1]));
  throw Error(ErrorCode::system, fmt::format("the kernel refuses the program: {}{}{}", std::strerror(error),
                                             log.empty() ? "" : "; its verifier says: ...", log));
}

Skeleton load_program(const Settings& s) {
  VerifierLog log;
  LIBBPF_OPTS(bpf_object_open_opts, options, .kernel_log_buf = log.data(), .kernel_log_size = log.size());
  Skeleton skeleton(switch_bpf__open_opts(&options));
  if (!skeleton) fail_to_load(errno, {});
  const auto resize = [](bpf_map* map, std::uint32_t entries) {
    if (const int error = bpf_map__set_max_entries(map, entries); error != 0) fail_to_load(-error, {});
  };
  resize(skeleton->maps.addresses, s.pools);
  resize(skeleton->maps.pools, s.pools);
  resize(skeleton->maps.states, s.pools);
  resize(skeleton->maps.ranks, s.pools * NZCL_MOST_RANKS);
  resize(skeleton->maps.homes, s.pools * NZCL_MOST_PORTS);
  resize(skeleton->maps.slots, s.pools * s.slots);
  skeleton->rodata->drop_one_of = s.drop_one_of;
  skeleton->rodata->broken = s.broken;
  if (const int error = switch_bpf__load(skeleton.get()); error != 0) fail_to_load(-error, log.end());
  return skeleton;
}

/// Attaches the program, and returns its place there and whether it is native.
std::pair<Descriptor, bool> attach(const Skeleton& skeleton, const Interface& interface, Mode mode) {
  const auto try_mode = [&](std::uint32_t flags) {
    LIBBPF_OPTS(bpf_link_create_opts, options, .flags = flags);
    return bpf_link_create(bpf_program__fd(skeleton->progs.nzcl_port), static_cast<int>(interface.index),
                           BPF_XDP, &options);
  };
  int fd = mode == Mode::generic ? -EOPNOTSUPP : try_mode(XDP_FLAGS_DRV_MODE);
  if (fd >= 0) return {Descriptor(fd), true};
  const int native_error = -fd;
  if (mode != Mode::native) fd = try_mode(XDP_FLAGS_SKB_MODE);
  if (fd >= 0) return {Descriptor(fd), false};
  throw Error(
      ErrorCode::system,
      fmt::format("the program cannot be attached to interface {}: {}{}", interface.name, std::strerror(-fd),
                  mode == Mode::native && native_error != EBUSY
                      ? "; a native one needs a driver that can, and on veth an MTU of at most 3506 at both "
                        "ends; --mode generic goes everywhere"
                      : "; is another XDP program there already (ip link shows it)?"));
}

class Loaded final : public KernelSwitch {
 public:
  explicit Loaded(const Settings& settings)
      : settings_(settings),
        skeleton_(load_program(settings)),
        statistics_(settings.times ? bpf_enable_stats(BPF_STATS_RUN_TIME) : -1),
        table_({.addresses = bpf_map__fd(skeleton_->maps.addresses),
                .pools = bpf_map__fd(skeleton_->maps.pools),
                .ranks = bpf_map__fd(skeleton_->maps.ranks),
                .slots = bpf_map__fd(skeleton_->maps.slots),
                .states = bpf_map__fd(skeleton_->maps.states)},
               settings.pools, settings.slots) {
    if (settings.times && statistics_.fd() < 0)
      throw Error(ErrorCode::unavailable,
                  fmt::format("this kernel does not measure how long programs run: {}",
                              std::strerror(-statistics_.fd())));
    for (const std::string& name : settings.interfaces) interfaces_.push_back(find_interface(name));
    fill_ports();
    for (const Interface& i : interfaces_) {
      auto [place, native] = attach(skeleton_, i, settings.mode);
      places_.push_back(std::move(place));
      append_item(description_, fmt::format("{} ({}, MTU {})", i.name, native ? "native" : "generic", i.mtu));
      mtu_ = std::min(mtu_, i.mtu);
    }
  }

  std::uint32_t slots() const override { return settings_.slots; }
  std::size_t max_bytes() const override { return mtu_ - 28; }  // headers of IPv4 and of UDP
  std::string interfaces() const override { return fmt::format("{}", fmt::join(settings_.interfaces, ", ")); }
  std::unique_ptr<engine::slot_pool::KernelPool> open(const engine::slot_pool::Pool& pool,
                                                      const std::string& address,
                                                      std::span<const std::string> ranks) override {
    return table_.open(pool, address, ranks);
  }
  std::string describe() const override { return description_; }
  int program() const override { return bpf_program__fd(skeleton_->progs.nzcl_port); }
  Counts counts() const override {
    return {.added = count(NZCL_ADDED),
            .completed = count(NZCL_COMPLETED),
            .answered = count(NZCL_ANSWERED),
            .waiting = count(NZCL_WAITING),
            .late = count(NZCL_LATE),
            .refused = count(NZCL_REFUSED),
            .not_whole = count(NZCL_NOT_WHOLE),
            .elsewhere = count(NZCL_ELSEWHERE),
            .moved = count(NZCL_MOVED),
            .stray = count(NZCL_STRAY),
            .run_time = run_time(skeleton_->progs.nzcl_port) + run_time(skeleton_->progs.nzcl_result)};
  }

 private:
  void fill_ports() {
    if (interfaces_.size() > NZCL_MOST_PORTS)
      throw Error(ErrorCode::unsupported, fmt::format("{} interfaces; at most {} are supported",
                                                      interfaces_.size(), static_cast<int>(NZCL_MOST_PORTS)));
    for (std::uint32_t i = 0; i < interfaces_.size(); ++i) {
      bpf_devmap_val value{};
      value.ifindex = interfaces_[i].index;
      value.bpf_prog.fd = bpf_program__fd(skeleton_->progs.nzcl_result);
      if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.ports), &i, &value, BPF_ANY) != 0)
        throw Error(ErrorCode::system, fmt::format("interface {} cannot be sent to by programs: {}",
                                                   interfaces_[i].name, std::strerror(errno)));
    }
  }
  std::uint64_t count(std::uint32_t what) const {
    std::vector<std::uint64_t> of_cpus(static_cast<std::size_t>(std::max(1, libbpf_num_possible_cpus())));
    if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.counts), &what, of_cpus.data()) != 0) return 0;
    return std::accumulate(of_cpus.begin(), of_cpus.end(), std::uint64_t{0});
  }

  static std::chrono::nanoseconds run_time(const bpf_program* program) {
    bpf_prog_info info{};
    __u32 bytes = sizeof info;
    if (bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &bytes) != 0) return {};
    return std::chrono::nanoseconds(info.run_time_ns);
  }

  const Settings settings_;
  const Skeleton skeleton_;
  const Descriptor statistics_;  // the kernel measures as long as it is open
  PoolTable table_;
  std::vector<Interface> interfaces_;
  std::string description_;
  std::size_t mtu_ = 65535;
  std::vector<Descriptor> places_;  // the last member: nothing may arrive when the others are gone
};

}  // namespace

std::shared_ptr<KernelSwitch> KernelSwitch::load(const Settings& settings) {
  return std::make_shared<Loaded>(settings);
}

void pass_everything(const std::string& interface) {
  const Interface where = find_interface(interface);
  const Skeleton skeleton = load_program({});
  const int error = bpf_xdp_attach(static_cast<int>(where.index), bpf_program__fd(skeleton->progs.nzcl_pass),
                                   XDP_FLAGS_DRV_MODE | XDP_FLAGS_UPDATE_IF_NOEXIST, nullptr);
  if (error == 0 || error == -EBUSY || error == -EEXIST) return;  // any program does
  throw Error(ErrorCode::system, fmt::format("the program cannot be attached to interface {}: {}", interface,
                                             std::strerror(-error)));
}

Possible is_possible() {
  libbpf_set_print(nullptr);  // the reason is told in this library's words
  try {
    load_program({.interfaces = {}, .slots = 1, .pools = 1});
    return {true, "the kernel takes the program; nzcl_switch loads it"};
  } catch (const Error& e) {
    return {false, e.what()};
  }
}

}  // namespace nzcl::tools::xdp

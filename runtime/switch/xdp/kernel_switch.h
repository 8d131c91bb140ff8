// The program in the kernel that sums the switch exchange's packets: loaded, attached to interfaces, and told
// about pools.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/switch/kernel_pools.h"

namespace nzcl::tools::xdp {

enum class Mode {
  automatic,  // native, if the interface's driver can
  native,
  generic,  // behind the kernel's making of a socket buffer: slower, but possible at every interface
};

struct Settings {
  std::vector<std::string> interfaces;
  Mode mode = Mode::automatic;
  std::uint32_t slots = 64;  // of each pool
  std::uint32_t pools = 16;  // at the same time; a communicator has two for each lane
  /// For tests: the program drops one of this many packets. 0: it drops none.
  std::uint32_t drop_one_of = 0;
  bool times = false;  // let the kernel measure how long the programs run, which slows every program down
  /// For tests: the program has a mistake that the kernel's verifier finds.
  bool broken = false;
};

struct Counts {
  std::uint64_t added = 0, completed = 0, answered = 0, waiting = 0, late = 0, refused = 0;
  std::uint64_t not_whole = 0, elsewhere = 0, moved = 0,
                stray = 0;              // enum nzcl_count says of each what it is
  std::chrono::nanoseconds run_time{};  // of the programs, on all cores; 0 without Settings::times
};

/// Owns the program and all that belongs to it. When it is destroyed, or its process dies, the kernel
/// detaches the program, and the interfaces are as before.
class KernelSwitch : public engine::slot_pool::KernelPools {
 public:
  /// Throws Error{unavailable, invalid_argument, system} with advice. "unavailable" means that this machine
  /// forbids it or cannot do it; a program that the kernel's verifier refuses is an error of the system.
  static std::shared_ptr<KernelSwitch> load(const Settings& settings);

  virtual Counts counts() const = 0;
  /// How the program was attached, for people: "port0 (native), port1 (generic)".
  virtual std::string describe() const = 0;
  /// The program, for tests that run it on packets of their own.
  virtual int program() const = 0;
};

/// Attaches a program to an interface that passes everything on, and leaves it there. Throws Error.
void pass_everything(const std::string& interface);

/// Says whether such a program can be loaded here, and if not, why.
struct Possible {
  bool yes = false;
  std::string detail;
};
Possible is_possible();

}  // namespace nzcl::tools::xdp

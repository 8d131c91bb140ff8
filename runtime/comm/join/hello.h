// How members introduce themselves, and what follows from it: the number of every member, which members share
// a host, and whether all agree on the options that shape the messages between them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nzcl/options.h"
#include "runtime/bootstrap/meeting.h"
#include "runtime/plan/membership.h"

namespace nzcl::comm {

using bootstrap::Role;

/// What a member says about itself. It is sent as JSON.
struct Hello {
  Role role = Role::worker;
  /// Rank, or number of the dedicated aggregator. -1 means that the order of the meeting gives the number.
  int index = 0;
  std::string host;     // equal on members that may be able to share memory
  std::string network;  // equal on members between which there is no network link
  /// Equal on members that may write each other's memory. Empty if nobody may write the memory of this one.
  std::string process_space;
  std::string host_name;          // for error messages
  int pid = 0;                    // for error messages
  int lanes = 0;                  // the number that this member's options ask for; 0: chosen from the cores
  int cores = 1;                  // how many cores the process may use
  std::uint64_t cache_bytes = 0;  // second-level cache of a core; 0: unknown
  /// The hardware threads that the process may use. Members of a host with the same list share the cores.
  std::string cpus;
  bool may_have_gpus = false;  // whether there may be memory of a GPU in the process
  Options options;             // only options that must be equal on all members are sent

  std::string encode() const;
  /// Throws Error{mismatch} for a hello of another version, and for one that is not valid.
  static Hello decode(const std::string& text);
};

/// The hello of this process. The caller adds cores, cache, hardware threads and whether there may be GPUs.
Hello make_hello(const Options& options, Role role, int index);

/// Works out the membership from the hellos of all members, ordered by position in the meeting. Throws
/// Error{mismatch} that says which members disagree about what.
engine::Membership membership_of(const std::vector<Hello>& hellos, int own_position);

}  // namespace nzcl::comm

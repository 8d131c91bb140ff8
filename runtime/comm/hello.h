// What members tell each other first, and what follows from it: who is who, who shares a host, and that all
// agree on everything that shapes the wire.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nzcl/options.h"
#include "runtime/bootstrap/bootstrap.h"
#include "runtime/engine/members.h"

namespace nzcl::comm {

using bootstrap::Role;

struct Hello {
  Role role = Role::worker;
  int index = 0;     // rank, or number of the dedicated aggregator; -1: numbered by the order of the meeting
  std::string host;  // equal on members that can share memory
  std::string network;        // equal on members that no link separates
  std::string process_space;  // equal on members that may write each other's memory; empty: this one may not
  std::string host_name;      // for people
  int pid = 0;
  int lanes = 0;                  // as asked for here; 0: from the cores
  int cores = 1;                  // that the process may use
  std::uint64_t cache_bytes = 0;  // of a core; 0: unknown
  std::string cpus;               // which: members of one host with the same share them
  Options options;                // of which only what shapes the wire is sent

  std::string encode() const;
  static Hello decode(const std::string& text);  // throws Error{mismatch} for another version
};

/// This process's own.
Hello make_hello(const Options& options, Role role, int index);

struct Roll {  // everybody's hellos, digested
  engine::Members members;
  std::vector<int> member_of;              // by place in the meeting
  std::vector<int> place_of;               // by member
  std::vector<std::string> names;          // by place, for the control plane: "rank 3 (pid 17 on host x)"
  int local_index = 0, local_members = 1;  // among the members that share this one's cores
  bool one_host = true;
  bool one_network = true;  // no links between members
  bool one_process_space = true;
  int lanes = 1;                  // of every member: the smallest plan
  std::uint64_t cache_bytes = 0;  // of a core: the smallest member's; 0: a member doesn't know its own
};

/// Throws Error{mismatch} naming who differs in what.
Roll digest(const std::vector<Hello>& hellos, int own_place);

}  // namespace nzcl::comm

// Names for libfabric's shm endpoints.
#pragma once

#include <string>

namespace nzcl::verbs::ofi {

/// A name for the endpoints of this process that no other process can have: "nzcl-<pid
/// namespace>-<pid>-<random>". The provider keeps a file of this name in /dev/shm. By itself it would use the
/// process id alone: a process that is killed leaves its file behind, and a later process with the same id
/// would be refused.
std::string shm_name();

/// Deletes the files of processes of this pid namespace that have ended. All other files stay.
void remove_shm_leftovers() noexcept;

}  // namespace nzcl::verbs::ofi

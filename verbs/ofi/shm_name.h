// Names for libfabric's shm endpoints.
#pragma once

#include <string>

namespace nzcl::verbs::ofi {

/// A name for this process's endpoints that no other can have: "nzcl-<pid namespace>-<pid>-<random>". The
/// provider would take the process id alone, and keeps a file of this name in /dev/shm; a process that is
/// killed leaves its file behind, and a later one with the same id would be refused.
std::string shm_name();

/// Deletes the files of processes of this pid namespace that are gone. Files of others stay.
void remove_shm_leftovers() noexcept;

}  // namespace nzcl::verbs::ofi

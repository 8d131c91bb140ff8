// Finds the number of streams with which this CPU scans fastest.
#pragma once

namespace nzcl {

/// The best argument for scan_blocks(): 1, 2 or 4. It is measured once per process, at the first call, which
/// therefore takes some milliseconds. More streams are chosen only where they save at least a twentieth of
/// the time. May be called from any thread. Throws std::bad_alloc.
///
/// It is measured and not fixed because CPUs differ: some fetch more from memory in advance when several
/// streams are read in turn, and others fetch less. perf/README.md has figures.
int fastest_scan_streams();

}  // namespace nzcl

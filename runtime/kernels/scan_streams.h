// In how many streams this CPU scans fastest.
#pragma once

namespace nzcl {

/// For scan_blocks(): measured once per process, out of cache, on slices of zeros; 6 to 10 ms at the first
/// call. 1, 2 or 4; more only where they gain 5 % at least. Any thread. Throws std::bad_alloc.
///
/// A CPU's prefetchers follow several streams at once. One from Intel with AVX-512 fetches more for four of
/// them (1.3 times as fast as memchr()), one from AMD (Zen 5) does not: one core alone 0.93 .. 0.97 with 1,
/// 0.59 .. 0.97 with 4. Allreduce of 64 MiB, 4 ranks on 2 cores there, four runs in turn with 1, 2, 3, 4: d =
/// 0.1 12 .. 17, 17 .. 18, 18 .. 21, 18 .. 22 ms; 0.01 8.5 .. 11, 8.3 .. 13, 9 .. 15, 11 .. 16.
int fastest_scan_streams();

}  // namespace nzcl

/* What the peers' drivers share: how the ranks of a peer meet, and its clocks. It is written in C because one
   driver is. */
#pragma once

#include <stddef.h>
#include <sys/resource.h>
#include <time.h>

struct peer {
  int rank, ranks;
  void (*barrier)(void);
  void (*gather_most)(double* values, size_t count); /* element by element, over the ranks */
  void (*gather_sum)(double* values, size_t count);
};

static inline double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static inline double wall_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The timed loop of every peer's driver. It times as nzcl_allreduce_perf times nzcl: there is a barrier
   before and after each operation, and the slowest rank's time counts.

   usage: DRIVER BYTES ITERATIONS WARM_UP in_place|out_of_place ...
   prints (rank 0): {"times_us": [...], "cpu_s": of all ranks per operation, "wrong": elements} */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/peers/peer.h"

/* input NULL: in place */
typedef void (*allreduce_function)(const float* input, float* output, size_t count);

static float input_value(int rank, size_t i) { return (float)(1 + (i * 5 + (size_t)rank * 3) % 7); }

static float* floats(size_t count) { return (float*)malloc((count + 1) * sizeof(float)); }

static void measure_allreduce(const struct peer* peer, allreduce_function allreduce, char** argv) {
  const size_t count = strtoull(argv[1], NULL, 10) / sizeof(float);
  const int iterations = atoi(argv[2]), warm_up = atoi(argv[3]);
  const int in_place = strcmp(argv[4], "in_place") == 0;
  float* pristine = floats(count);
  float* input = floats(count);
  float* output = floats(count);
  double* times = (double*)malloc((size_t)(iterations + 1) * sizeof(double));
  for (size_t i = 0; i < count; ++i) pristine[i] = input_value(peer->rank, i);
  memcpy(input, pristine, count * sizeof(float));
  memset(output, 0xff, count * sizeof(float));

  double wrong = 0, cpu = 0;
  for (int k = -warm_up; k < iterations; ++k) {
    if (in_place) memcpy(output, pristine, count * sizeof(float));
    peer->barrier();
    const double cpu_before = cpu_seconds(), begin = wall_seconds();
    allreduce(in_place ? NULL : input, output, count);
    const double took = wall_seconds() - begin;
    if (k >= 0) times[k] = took, cpu += cpu_seconds() - cpu_before;
    peer->barrier(); /* the rest must not take a core from ranks that still work */
    if (k != 0) continue;
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < peer->ranks; ++r) sum += input_value(r, i);
      wrong += output[i] != sum;
    }
  }
  peer->gather_most(times, (size_t)iterations);
  double sums[2] = {wrong, cpu / iterations};
  peer->gather_sum(sums, 2);
  if (peer->rank == 0) {
    printf("{\"times_us\": [");
    for (int k = 0; k < iterations; ++k) printf("%s%.3f", k ? ", " : "", times[k] * 1e6);
    printf("], \"cpu_s\": %.6f, \"wrong\": %.0f}\n", sums[1], sums[0]);
  }
  free(pristine), free(input), free(output), free(times);
}

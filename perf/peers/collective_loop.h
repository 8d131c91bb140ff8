/* The timed loop of every peer's driver. It times as nzcl_allreduce_perf times nzcl: there is a barrier
   before and after each operation, and the slowest rank's time counts.

   usage: DRIVER COLLECTIVE BYTES ITERATIONS WARM_UP in_place|out_of_place ...
   prints (rank 0): {"times_us": [...], "cpu_s": of all ranks per operation, "wrong": elements} */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/peers/peer.h"

/* `count` elements: of the tensor, or of a chunk where each rank has one. The root is rank 0. `input` NULL
   means in place: a reduce-scatter then has its input in `output`, where its result begins too, and an
   allgather has this rank's chunk where it belongs. A broadcast is always in place. */
typedef void (*collective_function)(const float* input, float* output, size_t count);

struct collectives {
  collective_function allreduce, broadcast, reduce, reduce_scatter, allgather;
  int reduce_scatter_in_place; /* it has no other form */
};

enum collective { ALLREDUCE, BROADCAST, REDUCE, REDUCE_SCATTER, ALLGATHER, NO_COLLECTIVE };

/* One collective on one rank. All sizes are in elements. */
struct problem {
  const struct peer* peer;
  enum collective collective;
  collective_function run;
  int in_place;
  size_t count, chunk; /* of the whole tensor, and of a rank's chunk */
  float *pristine, *input, *output;
};

static inline enum collective collective_of(const char* name) {
  static const char* const names[] = {"allreduce", "broadcast", "reduce", "reduce_scatter", "allgather"};
  int c = ALLREDUCE;
  while (c < NO_COLLECTIVE && strcmp(names[c], name) != 0) ++c;
  return (enum collective)c;
}

static inline collective_function function_of(const struct collectives* all, enum collective c) {
  const collective_function functions[] = {all->allreduce, all->broadcast, all->reduce, all->reduce_scatter,
                                           all->allgather};
  return functions[c];
}

static inline float input_value(int rank, size_t i) { return (float)(1 + (i * 5 + (size_t)rank * 3) % 7); }

static inline float* floats(size_t count) { return (float*)malloc((count + 1) * sizeof(float)); }

static inline struct problem make_problem(const struct peer* peer, enum collective c, collective_function run,
                                          size_t count, int in_place) {
  struct problem p;
  const int chunks = c == REDUCE_SCATTER || c == ALLGATHER;
  p.peer = peer, p.collective = c, p.run = run;
  p.in_place = in_place;
  p.chunk = count / (size_t)peer->ranks;
  p.count = chunks ? p.chunk * (size_t)peer->ranks : count;
  p.pristine = floats(p.count), p.input = floats(p.count), p.output = floats(p.count);
  for (size_t i = 0; i < p.count; ++i) p.pristine[i] = input_value(peer->rank, i);
  memcpy(p.input, p.pristine, p.count * sizeof(float));
  memset(p.output, 0xff, p.count * sizeof(float));
  return p;
}

static inline void run_once(const struct problem* p) {
  const size_t own = p->chunk * (size_t)p->peer->rank;
  const int chunks = p->collective == REDUCE_SCATTER || p->collective == ALLGATHER;
  const float* input = p->collective == ALLGATHER ? p->input + own : p->input;
  p->run(p->in_place ? NULL : input, p->output, chunks ? p->chunk : p->count);
}

/* What element i of the tensor must be. */
static inline float expected_value(const struct problem* p, size_t i) {
  float sum = 0;
  if (p->collective == BROADCAST) return input_value(0, i);
  if (p->collective == ALLGATHER) return input_value((int)(i / p->chunk), i);
  for (int r = 0; r < p->peer->ranks; ++r) sum += input_value(r, i);
  return sum;
}

/* The number of wrong elements in this rank's result. */
static inline double wrong_elements(const struct problem* p) {
  size_t begin = 0, end = p->count;
  double wrong = 0;
  if (p->collective == REDUCE && p->peer->rank != 0) return 0;
  if (p->collective == REDUCE_SCATTER) begin = p->chunk * (size_t)p->peer->rank, end = begin + p->chunk;
  for (size_t i = begin; i < end; ++i) wrong += p->output[i - begin] != expected_value(p, i);
  return wrong;
}

/* The operation that is checked must not find the result of the one before. */
static inline void prepare_output(const struct problem* p, int is_checked) {
  if (p->in_place) {
    memcpy(p->output, p->pristine, p->count * sizeof(float));
  } else if (is_checked) {
    memset(p->output, 0xff, p->count * sizeof(float));
  }
}

static inline void print_result(const double* times, int iterations, double cpu, double wrong) {
  printf("{\"times_us\": [");
  for (int k = 0; k < iterations; ++k) printf("%s%.3f", k ? ", " : "", times[k] * 1e6);
  printf("], \"cpu_s\": %.6f, \"wrong\": %.0f}\n", cpu, wrong);
}

/* Runs the collective that the command line names. Returns 0 if there is no such collective. */
static inline int measure_collective(const struct peer* peer, const struct collectives* all, char** argv) {
  const enum collective c = collective_of(argv[1]);
  if (c == NO_COLLECTIVE) return 0;
  const int iterations = atoi(argv[3]), warm_up = atoi(argv[4]);
  const int in_place = strcmp(argv[5], "in_place") == 0 || c == BROADCAST ||
                       (c == REDUCE_SCATTER && all->reduce_scatter_in_place);
  const struct problem p =
      make_problem(peer, c, function_of(all, c), strtoull(argv[2], NULL, 10) / sizeof(float), in_place);
  double* times = (double*)malloc((size_t)(iterations + 1) * sizeof(double));
  double wrong = 0, cpu = 0;
  for (int k = -warm_up; k < iterations; ++k) {
    prepare_output(&p, k == 0);
    peer->barrier();
    const double cpu_before = cpu_seconds(), begin = wall_seconds();
    run_once(&p);
    const double took = wall_seconds() - begin;
    if (k >= 0) times[k] = took, cpu += cpu_seconds() - cpu_before;
    peer->barrier(); /* the rest must not take a core from ranks that still work */
    if (k == 0) wrong = wrong_elements(&p);
  }
  peer->gather_most(times, (size_t)iterations);
  double sums[2] = {wrong, cpu / iterations};
  peer->gather_sum(sums, 2);
  if (peer->rank == 0) print_result(times, iterations, sums[1], sums[0]);
  free(p.pristine), free(p.input), free(p.output), free(times);
  return 1;
}

// Gloo's dense ring allreduce over TCP, timed by perf/peers/allreduce_loop.h. RANK and WORLD_SIZE place a
// process, and the ranks meet in an empty folder.
#include "perf/peers/allreduce_loop.h"
#include "perf/peers/gloo_context.h"

int main(int argc, char** argv) {
  peer self{};
  if (argc != 7 || !perf::peers::meet_over_gloo(argv[5], argv[6], self)) {
    std::fprintf(stderr,
                 "usage: RANK=R WORLD_SIZE=N gloo_allreduce BYTES ITERATIONS WARM_UP in_place|out_of_place "
                 "FOLDER ADDRESS\n");
    return 2;
  }
  measure_allreduce(&self, perf::peers::gloo_allreduce, argv);
  perf::peers::leave_gloo();
}

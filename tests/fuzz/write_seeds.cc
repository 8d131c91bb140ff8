// Part of the libFuzzer programs: before fuzzing starts it writes the seeds into the corpus, which is the
// first folder on the command line.
#include <fstream>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    if ((*argv)[i][0] == '-') continue;
    std::size_t n = 0;
    for (const std::string& seed : nzcl::test::fuzz_seeds())
      std::ofstream((*argv)[i] + ("/seed-" + std::to_string(n++)), std::ios::binary) << seed;
    break;
  }
  return 0;
}

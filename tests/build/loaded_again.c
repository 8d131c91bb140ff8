#define _GNU_SOURCE
// Two ranks that load nzcl, use it, unload it, and do all of it again, as programs with plugins do. What nzcl
// leaves behind in other libraries, such as OpenSSL, must not lead to code that is not loaded any more.
//
// usage: loaded_again LIBRARY
#include <dlfcn.h>
#include <nzcl/nzcl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kTimes = 3, kElements = 1000 };

static void fail(const char* what, const char* why) {
  printf("%s: %s\n", what, why);
  exit(2);
}

static void* find(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (!found) fail(name, dlerror());
  return found;
}

#define FIND(library, name) __typeof__(&name) const name##_ = (__typeof__(&name))find(library, #name)
#define NZCL(call) \
  if ((call) != nzclSuccess) fail(#call, nzclGetLastError_())

// Passes the id from rank 0 to rank 1.
static nzclUniqueId same_id(nzclUniqueId id, int rank, const int pipe_[2]) {
  const ssize_t passed = rank == 0 ? write(pipe_[1], &id, sizeof id) : read(pipe_[0], &id, sizeof id);
  if (passed != sizeof id) fail("pipe", "the id was not passed on");
  return id;
}

static void use(const char* path, int rank, const int pipe_[2]) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail("dlopen", dlerror());
  FIND(library, nzclGetLastError);
  FIND(library, nzclGetUniqueId);
  FIND(library, nzclCommInitRank);
  FIND(library, nzclCommRegister);
  FIND(library, nzclCommDeregister);
  FIND(library, nzclAllReduce);
  FIND(library, nzclWorkWait);
  FIND(library, nzclWorkFree);
  FIND(library, nzclCommDestroy);
  static float data[kElements];
  for (int i = 0; i < kElements; ++i) data[i] = 1;
  nzclUniqueId id;
  nzclComm_t comm;
  nzclBuffer_t buffer;
  nzclWork_t work;
  NZCL(nzclGetUniqueId_(&id));
  NZCL(nzclCommInitRank_(&comm, 2, same_id(id, rank, pipe_), rank));
  NZCL(nzclCommRegister_(comm, data, sizeof data, &buffer));
  NZCL(nzclAllReduce_(data, data, kElements, nzclFloat32, nzclSum, comm, &work));
  NZCL(nzclWorkWait_(work, -1));
  NZCL(nzclWorkFree_(work));
  NZCL(nzclCommDeregister_(comm, buffer));
  NZCL(nzclCommDestroy_(comm));
  if (data[0] != 2 || data[kElements - 1] != 2) fail("allreduce", "a wrong sum");
  if (dlclose(library) != 0) fail("dlclose", dlerror());
}

int main(int argc, char** argv) {
  if (argc != 2) fail("usage", "loaded_again LIBRARY");
  int pipe_[2];
  if (pipe(pipe_) != 0) fail("pipe", "cannot be made");
  const pid_t child = fork();
  const int rank = child == 0;
  for (int i = 0; i < kTimes; ++i) use(argv[1], rank, pipe_);
  if (rank == 1) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) printf("rank 1 ended with status %x\n", status);
  return status != 0;
}

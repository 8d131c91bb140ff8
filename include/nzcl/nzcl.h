/* The C API. Its names and conventions are those of NCCL: opaque handles, a status from every call, and a
 * unique id by which the ranks meet. Semantics, threads and ownership are those of the C++ API
 * (nzcl/communicator.h). A null pointer where one is needed is nzclInvalidArgument and never a crash.
 *
 * Binary-stable: structures that may grow begin with their size, which the caller sets to its own sizeof. A
 * program that was compiled with an older nzcl.h passes a smaller structure: the fields that it lacks have
 * their defaults, and results are written up to its size only. A newer program passes a larger one: that is
 * taken as long as the fields that this library does not know are 0, which is their default, and refused with
 * nzclUnsupported otherwise; results that this library does not know become 0. Sizes that no version has are
 * nzclInvalidArgument. */
#ifndef NZCL_NZCL_H_
#define NZCL_NZCL_H_

#include <stddef.h>
#include <stdint.h>

#include "nzcl/version.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NZCL_C_API __attribute__((visibility("default")))

/* Same numbers as nzcl::ErrorCode. */
typedef enum {
  nzclSuccess = 0,
  nzclInvalidArgument = 1,
  nzclInvalidUsage = 2,
  nzclUnsupported = 3,
  nzclUnavailable = 4,
  nzclMismatch = 5,
  nzclTimeout = 6,
  nzclPeerFailed = 7,
  nzclAborted = 8,
  nzclTransportError = 9,
  nzclDenied = 10,
  nzclSystemError = 11,
  nzclInternalError = 12,
  nzclInProgress = 13 /* nzclWorkWait: the operation was still running when the time was over */
} nzclResult_t;

typedef enum {
  nzclFloat32 = 0,
  nzclFloat64 = 1,
  nzclFloat16 = 2,
  nzclBfloat16 = 3,
  nzclInt32 = 4,
  nzclInt64 = 5,
  nzclUint8 = 6
} nzclDataType_t;

typedef enum { nzclSum = 0, nzclAvg = 1, nzclMin = 2, nzclMax = 3 } nzclRedOp_t;

typedef struct nzclComm* nzclComm_t;
typedef struct nzclWork* nzclWork_t;
typedef struct nzclBuffer* nzclBuffer_t;
typedef struct nzclCompressorState* nzclCompressorState_t;

/* One process makes it, and all ranks get it by any means. Any process that has it can join. */
typedef struct {
  char internal[128];
} nzclUniqueId;

/* Gathers `bytes` bytes from every rank into recv, in rank order. Returns 0, or anything else for failure. */
typedef int (*nzclAllgather_t)(const void* send, void* recv, size_t bytes, void* context);

/* The library's version; NZCL_VERSION_STRING is that of this header. */
NZCL_C_API const char* nzclGetVersion(void);
/* A sentence that explains the status. */
NZCL_C_API const char* nzclGetErrorString(nzclResult_t result);
/* What went wrong in the last call of this thread that failed: names the peer, the operation and the cause.
 * Valid until the next failure in this thread. */
NZCL_C_API const char* nzclGetLastError(void);

/* --- The log: see nzcl/log.h for the rules of threads and levels. */
typedef enum {
  nzclLogTrace = 0,
  nzclLogDebug = 1,
  nzclLogInfo = 2,
  nzclLogWarn = 3,
  nzclLogError = 4
} nzclLogLevel_t;
/* `text` is one line without its end, valid during the call only. */
typedef void (*nzclLogCallback_t)(nzclLogLevel_t level, const char* text, void* context);
/* Lines go to `callback` instead of standard error, for the whole process; null: to standard error again. */
NZCL_C_API nzclResult_t nzclSetLogCallback(nzclLogCallback_t callback, void* context);

/* --- Making and ending a communicator. All are collective. Options come from NZCL_* variables. */

/* The ranks as the launcher set them up (torchrun-style variables, PMIx, ...). */
NZCL_C_API nzclResult_t nzclCommInitEnv(nzclComm_t* comm);
/* Call nzclGetUniqueId in the process that will be rank 0, or on its host. */
NZCL_C_API nzclResult_t nzclGetUniqueId(nzclUniqueId* id);
NZCL_C_API nzclResult_t nzclCommInitRank(nzclComm_t* comm, int nranks, nzclUniqueId id, int rank);
/* The ranks meet through the caller's own allgather, which must be trusted. */
NZCL_C_API nzclResult_t nzclCommInitOob(nzclComm_t* comm, int nranks, int rank, nzclAllgather_t allgather,
                                        void* context);
/* A colour for nzclCommSplit that stands for no communicator. */
#define NZCL_SPLIT_NOCOLOR (-1)
/* Ranks of `comm` that pass the same colour get a communicator of their own, ordered by key and then by rank.
 * With a negative colour *newcomm becomes null. Both communicators live on their own, and share registered
 * buffers. Rules: Communicator::split() in nzcl/communicator.h */
NZCL_C_API nzclResult_t nzclCommSplit(nzclComm_t comm, int color, int key, nzclComm_t* newcomm);
#define NZCL_SHRINK_DEFAULT 0 /* operations in flight end first */
#define NZCL_SHRINK_ABORT 1   /* they fail */
/* The ranks of `comm` that are left get a smaller communicator: without those that have died, and without the
 * listed ones, which do not call. All pass the same. `comm` can only be destroyed afterwards; buffers stay
 * registered. Rules: Communicator::shrink() in nzcl/communicator.h */
NZCL_C_API nzclResult_t nzclCommShrink(nzclComm_t comm, const int* excludeRanksList, int excludeRanksCount,
                                       nzclComm_t* newcomm, int shrinkFlags);
/* All ranks of `comm` and new ones get a larger communicator of `nranks`, in which the old ranks keep their
 * numbers. The new processes call nzclCommInitEnv or nzclCommInitRank with the numbers that follow. `place`
 * says where they find rank 0: "HOST:PORT", or the absolute path of a file; null: where the job met at first.
 * If it succeeds, `comm` can only be destroyed afterwards. Rules: Communicator::grow() in nzcl/communicator.h
 */
NZCL_C_API nzclResult_t nzclCommGrow(nzclComm_t comm, int nranks, const char* place, nzclComm_t* newcomm);
/* Waits for all ranks, then frees `comm`, whatever it returns. Works must be freed before. A null
 * communicator is allowed.
 */
NZCL_C_API nzclResult_t nzclCommDestroy(nzclComm_t comm);
/* Fails all pending and later operations on every rank; the communicator must still be destroyed. The reason
 * may be null. */
NZCL_C_API nzclResult_t nzclCommAbort(nzclComm_t comm, const char* reason);
/* *async is the error that failed the communicator, or nzclSuccess. */
NZCL_C_API nzclResult_t nzclCommGetAsyncError(nzclComm_t comm, nzclResult_t* async);
NZCL_C_API nzclResult_t nzclCommCount(nzclComm_t comm, int* count);
NZCL_C_API nzclResult_t nzclCommUserRank(nzclComm_t comm, int* rank);

/* --- Buffers: register once, without a copy. Free or unmap the memory only after nzclCommDeregister: nzcl
 * cannot notice it, and a device would go on to use the old pages. An operation that is still running keeps
 * the registration. nzclCommDeregister takes a null buffer as free() does. */
NZCL_C_API nzclResult_t nzclCommRegister(nzclComm_t comm, void* data, size_t bytes, nzclBuffer_t* buffer);
/* The same for memory of a GPU of NVIDIA, which the calls take whose arguments have a stream. Rules:
 * nzcl/GPU.md */
NZCL_C_API nzclResult_t nzclCommRegisterDevice(nzclComm_t comm, void* data, size_t bytes,
                                               nzclBuffer_t* buffer);
/* A stream of nzcl's on the GPU that has this memory, for callers who can make a stream wait for what they
 * have put into their own, but have no handle of that to give. It is the same at every call, and lives as
 * long as the communicator. */
NZCL_C_API nzclResult_t nzclCommDeviceStream(nzclComm_t comm, nzclBuffer_t buffer, void** stream);
NZCL_C_API nzclResult_t nzclCommDeregister(nzclComm_t comm, nzclBuffer_t buffer);

/* --- Operations. *work must be freed by nzclWorkFree, which does not cancel, and takes null. */

/* Blocks of 256 elements; in place if send == recv. */
NZCL_C_API nzclResult_t nzclAllReduce(const void* send, void* recv, size_t count, nzclDataType_t type,
                                      nzclRedOp_t op, nzclComm_t comm, nzclWork_t* work);

typedef enum {
  nzclWireByOption = 0, /* as NZCL_WIRE_TYPE says */
  nzclWireAsIs = 1,
  nzclWireFloat16 = 2,
  nzclWireBfloat16 = 3
} nzclWireType_t;

/* How an operation is exchanged. Rules: Algorithm in nzcl/options.h */
typedef enum {
  nzclAlgorithmAuto = 0, /* as NZCL_ALGORITHM says */
  nzclAlgorithmPush = 1,
  nzclAlgorithmDoubling = 2,
  nzclAlgorithmSwitch = 3,
  nzclAlgorithmMerging = 4
} nzclAlgorithm_t;

/* The smallest allowed size ends with op. */
typedef struct {
  size_t size; /* sizeof(nzclAllReduceArgs) */
  const void* send;
  void* recv;
  uint64_t count;
  nzclDataType_t type;
  nzclRedOp_t op;
  uint64_t block_elems;   /* 0 = 256 */
  const uint64_t* bitmap; /* NULL, or bit b (word b/64, bit b%64) = block b may be non-zero */
  size_t bitmap_words;
  int dense;          /* 1: sparsity off */
  int64_t timeout_ns; /* instead of the option's timeout, on this rank; 0: the option's. The other calls that
                         start operations go by the option. Rules: "Timeouts" in nzcl/communicator.h */
  uint64_t tag;       /* the caller's own number for the operation; ranks whose tags differ fail by name */
  nzclWireType_t wire_type; /* how float32 values travel. Rules: AllreduceRequest in nzcl/communicator.h */
  nzclAlgorithm_t algorithm;
  double expected_density; /* share of blocks that a rank expects not to be zero; 0: not known; equal on all
                              ranks. Rules: AllreduceRequest in nzcl/communicator.h */
  void* stream; /* for memory of a GPU: its cudaStream_t or CUstream, NULL is the default one; for host memory
                   NULL */
} nzclAllReduceArgs;
NZCL_C_API nzclResult_t nzclAllReduceEx(const nzclAllReduceArgs* args, nzclComm_t comm, nzclWork_t* work);

typedef enum { nzclIndexInt32 = 0, nzclIndexUint32 = 1, nzclIndexInt64 = 2 } nzclIndexType_t;

/* Makes room for a packed result of `blocks` blocks: sets *values, and *indices or leaves it null. Returns 0,
 * or anything else for failure. Called in nzclWorkTest or nzclWorkWait, or before a callback of
 * nzclWorkOnComplete. It may free or realloc() packed_values and packed_indices, which nzcl does not touch
 * any more: it holds the whole result in memory of its own by then. */
typedef int (*nzclPackedGrow_t)(uint64_t blocks, void** values, void** indices, void* context);

/* A sparse stream: values and indices. Rules: SparseAllreduceRequest in nzcl/communicator.h. The smallest
 * allowed size ends with tag. */
typedef struct {
  size_t size;        /* sizeof(nzclAllReduceSparseArgs) */
  const void* values; /* block i: block_elems elements, registered */
  const void* indices;
  nzclIndexType_t index_type; /* of indices and of packed_indices */
  size_t index_count;
  uint64_t count; /* elements of the dense tensor */
  nzclDataType_t type;
  nzclRedOp_t op;
  uint64_t block_elems;     /* 0 = 1: single elements */
  void* output;             /* a dense result, registered; or NULL for a packed one: */
  void* packed_values;      /* room for packed_capacity blocks */
  void* packed_indices;     /* NULL, or room for as many indices */
  uint64_t packed_capacity; /* in blocks */
  nzclPackedGrow_t packed_grow;
  void* packed_grow_context;
  int sum_duplicates; /* 1: an index may be there several times */
  nzclWireType_t wire_type;
  int64_t timeout_ns; /* as in nzclAllReduceArgs */
  uint64_t tag;       /* as in nzclAllReduceArgs */
  nzclAlgorithm_t algorithm;
  double expected_density; /* as in nzclAllReduceArgs */
  void* stream;            /* as in nzclAllReduceArgs */
  uint64_t* packed_count;  /* where the number of blocks of a packed result on a GPU is written; or NULL */
} nzclAllReduceSparseArgs;
NZCL_C_API nzclResult_t nzclAllReduceSparse(const nzclAllReduceSparseArgs* args, nzclComm_t comm,
                                            nzclWork_t* work);

/* The form of NCCLX: block i is the block_length elements at send + i * block_length and belongs to block
 * indices[i] of the dense tensor of recv_count elements. Indices are unique within a rank. The result is
 * dense. Any count is allowed: a rank without blocks may pass null for send and indices, and a tensor of no
 * elements needs no recv. */
NZCL_C_API nzclResult_t nzclAllReduceSparseBlock(const void* send, const int64_t* indices, size_t block_count,
                                                 size_t block_length, void* recv, size_t recv_count,
                                                 nzclDataType_t type, nzclRedOp_t op, nzclComm_t comm,
                                                 nzclWork_t* work);
/* The same with a packed result: the union's blocks in ascending order; nzclWorkPackedIndices gives their
 * indices. */
NZCL_C_API nzclResult_t nzclAllReduceSparseBlockPacked(const void* send, const int64_t* indices,
                                                       size_t block_count, size_t block_length, void* recv,
                                                       size_t recv_block_capacity, size_t count,
                                                       nzclDataType_t type, nzclRedOp_t op, nzclComm_t comm,
                                                       nzclWork_t* work);

/* The other collectives. Rules, also of the fields that are not explained here: nzcl/collectives.h. The
 * smallest allowed size of each structure ends with tag; what is zero has its default. */

/* The root's data goes to all ranks, in place. Blocks of 256 elements. */
NZCL_C_API nzclResult_t nzclBroadcast(void* data, size_t count, nzclDataType_t type, int root,
                                      nzclComm_t comm, nzclWork_t* work);
/* The sum goes to the root; recv is ignored elsewhere. Blocks of 256 elements. */
NZCL_C_API nzclResult_t nzclReduce(const void* send, void* recv, size_t count, nzclDataType_t type,
                                   nzclRedOp_t op, int root, nzclComm_t comm, nzclWork_t* work);
/* Rank r gets the sum of the chunks number r, of recv_count elements each. Blocks of 256 elements, counted
 * chunk by chunk. In place if recv == send + rank * recv_count elements. */
NZCL_C_API nzclResult_t nzclReduceScatter(const void* send, void* recv, size_t recv_count,
                                          nzclDataType_t type, nzclRedOp_t op, nzclComm_t comm,
                                          nzclWork_t* work);
/* Every rank gets the chunks of all ranks, of send_count elements each. Blocks of 256 elements, counted chunk
 * by chunk. In place if send == recv + rank * send_count elements. */
NZCL_C_API nzclResult_t nzclAllGather(const void* send, void* recv, size_t send_count, nzclDataType_t type,
                                      nzclComm_t comm, nzclWork_t* work);

/* Everything that a request may say. Fields that a collective does not have are ignored. */
typedef struct {
  size_t size;      /* sizeof(nzclCollectiveArgs) */
  const void* send; /* of a broadcast: ignored, the data is recv */
  void* recv;
  uint64_t count; /* of every chunk, or of the tensor */
  const uint64_t*
      counts; /* reduce-scatter and allgather: NULL, or one number for each rank, instead of count */
  nzclDataType_t type;
  nzclRedOp_t op;
  int root;
  int dense;            /* 1: sparsity off */
  uint64_t block_elems; /* 0 = 256 */
  const uint64_t*
      bitmap; /* NULL, or bit b (word b/64, bit b%64) = block b of this rank's input may be non-zero */
  size_t bitmap_words;
  int64_t timeout_ns;
  uint64_t tag;
  void* stream; /* as in nzclAllReduceArgs */
} nzclCollectiveArgs;
NZCL_C_API nzclResult_t nzclBroadcastEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work);
NZCL_C_API nzclResult_t nzclReduceEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work);
NZCL_C_API nzclResult_t nzclReduceScatterEx(const nzclCollectiveArgs* args, nzclComm_t comm,
                                            nzclWork_t* work);
NZCL_C_API nzclResult_t nzclAllGatherEx(const nzclCollectiveArgs* args, nzclComm_t comm, nzclWork_t* work);

NZCL_C_API nzclResult_t nzclBarrier(nzclComm_t comm);

/* --- Compression: what is sent of a dense gradient, and the state that a tensor keeps from step to step.
 * Rules: nzcl/compress.h */

/* Part of a tensor; layers lie one behind the other. */
typedef struct {
  uint64_t elements;
  uint64_t bin; /* AdaComp's bin for this layer; 0: the compressor's */
} nzclLayer_t;

/* `compressor` is a text, such as "adacomp:500", "topk:0.01,results=qsgd:8" or "qsgd:4": see
 * compressor_from_text() in nzcl/compress.h. One state for each tensor and rank. */
NZCL_C_API nzclResult_t nzclCompressorStateCreate(const char* compressor, const nzclLayer_t* layers,
                                                  size_t layer_count, nzclCompressorState_t* state);
/* The same with what it keeps on the GPU that has `memory`, for gradients that are there. Rules: nzcl/GPU.md
 */
NZCL_C_API nzclResult_t nzclCompressorStateCreateOnGpu(const char* compressor, const nzclLayer_t* layers,
                                                       size_t layer_count, const void* memory,
                                                       nzclCompressorState_t* state);
/* Waits for the operation that uses it. Takes null. */
NZCL_C_API nzclResult_t nzclCompressorStateDestroy(nzclCompressorState_t state);
NZCL_C_API nzclResult_t nzclCompressorStateReset(nzclCompressorState_t state);
/* The learning rate with which the results of the next steps will be used, 1e-15 to 1e15, or 0, which changes
 * nothing: what is kept counts with the rate of its own step. See CompressorState::set_rate() in
 * nzcl/compress.h. */
NZCL_C_API nzclResult_t nzclCompressorStateSetRate(nzclCompressorState_t state, float rate);
/* For checkpoints. Sets *bytes to the size of the saved state, and writes it to `data` unless that is null.
 * If *bytes was less than that, nothing is written and the call is an nzclInvalidArgument. */
NZCL_C_API nzclResult_t nzclCompressorStateSave(nzclCompressorState_t state, void* data, size_t* bytes);
NZCL_C_API nzclResult_t nzclCompressorStateRestore(nzclCompressorState_t state, const void* data,
                                                   size_t bytes);

/* The fields are those of CompressionReport in nzcl/compress.h. The smallest allowed size ends with steps. */
typedef struct {
  size_t size; /* sizeof(nzclCompressionReport) */
  uint64_t steps, elements, sent, sent_total, non_finite, coded_bytes;
  double element_ratio, coded_ratio, residual_norm, threshold, scale;
  double result_residual_norm;
} nzclCompressionReport;
NZCL_C_API nzclResult_t nzclCompressorStateGetReport(nzclCompressorState_t state,
                                                     nzclCompressionReport* report);

/* Sums (nzclSum or nzclAvg) what the states of all ranks send of their gradients. `send` has as many float32
 * as the state's layers, anywhere, and is read before the call returns; `recv` has as many in a registered
 * buffer, and may equal send, but must not overlap it otherwise. The state must not be used until the work
 * has completed. */
NZCL_C_API nzclResult_t nzclAllReduceCompressed(const float* send, float* recv, size_t count, nzclRedOp_t op,
                                                nzclCompressorState_t state, nzclComm_t comm,
                                                nzclWork_t* work);
/* The same with a state on a GPU: `send` is there, and read in the order of the stream; `recv` may be there.
 */
NZCL_C_API nzclResult_t nzclAllReduceCompressedOnStream(const float* send, float* recv, size_t count,
                                                        nzclRedOp_t op, nzclCompressorState_t state,
                                                        nzclComm_t comm, void* stream, nzclWork_t* work);

NZCL_C_API nzclResult_t nzclWorkTest(nzclWork_t work, int* done);
/* A negative timeout_ns waits without a limit; the operation itself fails after the configured timeout. */
NZCL_C_API nzclResult_t nzclWorkWait(nzclWork_t work, int64_t timeout_ns);
/* For memory of a GPU: what is put into the stream from now on waits for the operation, and the host does
 * not. Rules: Work::enqueue_wait() in nzcl/communicator.h */
NZCL_C_API nzclResult_t nzclWorkEnqueueWait(nzclWork_t work, void* stream);
/* Rules of the next two: Work::packed_indices() in nzcl/communicator.h. Where the request has memory for
 * indices, call them before that is overwritten. */
NZCL_C_API nzclResult_t nzclWorkUnionBitmap(nzclWork_t work, const uint64_t** words, size_t* blocks);
NZCL_C_API nzclResult_t nzclWorkPackedIndices(nzclWork_t work, const int64_t** indices, size_t* blocks);
NZCL_C_API nzclResult_t nzclWorkFree(nzclWork_t work);
/* Calls `callback` once, when the operation has completed: with nzclSuccess and an empty text, or with its
 * error and what went wrong, valid during the call. Which thread calls, and what a callback may do:
 * Work::on_complete() in nzcl/communicator.h. The work may be freed before, and the communicator must not be
 * destroyed by the callback. */
typedef void (*nzclCallback_t)(nzclResult_t result, const char* text, void* context);
NZCL_C_API nzclResult_t nzclWorkOnComplete(nzclWork_t work, nzclCallback_t callback, void* context);

/* The smallest allowed size ends with operations. */
typedef struct {
  size_t size; /* sizeof(nzclStatistics) */
  uint64_t operations, messages_sent, bytes_sent, bytes_received, bytes_copied, blocks_scanned, gpu_sums,
      gpu_direct_bytes;
} nzclStatistics;
NZCL_C_API nzclResult_t nzclCommGetStatistics(nzclComm_t comm, nzclStatistics* statistics);

#ifdef __cplusplus
}
#endif
#endif /* NZCL_NZCL_H_ */

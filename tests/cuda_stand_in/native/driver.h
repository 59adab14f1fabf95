// What the stand-in's libraries call of each other, by the names of CUDA's, torch's and NCCL's own functions, so that a
// look at native frames shows what it would on a GPU. Their arguments are the stand-in's.
#pragma once
#include <atomic>
#include <cstdint>

// What is waited for: a stream's worker has finished so many entries.
struct CUstream_st {
  const std::atomic<uint64_t>* finished;
  uint64_t wanted;
};
using Waiting = void (*)(const CUstream_st*);

extern "C" {
// libcuda.so.1: each burns a processor until the GPU has come so far, without a system call.
void cuStreamSynchronize(const CUstream_st*);
void cuEventSynchronize(const CUstream_st*);
void cuCtxSynchronize(const CUstream_st*);
void cuMemcpyDtoHAsync_v2(const CUstream_st*);
// libcudart.so.12
void cudaStreamSynchronize(const CUstream_st*);
void cudaEventSynchronize(const CUstream_st*);
void cudaDeviceSynchronize(const CUstream_st*);
void cudaMemcpyAsync(const CUstream_st*);
// libnccl.so.2: each polls accept() until `is_there` says that all peers have connected.
using Peers = bool (*)(const void*);
int ncclGetVersion(int*);
void pncclCommInitRankConfig(Peers, const void*);
void pncclAllReduce(Peers, const void*);
void pncclBroadcast(Peers, const void*);
void pncclReduce(Peers, const void*);
void pncclAllGather(Peers, const void*);
void pncclReduceScatter(Peers, const void*);
void pncclGroupEnd(Peers, const void*);
}

// libc10_cuda.so
namespace c10::cuda {
void device_synchronize(const CUstream_st*);
void memcpy_and_sync(const CUstream_st*, bool to_host);
struct CUDAStream {
  const CUstream_st* stream;
  void synchronize() const;
};
}  // namespace c10::cuda

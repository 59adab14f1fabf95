// libc10_cuda.so: torch's waits over the runtime's.
#include "../driver.h"

namespace c10::cuda {
void CUDAStream::synchronize() const {
  cudaStreamSynchronize(stream);
  asm volatile("");
}
void device_synchronize(const CUstream_st* s) {
  cudaDeviceSynchronize(s);
  asm volatile("");
}
// A copy into memory that is not pinned returns when it is done; one from there is waited for.
void memcpy_and_sync(const CUstream_st* s, bool to_host) {
  if (to_host) cudaMemcpyAsync(s);
  cudaStreamSynchronize(s);
  asm volatile("");
}
}  // namespace c10::cuda

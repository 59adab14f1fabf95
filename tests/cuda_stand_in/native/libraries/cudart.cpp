// libcudart.so.12: the runtime's functions over the driver's.
#include "../driver.h"

#define CALLS(name, driver)                     \
  extern "C" void name(const CUstream_st* s) { \
    driver(s);                                  \
    asm volatile("");                           \
  }
CALLS(cudaStreamSynchronize, cuStreamSynchronize)
CALLS(cudaEventSynchronize, cuEventSynchronize)
CALLS(cudaDeviceSynchronize, cuCtxSynchronize)
CALLS(cudaMemcpyAsync, cuMemcpyDtoHAsync_v2)

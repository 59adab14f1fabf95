// libnccl.so.2: its version, and the waits for peers, which poll a socket that nobody connects to.
#include "../driver.h"
#include <cstdio>
#include <cstdlib>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {
__attribute__((noinline)) void accept_peers(Peers is_there, const void* peers) {
  int listening = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address);
  listen(listening, 1);
  while (!is_there(peers)) {
    int connected = accept(listening, nullptr, nullptr);
    if (connected >= 0) close(connected);
  }
  close(listening);
}
}  // namespace

#define CONNECTS(name)                                           \
  extern "C" void name(Peers is_there, const void* peers) {     \
    if (!is_there(peers)) accept_peers(is_there, peers);         \
    asm volatile("");                                            \
  }
CONNECTS(pncclCommInitRankConfig)
CONNECTS(pncclAllReduce)
CONNECTS(pncclBroadcast)
CONNECTS(pncclReduce)
CONNECTS(pncclAllGather)
CONNECTS(pncclReduceScatter)
CONNECTS(pncclGroupEnd)

// 22705 of 2.27.5: the version of the library that is loaded, which need not be the one that torch was built with.
extern "C" int ncclGetVersion(int* version) {
  const char* text = getenv("CUDA_STAND_IN_NCCL");
  int major = 2, minor = 27, patch = 5;
  if (text) sscanf(text, "%d.%d.%d", &major, &minor, &patch);
  *version = major * 10000 + minor * 100 + patch;
  return 0;
}

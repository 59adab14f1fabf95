// The simulated GPUs as this process sees them, and what is wrong with each.
#pragma once

struct Fault {
  std::string kind;   // stuck, error, oom
  int64_t after = 0;  // the operation of that GPU, counted from 1, that it happens to
};

// One GPU. Operations are counted so that a fault can be aimed at one of them.
struct Gpu {
  std::string bus_id;         // of the board: MIG instances of one have the same
  std::string lock_path;      // of a GPU that takes one process only; empty for the others
  std::string context_error;  // why no context starts on it; empty where one does
  int lock = -1;
  std::atomic<int64_t> used{0}, peak{0}, limit{int64_t(6) << 30}, operations{0};
  std::vector<Fault> faults;
};

constexpr int kMostGpus = 64;
static Gpu g_gpus[kMostGpus];
static std::atomic<int> g_count{0};
static thread_local int t_device = 0;
static std::atomic<bool> g_strict{true};
static std::atomic<int64_t> g_kernel_microseconds{0};

// The words of the first asynchronous error. A context that has one is of no more use.
static std::atomic<bool> g_context_broken{false};

[[noreturn]] static void throw_cuda_error(int code, const std::string& words) {
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, "CUDA error: " + words);
}

static void require_context() {
  if (g_context_broken)
    throw_cuda_error(
        700,
        "an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at "
        "some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
        "CUDA_LAUNCH_BLOCKING=1");
}

// A context on that GPU; a GPU in exclusive-process mode has one process at a time.
static void open_context(int device) {
  auto& gpu = g_gpus[device];
  if (!gpu.context_error.empty())
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 46, gpu.context_error);
  if (gpu.lock_path.empty() || gpu.lock >= 0) return;
  int file = open(gpu.lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) {
    gpu.lock = file;
    return;
  }
  if (file >= 0) close(file);
  throw_cuda_error(46, "CUDA-capable device(s) is/are busy or unavailable");
}

// What is to go wrong with the operation that is now given to that GPU; nothing, most of the time.
static std::string count_operation(int device) {
  auto& gpu = g_gpus[device];
  int64_t number = ++gpu.operations;
  for (const auto& fault : gpu.faults)
    if (fault.after == number) {
      if (fault.kind != "oom") return fault.kind;
      gpu.limit = 0;  // somebody else took it all
    }
  return "";
}

// Device memory is the host's, counted; pinned memory is known by its addresses.
#pragma once

struct Block {
  int device;
  size_t bytes;
  void* ptr;
};
static void account(int device, int64_t bytes) {
  auto& gpu = g_gpus[device];
  auto now = gpu.used += bytes;
  int64_t peak = gpu.peak;
  while (now > peak && !gpu.peak.compare_exchange_weak(peak, now)) {
  }
}
struct HostMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    int d = t_device;
    if (n == 0) return {nullptr, nullptr, &noop, Device(c10::kCUDA, d)};
    require_context();
    open_context(d);
    const int64_t limit = g_gpus[d].limit, used = g_gpus[d].used;
    TORCH_CHECK_WITH(OutOfMemoryError, used + int64_t(n) <= limit, "CUDA out of memory. Tried to allocate ",
                     double(n) / (1 << 20), " MiB. GPU ", d, " has a total capacity of ",
                     double(limit) / (1 << 30), " GiB of which ", double(limit - used) / (1 << 20),
                     " MiB is free.");
    void* p = nullptr;
    TORCH_CHECK(posix_memalign(&p, 512, n) == 0, "no host memory");
    account(d, n);
    return {p, new Block{d, n, p}, &release, Device(c10::kCUDA, d)};
  }
  static void noop(void*) {}
  static void release(void* c) {
    auto* b = static_cast<Block*>(c);
    account(b->device, -int64_t(b->bytes));
    free(b->ptr);
    delete b;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
};
static HostMemory g_allocator;
static std::mutex g_pin_m;
static std::map<uintptr_t, size_t> g_pinned;
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = nullptr;
    TORCH_CHECK(posix_memalign(&p, 4096, std::max<size_t>(n, 1)) == 0, "no host memory");
    std::lock_guard<std::mutex> l(g_pin_m);
    g_pinned[uintptr_t(p)] = n;
    return {p, p, &release, Device(c10::kCPU)};
  }
  static void release(void* p) {
    g_queues->settle();
    {
      std::lock_guard<std::mutex> l(g_pin_m);
      g_pinned.erase(uintptr_t(p));
    }
    free(p);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
};
static PinnedAllocator g_pinned_allocator;
static bool is_pinned(const void* p) {
  std::lock_guard<std::mutex> l(g_pin_m);
  auto it = g_pinned.upper_bound(uintptr_t(p));
  if (it == g_pinned.begin()) return false;
  --it;
  return uintptr_t(p) < it->first + std::max<size_t>(it->second, 1);
}

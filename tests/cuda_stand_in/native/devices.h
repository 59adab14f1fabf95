// Devices, streams, events and generators, as torch asks for them.
#pragma once

static std::atomic<int64_t> g_next_stream{1};
static void synchronize_stream(const CUstream_st* stream) { c10::cuda::CUDAStream{stream}.synchronize(); }
struct Event {
  Queue* queue = nullptr;  // where it was recorded last
  uint64_t at = 0;
  Clock::time_point time;
};
struct Devices final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device d) const override {
    auto old = getDevice();
    setDevice(d);
    return old;
  }
  Device getDevice() const override { return Device(c10::kCUDA, t_device); }
  void setDevice(Device d) const override {
    if (d.index() < 0 || d.index() == t_device) return;  // as torch, which then asks nothing of CUDA
    require_context();
    TORCH_CHECK(d.index() < g_count.load(), "CUDA error: invalid device ordinal");
    t_device = d.index();
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.index() >= 0) t_device = d.index();
  }
  static int64_t at(Device d) {
    auto it = t_stream.find(d.index() < 0 ? t_device : d.index());
    return it == t_stream.end() ? 0 : it->second;
  }
  static Device full(Device d) { return d.index() < 0 ? Device(c10::kCUDA, t_device) : d; }
  c10::Stream getStream(Device d) const override { return c10::Stream(c10::Stream::UNSAFE, full(d), at(d)); }
  c10::Stream getDefaultStream(Device d) const override { return c10::Stream(c10::Stream::DEFAULT, full(d)); }
  c10::Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d); }
  c10::Stream getNewStream(Device d, int = 0) const override {
    return c10::Stream(c10::Stream::UNSAFE, full(d), g_next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto old = getStream(s.device());
    t_stream[s.device_index()] = s.id();
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return reinterpret_cast<void*>(s.id()); }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void record(void** e, const c10::Stream& s, const DeviceIndex d, const c10::EventFlag) const override {
    TORCH_CHECK(d == -1 || d == s.device_index(), "Event device index ", int(d),
                " does not match recording stream's device index ", int(s.device_index()), ".");
    if (!*e) *e = new Event();
    auto* event = static_cast<Event*>(*e);
    event->queue = &of(s);
    event->at = event->queue->note([event] { event->time = Clock::now(); });
  }
  static Queue& of(const c10::Stream& s) { return g_queues->of(s.device_index(), s.id()); }
  void block(void* e, const c10::Stream& s) const override {
    auto* event = static_cast<Event*>(e);
    if (event && event->queue) of(s).wait_on_gpu(*event->queue, event->at);
  }
  bool queryEvent(void* e) const override {
    auto* event = static_cast<Event*>(e);
    return !event || !event->queue || event->queue->reached(event->at);
  }
  DeviceIndex deviceCount() const noexcept override { return g_count.load(); }
  bool queryStream(const c10::Stream& s) const override { return of(s).reached(of(s).mark()); }
  void synchronizeStream(const c10::Stream& s) const override { of(s).drain(synchronize_stream); }
  void synchronizeEvent(void* e) const override {
    auto* event = static_cast<Event*>(e);
    if (event && event->queue) event->queue->wait_for(event->at, cudaEventSynchronize);
  }
  void synchronizeDevice(const DeviceIndex d) const override { g_queues->drain(d < 0 ? t_device : d); }
  double elapsedTime(void* a, void* b, const DeviceIndex) const override {
    auto *x = static_cast<Event*>(a), *y = static_cast<Event*>(b);
    return std::chrono::duration<double, std::milli>(y->time - x->time).count();
  }
};
static Devices g_guard;

struct Generator final : c10::GeneratorImpl {
  at::Generator cpu;
  Generator(DeviceIndex d, at::Generator c)
      : c10::GeneratorImpl(Device(c10::kCUDA, d), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        cpu(std::move(c)) {}
  void set_current_seed(uint64_t s) override { cpu.set_current_seed(s); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& s) override { cpu.unsafeGetGeneratorImpl()->set_state(s); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override { return new Generator(device().index(), cpu.clone()); }
};
static at::Generator new_generator(DeviceIndex d) {
  return at::make_generator<Generator>(d < 0 ? t_device : d,
                                       at::detail::createCPUGenerator(c10::default_rng_seed_val));
}
struct Hooks final : at::CUDAHooksInterface {
  Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex d) const override {
    static std::vector<at::Generator> all;
    static std::mutex m;
    std::lock_guard<std::mutex> l(m);
    if (all.empty())
      for (int i = 0; i < 64; i++) all.push_back(new_generator(i));
    return all[d < 0 ? t_device : d];
  }
  at::Generator getNewGenerator(DeviceIndex d) const override { return new_generator(d); }
  Device getDeviceFromPtr(void*) const override { return Device(c10::kCUDA, t_device); }
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return g_count > 0; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return t_device; }
  DeviceIndex deviceCount() const override { return g_count.load(); }
  DeviceIndex getCurrentDevice() const override { return t_device; }
  void setCurrentDevice(DeviceIndex d) const override { t_device = d; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &g_pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &g_allocator; }
  int getNumGPUs() const override { return g_count.load(); }
  void deviceSynchronize(DeviceIndex d) const override { g_guard.synchronizeDevice(d); }
};
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::Hooks)
}

struct GpuTimer final : c10d::Timer {
  explicit GpuTimer(Device) {}
  std::optional<int64_t> measureDifference(Event a, Event b) override {
    auto x = getTimeRef(a), y = getTimeRef(b);
    if (x < 0 || y < 0) return std::nullopt;
    return y - x;
  }
};
namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ::GpuTimer)
}

// A queue and a worker for each stream of each GPU: the host goes on while they work, and so do other streams.
#pragma once

struct Queue {
  explicit Queue(int device) : device(device) {}
  const int device;

  // Put work into the queue, with what is to go wrong there.
  void put(std::function<void()> work, bool with_data = true) {
    const std::string wrong = count_operation(device);
    if (wrong == "stuck")
      add(
          [] {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
          },
          false);
    if (wrong == "error") add([] { g_context_broken = true; }, false);
    if (work) add(std::move(work), with_data);
  }

  // A kernel whose result the host has already, and which the GPU has still to come to; or one that computes then.
  void put_kernel(std::function<void()> compute = nullptr) {
    const int64_t microseconds = g_kernel_microseconds;
    if (compute)
      put([=] {
        if (microseconds > 0) usleep(microseconds);
        compute();
      });
    else if (microseconds > 0)
      put([=] { usleep(microseconds); }, false);
    else
      put(nullptr, false);
  }

  // A kernel that does nothing for so many cycles of a clock of 1.98 GHz.
  void put_sleep(int64_t cycles) {
    const auto length = std::chrono::nanoseconds(int64_t(double(cycles) / 1.98));
    put([=] { std::this_thread::sleep_for(length); }, false);
  }

  // What is no operation of the GPU, such as an event.
  uint64_t note(std::function<void()> work) { return add(std::move(work), false); }

  // What comes into this queue from now on begins when the other has come so far.
  void wait_on_gpu(Queue& other, uint64_t n) {
    if (&other != this && !other.reached(n)) add([&other, n] { other.sleep_until(n); }, true);
  }

  uint64_t mark() {
    std::unique_lock<std::mutex> l(m);
    return given;
  }
  bool reached(uint64_t n) const { return finished.load(std::memory_order_acquire) >= n; }

  // Wait as the host does, in the driver, and learn of what went wrong meanwhile.
  void wait_for(uint64_t n, Waiting synchronize = cudaStreamSynchronize) {
    settle(n, synchronize);
    require_context();
  }
  void drain(Waiting synchronize = cudaStreamSynchronize) { wait_for(mark(), synchronize); }
  bool has_data_to_come() {
    std::unique_lock<std::mutex> l(m);
    return finished < last_with_data;
  }
  void wait_for_data() {
    uint64_t n;
    {
      std::unique_lock<std::mutex> l(m);
      n = last_with_data;
    }
    wait_for(n);
  }

  // The same for those that must not raise.
  void settle(uint64_t n, Waiting synchronize = cudaStreamSynchronize) {
    if (reached(n)) return;
    {
      std::unique_lock<std::mutex> l(m);
      if (std::this_thread::get_id() == worker) return;
    }
    const CUstream_st what{&finished, n};
    if (Py_IsInitialized() && PyGILState_Check()) {
      py::gil_scoped_release r;
      synchronize(&what);
    } else
      synchronize(&what);
  }

 private:
  std::mutex m;
  std::condition_variable more, done;
  std::deque<std::function<void()>> todo;
  uint64_t given = 0;
  std::atomic<uint64_t> finished{0};
  uint64_t last_with_data = 0;  // the last entry that reads or writes memory; kernels' delays do not
  bool running = false;
  std::thread::id worker;

  // A stream that waits for another, which no processor does for a GPU.
  void sleep_until(uint64_t n) {
    std::unique_lock<std::mutex> l(m);
    done.wait(l, [&] { return finished >= n; });
  }
  uint64_t add(std::function<void()> work, bool with_data) {
    std::unique_lock<std::mutex> l(m);
    todo.push_back(std::move(work));
    given++;
    if (with_data) last_with_data = given;
    if (!running) {
      running = true;
      std::thread([this] { loop(); }).detach();
    }
    more.notify_one();
    return given;
  }
  void loop() {
    pthread_setname_np(pthread_self(), "cuda-EvtHandlr");
    {
      std::unique_lock<std::mutex> l(m);
      worker = std::this_thread::get_id();
    }
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> l(m);
        more.wait(l, [&] { return !todo.empty(); });
        work = std::move(todo.front());
        todo.pop_front();
      }
      try {
        if (!g_context_broken) work();
      } catch (const std::exception& e) {
        fprintf(stderr, "CUDA stand-in: an operation failed: %s\n", e.what());
        g_context_broken = true;
      }
      work = nullptr;
      {
        std::unique_lock<std::mutex> l(m);
        finished++;
        done.notify_all();
      }
    }
  }
};

// The queues of this process, by GPU and stream; they live as long as it does.
struct Queues {
  Queue& of(int device, int64_t stream) {
    std::lock_guard<std::mutex> l(m);
    auto& queue = all[{device, stream}];
    if (!queue) queue = new Queue(device);
    return *queue;
  }
  // Those of one GPU, or of all where it is below 0.
  std::vector<Queue*> on(int device) {
    std::lock_guard<std::mutex> l(m);
    std::vector<Queue*> found;
    for (auto& [place, queue] : all)
      if (device < 0 || place.first == device) found.push_back(queue);
    return found;
  }
  void settle(int device = -1) {
    for (auto* queue : on(device)) queue->settle(queue->mark(), c10::cuda::device_synchronize);
  }
  void drain(int device = -1) {
    settle(device);
    require_context();
  }

 private:
  std::mutex m;
  std::map<std::pair<int, int64_t>, Queue*> all;
};
static Queues* g_queues = new Queues();
static thread_local std::map<int, int64_t> t_stream;

// The queue of the stream that is current on that GPU for this thread.
static Queue& current_queue(int device) {
  auto it = t_stream.find(device);
  return g_queues->of(device, it == t_stream.end() ? 0 : it->second);
}

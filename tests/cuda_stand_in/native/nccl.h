// NCCL's process group over gloo's, on a stream of its own for each group.
#pragma once

namespace c10d {
static Tensor bytes(const Tensor& t) { return cpu_alias(t).view(-1).view(at::kByte); }
static bool known(at::ScalarType s) {
  switch (s) {
    case at::kChar:
    case at::kByte:
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBool:
    case at::kBFloat16:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
      return true;
    default:
      return false;
  }
}
struct NcclOptions final : Backend::Options {
  explicit NcclOptions(bool high = false)
      : Backend::Options("nccl", std::chrono::minutes(10)), is_high_priority_stream(high) {}
  bool is_high_priority_stream;
  int64_t split_color = -1;
  py::object split_from, config;
};
struct QueuedWork final : Work {
  Queue* queue = nullptr;
  uint64_t at = 0;
  bool blocks;
  std::vector<Tensor> outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  QueuedWork(int rank, OpType type, std::vector<Tensor> o)
      : Work(rank, type), blocks(false), outputs(std::move(o)) {
    std::vector<Device> devices;
    if (!outputs.empty()) devices.push_back(outputs[0].device());
    future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
  }
  bool isCompleted() override { return queue->reached(at); }
  bool isSuccess() const override { return queue->reached(at); }
  // The current stream waits for the collective; the host does so for a barrier.
  void synchronize() override {
    current_queue(queue->device).wait_on_gpu(*queue, at);
    if (blocks) queue->wait_for(at, synchronize_stream);
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  std::vector<Tensor> result() override { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  void abort() override {}
};
// What torch's watchdog thread of a group looks at: collectives that have not ended.
struct Watched {
  struct Collective {
    Queue* queue;
    uint64_t at, number;
    std::string type;
    int64_t elements_in, elements_out;
    Clock::time_point given;
    std::chrono::milliseconds timeout;
  };
  int rank;
  std::mutex m;
  std::condition_variable woken;
  std::deque<Collective> all;
  bool over = false;

  explicit Watched(int rank) : rank(rank) {}
  void add(Collective one) {
    std::lock_guard<std::mutex> l(m);
    all.push_back(std::move(one));
  }
  void end() {
    std::lock_guard<std::mutex> l(m);
    over = true;
    woken.notify_all();
  }
  // A kernel of NCCL waits for ever; the process ends when the timeout of the first that waits is over.
  void watch() {
    pthread_setname_np(pthread_self(), "pt_nccl_watchdg");
    std::unique_lock<std::mutex> l(m);
    while (!woken.wait_for(l, std::chrono::milliseconds(100), [&] { return over; })) {
      while (!all.empty() && all.front().queue->reached(all.front().at)) all.pop_front();
      if (all.empty()) continue;
      const auto& first = all.front();
      const auto ran = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - first.given);
      if (ran < first.timeout) continue;
      fprintf(stderr,
              "[rank%d]:[E ProcessGroupNCCL.cpp:683] [Rank %d] Watchdog caught collective operation timeout: "
              "WorkNCCL(SeqNum=%lu, OpType=%s, NumelIn=%ld, NumelOut=%ld, Timeout(ms)=%ld) ran for %ld "
              "milliseconds before timing out.\n",
              rank, rank, first.number, first.type.c_str(), first.elements_in, first.elements_out,
              long(first.timeout.count()), long(ran.count()));
      fflush(stderr);
      ::abort();
    }
  }
};

// Something of the other ranks that the host waits for in NCCL, which polls its sockets meanwhile.
struct Meeting {
  std::atomic<bool> over{false};
  std::exception_ptr failed;
  static bool is_over(const void* meeting) { return static_cast<const Meeting*>(meeting)->over; }
};
static void meet(void (*nccl)(Peers, const void*), const std::function<void()>& what) {
  auto meeting = std::make_shared<Meeting>();
  std::thread([meeting, what] {
    try {
      what();
    } catch (...) {
      meeting->failed = std::current_exception();
    }
    meeting->over = true;
  }).detach();
  if (PyGILState_Check()) {
    py::gil_scoped_release r;
    nccl(&Meeting::is_over, meeting.get());
  } else
    nccl(&Meeting::is_over, meeting.get());
  if (meeting->failed) std::rethrow_exception(meeting->failed);
}

struct ProcessGroupNCCL final : Backend {
  c10::intrusive_ptr<Store> store;
  c10::intrusive_ptr<NcclOptions> options;
  c10::intrusive_ptr<Backend> gloo;
  std::mutex starting;
  uint64_t sequence = 0;
  int device = -1;
  int64_t stream = g_next_stream++;
  bool coalescing = false, only_pairs = true, connected = false;
  std::vector<std::function<c10::intrusive_ptr<Work>()>> held;
  std::vector<Tensor> held_outputs;
  std::shared_ptr<Watched> watched;
  ProcessGroupNCCL(c10::intrusive_ptr<Store> s, int rank, int size, c10::intrusive_ptr<NcclOptions> o)
      : Backend(rank, size), store(std::move(s)), options(std::move(o)), watched(std::make_shared<Watched>(rank)) {
    init();
    std::thread([watched = watched] { watched->watch(); }).detach();
  }
  ~ProcessGroupNCCL() override { watched->end(); }
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override { return options; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds t) override { options->timeout = t; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence; }
  ErrorType getError() override { return ErrorType::SUCCESS; }
  void eagerConnectSingleDevice(Device d) override { start(d.index()); }
  void shutdown() override {
    g_queues->drain(device);
    watched->end();
  }
  // ncclCommInitRank: the host waits for the identifier that rank 0 puts into the store, and then in NCCL until every
  // rank is there; two ranks on one GPU are refused.
  void start(int d) {
    std::lock_guard<std::mutex> l(starting);
    if (gloo) return;
    device = d;
    if (getRank() == 0)
      store->set("ncclUniqueId", "here");
    else
      store->get("ncclUniqueId");
    meet(pncclCommInitRankConfig, [this] {
      py::gil_scoped_acquire g;
      auto c10d = py::module_::import("torch._C._distributed_c10d");
      auto object =
          c10d.attr("ProcessGroupGloo")(store, getRank(), getSize(), py::arg("timeout") = options->timeout);
      gloo = object.cast<c10::intrusive_ptr<Backend>>();
    });
    std::string mine = g_gpus[d].bus_id;
    mine.resize(64);
    char host[64] = {0};
    gethostname(host, 63);
    mine += std::string(host, 64);
    auto own = at::empty({int64_t(mine.size())}, at::kByte);
    memcpy(own.data_ptr(), mine.data(), mine.size());
    auto all = gather_bytes(own);
    if (!getenv("NCCL_MULTI_RANK_GPU_ENABLE"))
      for (int r = 0; r < getSize(); r++)
        if (r != getRank() && at::equal(all[r], own))
          C10_THROW_ERROR(
              DistBackendError,
              c10::str("NCCL error in: CUDA stand-in, invalid usage (run with NCCL_DEBUG=WARN for details), "
                       "NCCL version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL "
                       "library.\nLast error:\nDuplicate GPU detected : rank ",
                       getRank(), " and rank ", r, " both on CUDA device ", g_gpus[d].bus_id));
  }
  // The first collective of a communicator connects its ranks, and the host waits for that in NCCL.
  void connect(OpType type) {
    if (connected || type == OpType::SEND || type == OpType::RECV) return;
    meet(entry_of(type), [this] { barrier_now(); });
    connected = true;
  }
  static void (*entry_of(OpType type))(Peers, const void*) {
    switch (type) {
      case OpType::ALLREDUCE:
      case OpType::BARRIER:
        return pncclAllReduce;
      case OpType::BROADCAST:
        return pncclBroadcast;
      case OpType::REDUCE:
        return pncclReduce;
      case OpType::ALLGATHER:
      case OpType::_ALLGATHER_BASE:
        return pncclAllGather;
      case OpType::REDUCE_SCATTER:
      case OpType::_REDUCE_SCATTER_BASE:
        return pncclReduceScatter;
      default:
        return pncclGroupEnd;
    }
  }
  // NCCL's kernels of all ranks meet by their order alone; where they are not of one kind, type and size, they wait for
  // ever. Pairs of sends and receives (all-to-all, gather, scatter) have sizes of their own.
  void agree(OpType type, const Tensor& sample) {
    int64_t size = 4, kind = int64_t(at::kFloat), operation = int64_t(type);
    switch (type) {
      case OpType::BARRIER:
        operation = int64_t(OpType::ALLREDUCE);
        break;
      case OpType::ALLREDUCE:
      case OpType::BROADCAST:
      case OpType::REDUCE:
      case OpType::ALLGATHER:
      case OpType::_ALLGATHER_BASE:
      case OpType::REDUCE_SCATTER:
      case OpType::_REDUCE_SCATTER_BASE:
        size = sample.numel() * sample.element_size();
        kind = int64_t(sample.scalar_type());
        break;
      case OpType::SEND:
      case OpType::RECV:
        return;
      default:
        size = 0;
    }
    auto own = at::tensor({operation, kind, size}, at::kLong);
    auto all = gather_bytes(own.view(at::kByte));
    for (int r = 0; r < getSize(); r++) {
      auto other = all[r].view(at::kLong);
      TORCH_CHECK(at::equal(other, own), "rank ", r, " gives ", opTypeToString(OpType(other[0].item<int64_t>())),
                  " of ", other[2].item<int64_t>(), " bytes, rank ", getRank(), " ",
                  opTypeToString(OpType(operation)), " of ", size);
    }
  }
  std::vector<Tensor> gather_bytes(const Tensor& own) {
    std::vector<std::vector<Tensor>> out(1);
    for (int r = 0; r < getSize(); r++) out[0].push_back(at::empty_like(own));
    std::vector<Tensor> in{own};
    if (own.numel()) gloo->allgather(out, in)->wait();
    return out[0];
  }
  void check(const Tensor& t) {
    TORCH_CHECK(t.is_cuda() && !t.is_sparse(), "Tensors must be CUDA and dense");
    TORCH_CHECK(t.is_contiguous(), "Tensors must be contiguous");
    TORCH_CHECK(known(t.scalar_type()), "Unconvertible NCCL type ", t.scalar_type());
    if (device >= 0 && t.get_device() != device)
      TORCH_WARN_ONCE("CUDA stand-in: NCCL on cuda:", t.get_device(),
                      ", which the group did not begin on (cuda:", device, ")");
  }
  c10::intrusive_ptr<Work> collective(OpType type, std::vector<Tensor> outputs, std::vector<Tensor> inputs,
                                      std::function<c10::intrusive_ptr<Work>()> call) {
    for (auto& t : outputs) check(t);
    for (auto& t : inputs) check(t);
    start(outputs.empty() ? (inputs.empty() ? t_device : inputs[0].get_device()) : outputs[0].get_device());
    sequence++;
    auto work = c10::make_intrusive<QueuedWork>(getRank(), type, outputs);
    if (coalescing) {
      only_pairs = only_pairs && (type == OpType::SEND || type == OpType::RECV);
      held.push_back(call);
      for (auto& t : outputs) held_outputs.push_back(t);
      for (auto& t : inputs) held_outputs.push_back(t);
      work->queue = &queue();
      work->at = queue().mark();
      return work;
    }
    put(type, {call}, work, outputs, inputs);
    return work;
  }
  void put(OpType type, std::vector<std::function<c10::intrusive_ptr<Work>()>> calls,
           c10::intrusive_ptr<QueuedWork> work, std::vector<Tensor> outputs, std::vector<Tensor> inputs) {
    connect(type);
    const int rank = getRank();
    const auto number = sequence;
    // What the current stream holds comes first: the collective reads what it wrote.
    auto& before = current_queue(device);
    queue().wait_on_gpu(before, before.mark());
    // Of all-gather the input, of reduce-scatter the output is what every rank has alike.
    const bool gathers = type == OpType::ALLGATHER || type == OpType::_ALLGATHER_BASE;
    const auto& alike = gathers ? inputs : outputs;
    const Tensor sample = alike.empty() ? Tensor() : cpu_alias(alike[0]);
    queue().put([=, this] {
      try {
        at::NoGradGuard no;
        agree(type, sample);
        std::vector<c10::intrusive_ptr<Work>> works;
        for (auto& call : calls)
          if (auto w = call()) works.push_back(w);
        for (auto& w : works) w->wait();
      } catch (const std::exception& e) {
        const auto* error = dynamic_cast<const c10::Error*>(&e);
        // NCCL's kernels wait for ever for a peer that is gone or does something else; torch's watchdog ends the
        // process when the timeout is over.
        if (getenv("CUDA_STAND_IN_DEBUG")) {
          fprintf(stderr, "CUDA stand-in: [Rank %d] seq %lu %s: %.300s; waiting as NCCL would\n", rank, number,
                  opTypeToString(type).c_str(), error ? error->what_without_backtrace() : e.what());
          fflush(stderr);
        }
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
      }
    });
    work->queue = &queue();
    work->at = queue().mark();
    auto elements = [](const std::vector<Tensor>& all) {
      int64_t n = 0;
      for (const auto& t : all) n += t.numel();
      return n;
    };
    watched->add({work->queue, work->at, number, opTypeToString(type), elements(inputs.empty() ? outputs : inputs),
                  elements(outputs), Clock::now(), options->timeout});
    // The future's events are those of NCCL's stream.
    const auto current = t_stream.find(device) == t_stream.end() ? 0 : t_stream[device];
    t_stream[device] = stream;
    work->future->markCompleted(c10::IValue(c10::List<Tensor>(work->outputs)));
    t_stream[device] = current;
  }
  Queue& queue() { return g_queues->of(device, stream); }
  void startCoalescing() override {
    coalescing = only_pairs = true;
    held.clear();
    held_outputs.clear();
  }
  c10::intrusive_ptr<Work> endCoalescing() override {
    coalescing = false;
    auto work = c10::make_intrusive<QueuedWork>(getRank(), OpType::COALESCED, held_outputs);
    put(only_pairs ? OpType::SEND : OpType::COALESCED, held, work, held_outputs, {});
    held.clear();
    return work;
  }
  static Tensor reduce_all(const std::vector<Tensor>& parts, ReduceOp op, at::ScalarType type) {
    auto kind = ReduceOp::RedOpType(op);
    int64_t n = parts.size();
    bool real = at::isFloatingType(type);
    auto wide = real ? at::kDouble : at::kLong;
    Tensor sum;
    for (auto& p : parts) {
      auto v = p.view(type)
                   .to(type == at::kFloat8_e5m2 || type == at::kFloat8_e4m3fn ? at::kFloat : type)
                   .to(wide);
      if (!sum.defined())
        sum = v.clone();
      else
        switch (kind) {
          case ReduceOp::SUM:
          case ReduceOp::AVG:
            sum += v;
            break;
          case ReduceOp::PRODUCT:
            sum *= v;
            break;
          case ReduceOp::MIN:
            sum = at::minimum(sum, v);
            break;
          case ReduceOp::MAX:
            sum = at::maximum(sum, v);
            break;
          default:
            TORCH_CHECK(false, "Cannot use this reduce op with NCCL");
        }
    }
    if (kind == ReduceOp::AVG) sum = real ? sum / double(n) : at::div(sum, n, "trunc");
    if (type == at::kFloat8_e5m2 || type == at::kFloat8_e4m3fn) return sum.to(at::kFloat).to(type);
    return sum.to(type);
  }
  c10::intrusive_ptr<Work> allreduce(std::vector<Tensor>& t, const AllreduceOptions& o) override {
    auto x = t.at(0);
    auto b = bytes(x);
    auto op = o.reduceOp;
    auto type = x.scalar_type();
    return collective(OpType::ALLREDUCE, {x}, {}, [=, this] {
      if (b.numel()) {
        auto r = reduce_all(gather_bytes(b), op, type);
        Tensor(b).copy_(r.view(at::kByte));
      } else
        barrier_now();
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> allreduce_coalesced(std::vector<Tensor>& t,
                                               const AllreduceCoalescedOptions& o) override {
    auto op = o.reduceOp;
    auto all = t;
    return collective(OpType::COALESCED, t, {}, [=, this] {
      for (auto& x : all) {
        auto b = bytes(x);
        auto r = reduce_all(gather_bytes(b), op, x.scalar_type());
        b.copy_(r.view(at::kByte));
      }
      return nullptr;
    });
  }
  void barrier_now() {
    BarrierOptions o;
    gloo->barrier(o)->wait();
  }
  c10::intrusive_ptr<Work> broadcast(std::vector<Tensor>& t, const BroadcastOptions& o) override {
    auto x = t.at(0);
    auto b = bytes(x);
    auto root = o.rootRank;
    return collective(OpType::BROADCAST, {x}, {}, [=, this]() -> c10::intrusive_ptr<Work> {
      if (!b.numel()) return nullptr;
      std::vector<Tensor> v{b};
      BroadcastOptions g;
      g.rootRank = root;
      return gloo->broadcast(v, g);
    });
  }
  c10::intrusive_ptr<Work> reduce(std::vector<Tensor>& t, const ReduceOptions& o) override {
    auto x = t.at(0);
    auto b = bytes(x);
    auto op = o.reduceOp;
    auto root = o.rootRank;
    auto type = x.scalar_type();
    return collective(OpType::REDUCE, {x}, {}, [=, this] {
      if (b.numel()) {
        auto r = reduce_all(gather_bytes(b), op, type);
        if (root == getRank()) Tensor(b).copy_(r.view(at::kByte));
      }
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> allgather(std::vector<std::vector<Tensor>>& out, std::vector<Tensor>& in,
                                     const AllgatherOptions&) override {
    auto b = bytes(in.at(0));
    std::vector<Tensor> outs;
    for (auto& t : out.at(0)) outs.push_back(bytes(t));
    return collective(OpType::ALLGATHER, out[0], in, [=, this] {
      auto r = gather_bytes(b);
      for (size_t k = 0; k < outs.size(); k++) Tensor(outs[k]).copy_(r[k]);
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> _allgather_base(Tensor& out, Tensor& in, const AllgatherOptions&) override {
    TORCH_CHECK(out.scalar_type() == in.scalar_type(),
                "output tensor must have the same type as input tensor");
    TORCH_CHECK(out.numel() == in.numel() * getSize(),
                "output tensor size must be equal to world_size times input tensor size");
    auto o = bytes(out), i = bytes(in);
    return collective(OpType::_ALLGATHER_BASE, {out}, {in}, [=, this] {
      if (i.numel()) {
        auto r = gather_bytes(i.clone());
        Tensor(o).copy_(at::cat(r));
      }
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(std::vector<Tensor>& o, std::vector<Tensor>& i,
                                                           const AllgatherOptions& a) override {
    c10::intrusive_ptr<Work> w;
    for (size_t k = 0; k < o.size(); k++) w = _allgather_base(o[k], i[k], a);
    return w;
  }
  c10::intrusive_ptr<Work> reduce_scatter(std::vector<Tensor>& out, std::vector<std::vector<Tensor>>& in,
                                          const ReduceScatterOptions& s) override {
    std::vector<Tensor> parts;
    for (auto& t : in.at(0)) parts.push_back(bytes(t));
    auto o = bytes(out.at(0));
    auto op = s.reduceOp;
    auto type = out[0].scalar_type();
    return collective(OpType::REDUCE_SCATTER, out, in[0], [=, this] {
      auto all = gather_bytes(at::cat(parts));
      scatter_own(o, all, op, type);
      return nullptr;
    });
  }
  void scatter_own(Tensor o, std::vector<Tensor> all, ReduceOp op, at::ScalarType type) {
    if (!o.numel()) return;
    for (auto& t : all) t = t.narrow(0, getRank() * o.numel(), o.numel()).clone();
    o.copy_(reduce_all(all, op, type).view(at::kByte));
  }
  c10::intrusive_ptr<Work> _reduce_scatter_base(Tensor& out, Tensor& in,
                                                const ReduceScatterOptions& s) override {
    TORCH_CHECK(in.scalar_type() == out.scalar_type(),
                "input tensor must be the same type as the output tensor.");
    TORCH_CHECK(in.numel() == out.numel() * getSize(),
                "input tensor must be the same size as output size times world size");
    auto o = bytes(out), i = bytes(in);
    auto op = s.reduceOp;
    auto type = out.scalar_type();
    return collective(OpType::_REDUCE_SCATTER_BASE, {out}, {in}, [=, this] {
      scatter_own(o, gather_bytes(i.clone()), op, type);
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(std::vector<Tensor>& o, std::vector<Tensor>& i,
                                                           const ReduceScatterOptions& a) override {
    c10::intrusive_ptr<Work> w;
    for (size_t k = 0; k < o.size(); k++) w = _reduce_scatter_base(o[k], i[k], a);
    return w;
  }
  c10::intrusive_ptr<Work> alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& os,
                                         std::vector<int64_t>& is, const AllToAllOptions&) override {
    auto o = bytes(out), i = bytes(in);
    int n = getSize(), me = getRank();
    int64_t row = in.size(0) ? i.numel() / in.size(0) : 0;
    std::vector<int64_t> sizes = is;
    if (sizes.empty()) {
      TORCH_CHECK(in.size(0) % n == 0 && out.size(0) % n == 0,
                  "Tensor's dim 0 does not divide equally across group size");
      sizes.assign(n, in.size(0) / n);
    }
    return collective(OpType::ALLTOALL_BASE, {out}, {in}, [=, this] {
      auto table = at::tensor(sizes, at::kLong);
      auto tables = gather_bytes(table.view(at::kByte));
      int64_t most = 0;
      for (auto& t : tables) most = std::max(most, t.view(at::kLong).sum().item<int64_t>());
      auto r0 = at::tensor(std::vector<int64_t>{row}, at::kLong);
      auto rows = gather_bytes(r0.view(at::kByte));
      int64_t width = 0;
      for (auto& t : rows) width = std::max(width, t.view(at::kLong).item<int64_t>());
      auto padded = at::zeros({most * width}, at::kByte);
      if (i.numel()) padded.narrow(0, 0, i.numel()).copy_(i);
      auto all = gather_bytes(padded);
      int64_t to = 0;
      for (int r = 0; r < n; r++) {
        auto t = tables[r].view(at::kLong);
        int64_t skip = t.narrow(0, 0, me).sum().item<int64_t>() * width, len = t[me].item<int64_t>() * width;
        if (len) {
          Tensor(o).narrow(0, to, len).copy_(all[r].narrow(0, skip, len));
          to += len;
        }
      }
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> gather(std::vector<std::vector<Tensor>>& out, std::vector<Tensor>& in,
                                  const GatherOptions& g) override {
    auto b = bytes(in.at(0));
    std::vector<Tensor> outs;
    std::vector<Tensor> o;
    if (!out.empty())
      for (auto& t : out[0]) {
        outs.push_back(bytes(t));
        o.push_back(t);
      }
    auto root = g.rootRank;
    return collective(OpType::GATHER, o, in, [=, this] {
      auto r = gather_bytes(b.clone());
      if (root == getRank())
        for (size_t k = 0; k < outs.size(); k++) Tensor(outs[k]).copy_(r[k]);
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> scatter(std::vector<Tensor>& out, std::vector<std::vector<Tensor>>& in,
                                   const ScatterOptions& s) override {
    auto o = bytes(out.at(0));
    std::vector<Tensor> ins, i;
    if (!in.empty())
      for (auto& t : in[0]) {
        ins.push_back(bytes(t));
        i.push_back(t);
      }
    auto root = s.rootRank;
    return collective(OpType::SCATTER, out, i, [=, this]() -> c10::intrusive_ptr<Work> {
      if (!o.numel()) return nullptr;
      auto whole = root == getRank() ? at::cat(ins) : at::empty({o.numel() * getSize()}, at::kByte);
      std::vector<Tensor> v{whole};
      BroadcastOptions b;
      b.rootRank = root;
      gloo->broadcast(v, b)->wait();
      Tensor(o).copy_(whole.narrow(0, getRank() * o.numel(), o.numel()));
      return nullptr;
    });
  }
  c10::intrusive_ptr<Work> send(std::vector<Tensor>& t, int to, int tag) override {
    auto b = bytes(t.at(0));
    return collective(OpType::SEND, {}, {t[0]}, [=, this]() -> c10::intrusive_ptr<Work> {
      if (!b.numel()) return nullptr;
      std::vector<Tensor> v{b};
      return gloo->send(v, to, tag);
    });
  }
  c10::intrusive_ptr<Work> recv(std::vector<Tensor>& t, int from, int tag) override {
    auto b = bytes(t.at(0));
    return collective(OpType::RECV, {t[0]}, {}, [=, this]() -> c10::intrusive_ptr<Work> {
      if (!b.numel()) return nullptr;
      std::vector<Tensor> v{b};
      return gloo->recv(v, from, tag);
    });
  }
  c10::intrusive_ptr<Work> barrier(const BarrierOptions& o) override {
    int d =
        o.device_ids.empty() ? (getBoundDeviceId() ? getBoundDeviceId()->index() : -1) : o.device_ids.front();
    if (d < 0) {
      d = t_device;
      TORCH_WARN_ONCE("CUDA stand-in: barrier() guesses the device (cuda:", d,
                      "): NCCL's would warn, and could hang on another GPU");
    }
    start(d);
    sequence++;
    auto work = c10::make_intrusive<QueuedWork>(getRank(), OpType::BARRIER, std::vector<Tensor>{});
    work->blocks = o.asyncOp;
    put(OpType::BARRIER, {[this]() -> c10::intrusive_ptr<Work> {
          gather_bytes(at::zeros({4}, at::kByte));  // an all-reduce of one float32
          return nullptr;
        }},
        work, {}, {});
    if (!o.asyncOp) {
      current_queue(device).wait_on_gpu(*work->queue, work->at);
      work->queue->wait_for(work->at, synchronize_stream);
    }
    return work;
  }
};
}  // namespace c10d

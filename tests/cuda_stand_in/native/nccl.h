// NCCL's process group over gloo's, on a stream of its own for each group.
#pragma once

namespace nccl {
using namespace c10d;
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
struct Options final : Backend::Options {
  explicit Options(bool high = false)
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
    if (blocks) queue->wait_for(at);
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  std::vector<Tensor> result() override { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  void abort() override {}
};
struct Group final : Backend {
  c10::intrusive_ptr<Store> store;
  c10::intrusive_ptr<Options> options;
  c10::intrusive_ptr<Backend> gloo;
  std::mutex starting;
  uint64_t sequence = 0;
  int device = -1;
  int64_t stream = g_next_stream++;
  bool coalescing = false;
  std::vector<std::function<c10::intrusive_ptr<Work>()>> held;
  std::vector<Tensor> held_outputs;
  Group(c10::intrusive_ptr<Store> s, int rank, int size, c10::intrusive_ptr<Options> o)
      : Backend(rank, size), store(std::move(s)), options(std::move(o)) {
    init();
  }
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override { return options; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds t) override { options->timeout = t; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence; }
  ErrorType getError() override { return ErrorType::SUCCESS; }
  void eagerConnectSingleDevice(Device d) override { start(d.index()); }
  void shutdown() override { g_queues->drain(device); }
  // ncclCommInitRank: blocks the host until every rank is there; refuses two ranks on one GPU.
  void start(int d) {
    std::lock_guard<std::mutex> l(starting);
    if (gloo) {
      return;
    }
    device = d;
    {
      py::gil_scoped_acquire g;
      auto c10d = py::module_::import("torch._C._distributed_c10d");
      auto object =
          c10d.attr("ProcessGroupGloo")(store, getRank(), getSize(), py::arg("timeout") = options->timeout);
      gloo = object.cast<c10::intrusive_ptr<Backend>>();
    }
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
  c10::intrusive_ptr<Work> run(OpType type, std::vector<Tensor> outputs, std::vector<Tensor> inputs,
                               std::function<c10::intrusive_ptr<Work>()> call) {
    for (auto& t : outputs) check(t);
    for (auto& t : inputs) check(t);
    start(outputs.empty() ? (inputs.empty() ? t_device : inputs[0].get_device()) : outputs[0].get_device());
    sequence++;
    auto work = c10::make_intrusive<QueuedWork>(getRank(), type, outputs);
    if (coalescing) {
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
           c10::intrusive_ptr<QueuedWork> work, std::vector<Tensor> o, std::vector<Tensor> i) {
    auto timeout = options->timeout;
    int rank = getRank();
    auto number = sequence;
    // What the current stream holds comes first: the collective reads what it wrote.
    auto& before = current_queue(device);
    queue().wait_on_gpu(before, before.mark());
    queue().put([=] {
      auto began = Clock::now();
      try {
        at::NoGradGuard no;
        std::vector<c10::intrusive_ptr<Work>> works;
        for (auto& call : calls)
          if (auto w = call()) works.push_back(w);
        for (auto& w : works) w->wait();
      } catch (const std::exception& e) {
        // NCCL's kernels wait for ever for a peer that is gone; torch's watchdog ends the process when the
        // timeout is over.
        fprintf(stderr, "CUDA stand-in: [Rank %d] seq %lu %s: %.300s; waiting as NCCL would\n", rank, number,
                opTypeToString(type).c_str(), e.what());
        fflush(stderr);
        const char* mode = getenv("CUDA_STAND_IN_PEER_DEATH");
        if (!mode || std::string(mode) != "abort") std::this_thread::sleep_until(began + timeout);
        fprintf(
            stderr,
            "[rank%d]:[E ProcessGroupNCCL.cpp:683] [Rank %d] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=%lu, OpType=%s, Timeout(ms)=%ld) ran for %ld milliseconds before timing out.\n",
            rank, rank, number, opTypeToString(type).c_str(), long(timeout.count()), long(timeout.count()));
        fflush(stderr);
        ::abort();
      }
    });
    work->queue = &queue();
    work->at = queue().mark();
    // The future's events are those of NCCL's stream.
    const auto current = t_stream.find(device) == t_stream.end() ? 0 : t_stream[device];
    t_stream[device] = stream;
    work->future->markCompleted(c10::IValue(c10::List<Tensor>(work->outputs)));
    t_stream[device] = current;
    (void)o;
    (void)i;
  }
  Queue& queue() { return g_queues->of(device, stream); }
  void startCoalescing() override {
    coalescing = true;
    held.clear();
    held_outputs.clear();
  }
  c10::intrusive_ptr<Work> endCoalescing() override {
    coalescing = false;
    auto work = c10::make_intrusive<QueuedWork>(getRank(), OpType::COALESCED, held_outputs);
    put(OpType::COALESCED, held, work, held_outputs, {});
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
    return run(OpType::ALLREDUCE, {x}, {}, [=, this] {
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
    return run(OpType::COALESCED, t, {}, [=, this] {
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
    return run(OpType::BROADCAST, {x}, {}, [=, this]() -> c10::intrusive_ptr<Work> {
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
    return run(OpType::REDUCE, {x}, {}, [=, this] {
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
    return run(OpType::ALLGATHER, out[0], in, [=, this] {
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
    return run(OpType::_ALLGATHER_BASE, {out}, {in}, [=, this] {
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
    return run(OpType::REDUCE_SCATTER, out, in[0], [=, this] {
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
    return run(OpType::_REDUCE_SCATTER_BASE, {out}, {in}, [=, this] {
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
    return run(OpType::ALLTOALL_BASE, {out}, {in}, [=, this] {
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
    return run(OpType::GATHER, o, in, [=, this] {
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
    return run(OpType::SCATTER, out, i, [=, this]() -> c10::intrusive_ptr<Work> {
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
    return run(OpType::SEND, {}, {t[0]}, [=, this]() -> c10::intrusive_ptr<Work> {
      if (!b.numel()) return nullptr;
      std::vector<Tensor> v{b};
      return gloo->send(v, to, tag);
    });
  }
  c10::intrusive_ptr<Work> recv(std::vector<Tensor>& t, int from, int tag) override {
    auto b = bytes(t.at(0));
    return run(OpType::RECV, {t[0]}, {}, [=, this]() -> c10::intrusive_ptr<Work> {
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
    work->blocks = true;
    put(OpType::BARRIER, {[this]() -> c10::intrusive_ptr<Work> {
          barrier_now();
          return nullptr;
        }},
        work, {}, {});
    return work;
  }
};
}  // namespace nccl

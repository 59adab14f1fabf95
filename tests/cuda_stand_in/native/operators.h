// Every operator by its CPU kernel, on the same memory under another device.
#pragma once

static Tensor make(c10::Storage s, c10::DispatchKey key, const Tensor& like) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(s), c10::DispatchKeySet(key), like.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) t._set_conj(true);
  return t;
}
struct KeepStorage {
  c10::Storage s;
};
static Tensor cpu_alias(const Tensor& t) {
  auto storage = t.storage();
  auto* keep = new KeepStorage{storage};
  c10::DataPtr p(
      storage.unsafeGetStorageImpl()->mutable_data(), keep,
      [](void* c) { delete static_cast<KeepStorage*>(c); }, Device(c10::kCPU));
  c10::Storage s(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(p), c10::GetCPUAllocator(),
                 true);
  return make(std::move(s), c10::DispatchKey::CPU, t);
}
struct KeepTensor {
  Tensor t;
  int device;
  int64_t bytes;
};
static c10::DataPtr adopt(const Tensor& cpu, int device) {
  auto* keep = new KeepTensor{cpu, device, int64_t(cpu.storage().nbytes())};
  account(device, keep->bytes);
  return c10::DataPtr(
      cpu.storage().unsafeGetStorageImpl()->mutable_data(), keep,
      [](void* c) {
        auto* k = static_cast<KeepTensor*>(c);
        account(k->device, -k->bytes);
        delete k;
      },
      Device(c10::kCUDA, device));
}
static Tensor cuda_of(const Tensor& cpu, int device) {
  if (!cpu.defined()) return cpu;
  c10::Storage s(c10::Storage::use_byte_size_t(), cpu.storage().nbytes(), adopt(cpu, device), &g_allocator,
                 true);
  return make(std::move(s), c10::DispatchKey::CUDA, cpu);
}

#include "deferred.h"

struct Seen {
  Tensor cuda, cpu;
};
struct Fall {
  std::vector<Seen> seen;
  int device = -1;
  bool has_cpu = false;
  const c10::OperatorHandle& op;
  std::string name;
  bool lenient;
  explicit Fall(const c10::OperatorHandle& o) : op(o), name(o.schema().operator_name().name) {
    static const std::set<std::string> loose{"aten::index",
                                             "aten::_index_put_impl_",
                                             "aten::index_put_",
                                             "aten::index_put",
                                             "aten::_amp_foreach_non_finite_check_and_unscale_",
                                             "aten::set_",
                                             "aten::_pin_memory",
                                             "aten::repeat_interleave"};
    lenient = loose.count(name) || !g_strict;
  }
  bool waits() const {
    static const std::set<std::string> asking{
        "aten::equal",    "aten::nonzero",           "aten::masked_select",
        "aten::_unique2", "aten::unique_consecutive", "aten::is_nonzero"};
    return asking.count(name);
  }
  void look(const Tensor& t) {
    if (!t.defined()) return;
    if (t.is_cuda()) {
      if (device >= 0 && device != t.get_device() && !lenient)
        TORCH_CHECK(false,
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                    device, " and cuda:", t.get_device(), "! (CUDA stand-in, in ", name, ")");
      device = t.get_device();
    } else if (t.is_cpu() && t.dim() > 0)
      has_cpu = true;
  }
  Tensor change(const Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return t;
    for (auto& s : seen)
      if (s.cuda.is_same(t)) return s.cpu;
    seen.push_back({t, cpu_alias(t)});
    return seen.back().cpu;
  }
  // What the CPU did to an output that it was given: another size, other memory.
  void settle() {
    for (auto& s : seen) {
      bool moved =
          s.cpu.storage().unsafeGetStorageImpl()->data() != s.cuda.storage().unsafeGetStorageImpl()->data() ||
          s.cpu.storage().nbytes() != s.cuda.storage().nbytes();
      if (moved) {
        auto* impl = s.cuda.storage().unsafeGetStorageImpl();
        auto n = s.cpu.storage().nbytes();
        // copy, so that nobody holds a CPU storage that believes it owns what it shares
        int old = t_device;
        t_device = s.cuda.get_device();
        auto p = g_allocator.allocate(n);
        t_device = old;
        if (n) memcpy(p.get(), s.cpu.storage().unsafeGetStorageImpl()->data(), n);
        impl->set_data_ptr(std::move(p));
        impl->set_nbytes(n);
      }
      if (moved || s.cpu.sizes() != s.cuda.sizes() || s.cpu.strides() != s.cuda.strides())
        s.cuda.unsafeGetTensorImpl()->set_sizes_and_strides(s.cpu.sizes(), s.cpu.strides(),
                                                            s.cpu.storage_offset());
    }
  }
  Tensor back(const Tensor& t) {
    if (!t.defined() || !t.is_cpu()) return t;
    for (auto& s : seen)
      if (s.cpu.is_same(t)) return s.cuda;
    for (auto& s : seen)
      if (s.cpu.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
        return make(s.cuda.storage(), c10::DispatchKey::CUDA, t);
    return cuda_of(t, device);
  }
};
static void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Fall f(op);
  const auto n = op.schema().arguments().size(), base = stack->size() - n;
  for (size_t i = base; i < stack->size(); i++) {
    auto& v = (*stack)[i];
    if (v.isTensor())
      f.look(v.toTensor());
    else if (v.isTensorList())
      for (const auto& t : v.toTensorVector()) f.look(t);
    else if (v.isOptionalTensorList())
      for (const auto& t : v.toOptionalTensorVector()) {
        if (t) f.look(*t);
      }
  }
  if (f.has_cpu && f.device >= 0 && !f.lenient)
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                f.device, " and cpu! (CUDA stand-in, in ", f.name, ")");
  // What gives the host a number, or a size, waits for the stream. Everything else comes when the stream has the
  // memory that it needs; where torch cannot say what comes of it, the host waits for that memory.
  auto& queue = current_queue(f.device < 0 ? t_device : f.device);
  if (f.waits())
    queue.drain();
  else if (f.device >= 0 && queue.has_data_to_come()) {
    open_context(f.device);
    if (defer(op, stack, base, f.device, queue) || defer_random(op, stack, base, queue)) return;
    queue.wait_for_data();
  }
  for (size_t i = base; i < stack->size(); i++) {
    auto& v = (*stack)[i];
    if (v.isTensor())
      v = f.change(v.toTensor());
    else if (v.isTensorList()) {
      auto l = v.toTensorVector();
      for (auto& t : l) t = f.change(t);
      v = c10::List<Tensor>(l);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> l;
      for (const auto& t : v.toOptionalTensorVector())
        l.push_back(t ? std::optional<Tensor>(f.change(*t)) : std::nullopt);
      v = l;
    } else if (v.isDevice()) {
      auto d = v.toDevice();
      if (d.is_cuda()) {
        if (f.device < 0) f.device = d.index() < 0 ? t_device : d.index();
        v = Device(c10::kCPU);
      }
    } else if (v.isGenerator()) {
      auto g = v.toGenerator();
      if (g.defined()) {
        TORCH_CHECK(g.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
                    g.device().type(), "'");
        TORCH_CHECK(f.device < 0 || g.device().index() == f.device || !g_strict,
                    "CUDA stand-in: a generator of ", g.device(), " for a tensor of cuda:", f.device);
        v = static_cast<Generator*>(g.unsafeGetGeneratorImpl())->cpu;
      }
    }
  }
  if (f.device < 0) f.device = t_device;
  open_context(f.device);
  current_queue(f.device).put_kernel();
  {
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
  }
  f.settle();
  for (auto& v : *stack) {
    if (v.isTensor())
      v = f.back(v.toTensor());
    else if (v.isTensorList()) {
      auto l = v.toTensorVector();
      for (auto& t : l) t = f.back(t);
      v = c10::List<Tensor>(l);
    }
  }
}

namespace at::native {
// `.item()` and all that ask a tensor for its number.
Scalar _local_scalar_dense_cuda(const Tensor& self) {
  const int device = self.get_device();
  open_context(device);
  auto& queue = current_queue(device);
  queue.put_kernel();
  queue.drain();
  return _local_scalar_dense_cpu(cpu_alias(self));
}
}  // namespace at::native
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

static Device device_of(std::optional<Device> d) {
  return d && d->has_index() ? *d : Device(c10::kCUDA, t_device);
}
struct On {
  int old;
  On(Device d) : old(t_device) { g_guard.setDevice(d); }
  ~On() { t_device = old; }
};
static Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dt, std::optional<at::Layout>,
                    std::optional<Device> d, std::optional<bool> pin, std::optional<at::MemoryFormat> mf) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  On on(device_of(d));
  return at::detail::empty_generic(size, &g_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dt), mf);
}
static Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dt,
                            std::optional<at::Layout>, std::optional<Device> d, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  On on(device_of(d));
  return at::detail::empty_strided_generic(
      size, stride, &g_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dt));
}
static Tensor as_cpu(const Tensor& t) { return t.is_cuda() ? cpu_alias(t) : t; }
namespace at::native {
// A copy between the host and a GPU that the host waits for.
static void copy_kernel_cuda(Queue& queue, bool to_host) {
  queue.put_kernel();
  if (to_host)
    queue.drain([](const CUstream_st* stream) { c10::cuda::memcpy_and_sync(stream, true); });
  else
    queue.drain([](const CUstream_st* stream) { c10::cuda::memcpy_and_sync(stream, false); });
}
}  // namespace at::native
static Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  // What is not to be waited for happens later, as on a GPU, where the host's side is pinned memory or there
  // is none.
  auto pinned = [](const Tensor& t) { return t.is_cuda() || is_pinned(t.const_data_ptr()); };
  const bool on_gpus = self.is_cuda() && src.is_cuda();
  const bool later = non_blocking && pinned(self) && pinned(src);
  Tensor to = as_cpu(self), from = as_cpu(src);
  auto work = [to, from]() mutable {
    at::NoGradGuard g;
    at::AutoDispatchBelowADInplaceOrView a;
    to.copy_(from);
  };
  auto& queue = current_queue(src.is_cuda() ? src.get_device() : self.get_device());
  // A copy between GPUs is the source's, and comes after what the streams of both hold (ATen/native/cuda/Copy.cu).
  if (on_gpus) {
    auto& target = current_queue(self.get_device());
    queue.wait_on_gpu(target, target.mark());
  }
  if (later)
    queue.put([work]() mutable {
      usleep(300);
      work();
    });
  else if (on_gpus && queue.has_data_to_come())
    queue.put_kernel(work);
  else if (on_gpus) {
    queue.put_kernel();
    work();
  } else {
    at::native::copy_kernel_cuda(queue, self.is_cpu());
    work();
  }
  // What comes after it into the target's stream waits for it too.
  if (on_gpus) current_queue(self.get_device()).wait_on_gpu(queue, queue.mark());
  return self;
}
static Tensor copy_from(const Tensor& self, const Tensor& dst, bool nb) {
  Tensor d = dst;
  copy_(d, self, nb);
  return dst;
}
static int64_t sdp_choice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double,
                          bool, std::optional<double>, bool) {
  return 0;
}
static void record_stream(Tensor&, c10::Stream) {}
static Tensor& set_all(Tensor& r, at::Storage s, int64_t offset, at::IntArrayRef size,
                       at::IntArrayRef stride) {
  auto* t = r.unsafeGetTensorImpl();
  t->set_storage_keep_dtype(s);
  std::vector<int64_t> strides(stride.begin(), stride.end());
  if (stride.size() != size.size()) {
    strides.assign(size.size(), 1);
    for (int i = int(size.size()) - 2; i >= 0; i--)
      strides[i] = strides[i + 1] * std::max<int64_t>(size[i + 1], 1);
  }
  t->set_sizes_and_strides(size, strides, offset);
  return r;
}
static Tensor& set_storage(Tensor& r, at::Storage s) {
  int64_t n = s.nbytes() / r.element_size();
  return set_all(r, s, 0, {n}, {1});
}
static Tensor& set_tensor(Tensor& r, const Tensor& s) {
  return set_all(r, s.storage(), s.storage_offset(), s.sizes(), s.strides());
}
static Tensor& set_none(Tensor& r) {
  On on(r.device());
  c10::Storage s(c10::Storage::use_byte_size_t(), 0, g_allocator.allocate(0), &g_allocator, true);
  return set_all(r, s, 0, {0}, {1});
}
static const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  g_queues->drain(self.get_device());
  On on(self.device());
  int64_t n = 1;
  for (auto s : size) n *= s;
  auto* impl = self.unsafeGetTensorImpl();
  auto* st = self.storage().unsafeGetStorageImpl();
  size_t want = (n + self.storage_offset()) * self.element_size();
  if (n && want > st->nbytes()) {
    auto p = g_allocator.allocate(want);
    if (st->nbytes()) memcpy(p.get(), st->data(), st->nbytes());
    st->set_data_ptr(std::move(p));
    st->set_nbytes(want);
  }
  impl->set_sizes_contiguous(size);
  return self;
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_local_scalar_dense", at::native::_local_scalar_dense_cuda);
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_fused_sdp_choice", sdp_choice);
  m.impl("record_stream", record_stream);
  m.impl("set_.source_Storage_storage_offset", set_all);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_none);
  m.impl("resize_", resize_);
}

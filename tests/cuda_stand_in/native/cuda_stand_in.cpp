// A stand-in for CUDA and NCCL in a CPU build of torch: tensors of the dispatch key CUDA whose memory is the
// host's, whose operators are the CPU's, a queue for each stream, and NCCL's process group over gloo.
// See README.md. Nothing here measures anything.
#include <torch/extension.h>
#include <ATen/EmptyTensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Registry.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <pybind11/chrono.h>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <unistd.h>
#include <fcntl.h>
#include <sys/file.h>

namespace py = pybind11;
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using torch::jit::Stack;
using Clock = std::chrono::steady_clock;

#include "driver.h"
#include "machine.h"
#include "queue.h"
#include "memory.h"
#include "devices.h"
#include "operators.h"
#include "nccl.h"

PYBIND11_MODULE(_cuda_stand_in, m) {
  py::module_::import("torch._C._distributed_c10d");
  m.def("add_gpu", [](std::string bus_id, int64_t limit_bytes, std::string lock_path, std::string context_error,
                      std::vector<std::pair<std::string, int64_t>> faults) {
    TORCH_CHECK(g_count < kMostGpus, "more GPUs than the stand-in has room for");
    auto& gpu = g_gpus[g_count++];
    gpu.bus_id = bus_id;
    gpu.limit = limit_bytes;
    gpu.lock_path = lock_path;
    gpu.context_error = context_error;
    for (auto& [kind, after] : faults) gpu.faults.push_back({kind, after});
  });
  m.def("set_strict", [](bool s) { g_strict = s; });
  m.def("set_kernel_microseconds", [](int64_t n) { g_kernel_microseconds = n; });
  m.def("open_context", [](int d) { open_context(d); });
  m.def("used", [](int d) { return g_gpus[d].used.load(); });
  m.def("limit", [](int d) { return g_gpus[d].limit.load(); });
  m.def("peak", [](int d) { return g_gpus[d].peak.load(); });
  m.def("reset_peak", [](int d) { g_gpus[d].peak = g_gpus[d].used.load(); });
  m.def("set_device", [](int d) { g_guard.setDevice(Device(c10::kCUDA, d)); });
  m.def("get_device", [] { return t_device; });
  m.def("drain", [] { g_queues->drain(t_device); });
  m.def("sleep", [](int64_t cycles) { current_queue(t_device).put_sleep(cycles); });
  m.def("current_stream", [](int d) { return Devices::at(Device(c10::kCUDA, d)); });
  m.def("set_stream", [](int64_t id, int d) {
    t_stream[d] = id;
    g_guard.setDevice(Device(c10::kCUDA, d));
  });
  m.def("resize_storage", [](const Tensor& t, int64_t n) {
    g_queues->drain(t.get_device());
    On on(t.device());
    auto* st = t.storage().unsafeGetStorageImpl();
    if (size_t(n) == st->nbytes()) return;
    auto p = g_allocator.allocate(n);
    if (n && st->nbytes()) memcpy(p.get(), st->data(), std::min<size_t>(n, st->nbytes()));
    st->set_data_ptr(std::move(p));
    st->set_nbytes(n);
  });
  m.def("elapsed", [](uintptr_t a, uintptr_t b) {
    return g_guard.elapsedTime(reinterpret_cast<void*>(a), reinterpret_cast<void*>(b), 0);
  });
  m.def("forked", [] { g_queues = new Queues(); });
  m.def("new_generator", [](int d) { return new_generator(d); });
  py::class_<c10d::NcclOptions, c10d::Backend::Options, c10::intrusive_ptr<c10d::NcclOptions>> options(m, "Options");
  options.def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &c10d::NcclOptions::is_high_priority_stream)
      .def_readwrite("split_from", &c10d::NcclOptions::split_from)
      .def_readwrite("split_color", &c10d::NcclOptions::split_color)
      .def_readwrite("config", &c10d::NcclOptions::config);
  py::class_<c10d::ProcessGroupNCCL, c10d::Backend, c10::intrusive_ptr<c10d::ProcessGroupNCCL>> group(m, "ProcessGroupNCCL");
  group
      .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, c10::intrusive_ptr<c10d::NcclOptions>>(),
           py::call_guard<py::gil_scoped_release>(), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("options"))
      .def("_group_start", &c10d::ProcessGroupNCCL::startCoalescing)
      .def("_group_end", [](c10d::ProcessGroupNCCL& g) { g.endCoalescing(); })
      .def("perform_nocolor_split", [](c10d::ProcessGroupNCCL&, py::object) {})
      .def("_is_initialized", [](c10d::ProcessGroupNCCL& g) { return bool(g.gloo); });
  group.attr("Options") = options;
}

[[maybe_unused]] static int g_registered = [] {
  c10::SetAllocator(c10::kCUDA, &g_allocator);
  static c10::impl::DeviceGuardImplRegistrar r(c10::kCUDA, &g_guard);
  return 0;
}();

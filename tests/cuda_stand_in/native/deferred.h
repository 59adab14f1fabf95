// Operators whose memory is still to be written: the host goes on, and the stream computes them when it comes there.
#pragma once

// An operator as its CPU kernel will be called, and where its results go.
struct Deferred {
  c10::OperatorHandle op;
  Stack arguments;              // of the CPU, on the same memory
  std::vector<Tensor> results;  // fresh ones, on the GPU; an undefined one stays so
  void compute() {
    at::NoGradGuard no_grad;
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    at::AutoDispatchBelowADInplaceOrView guard;
    Stack stack = arguments;
    op.callBoxed(stack);
    size_t next = 0;
    auto keep = [&](const Tensor& made) {
      const Tensor to = next < results.size() ? results[next++] : Tensor();
      if (to.defined()) cpu_alias(to).copy_(made);
    };
    if (results.empty()) return;
    for (auto& value : stack)
      if (value.isTensor())
        keep(value.toTensor());
      else
        for (const Tensor& made : value.toTensorVector()) keep(made);
  }
};

// The arguments with each tensor changed; false where one cannot be computed later.
template <class Change>
static bool change_arguments(Stack& stack, size_t base, c10::DeviceType device, const Change& change) {
  auto changed = [&](const Tensor& t, Tensor& to) {
    if (!t.defined()) return true;
    if (t.layout() != c10::kStrided || t.is_conj() || t.is_neg()) return false;
    if (!t.is_cuda() && (!t.is_cpu() || t.dim() > 0)) return false;
    to = change(t);
    return true;
  };
  for (size_t i = base; i < stack.size(); i++) {
    auto& v = stack[i];
    if (v.isTensor()) {
      Tensor to;
      if (!changed(v.toTensor(), to)) return false;
      v = to;
    } else if (v.isTensorList()) {
      auto all = v.toTensorVector();
      for (auto& t : all)
        if (!changed(Tensor(t), t)) return false;
      v = c10::List<Tensor>(all);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> all;
      for (const auto& t : v.toOptionalTensorVector()) {
        Tensor to;
        if (t && !changed(*t, to)) return false;
        all.push_back(t ? std::optional<Tensor>(to) : std::nullopt);
      }
      v = all;
    } else if (v.isGenerator() && v.toGenerator().defined())
      return false;
    else if (v.isDevice())
      v = Device(device);
  }
  return true;
}

static Tensor as_meta(const Tensor& t) {
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta));
}
static Tensor to_compute_later(const Tensor& t) { return t.is_cuda() ? cpu_alias(t) : t.clone(); }

// What that operator leaves on the stack for tensors without memory; false where torch cannot say without data.
static bool call_without_data(const c10::OperatorHandle& op, Stack& stack) {
  if (!change_arguments(stack, 0, c10::kMeta, as_meta)) return false;
  try {
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}
static std::optional<std::vector<std::vector<int64_t>>> sizes_of_results(const c10::OperatorHandle& op, Stack stack) {
  if (!call_without_data(op, stack)) return std::nullopt;
  std::vector<std::vector<int64_t>> sizes;
  for (const auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) return std::nullopt;
    sizes.push_back(value.toTensor().sizes().vec());
  }
  return sizes;
}
// The results of an operator that makes new tensors, on the GPU.
static std::optional<std::vector<c10::IValue>> fresh_results(const c10::OperatorHandle& op, Stack stack, int device) {
  if (!call_without_data(op, stack)) return std::nullopt;
  auto allocate = [&](const Tensor& meta) {
    if (!meta.defined()) return Tensor();
    return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(Device(c10::kCUDA, device)));
  };
  std::vector<c10::IValue> results;
  for (auto& value : stack) {
    if (value.isTensor()) {
      if (value.toTensor().defined() && !value.toTensor().is_meta()) return std::nullopt;
      results.push_back(allocate(value.toTensor()));
    } else if (value.isTensorList()) {
      auto all = value.toTensorVector();
      for (auto& t : all) t = allocate(t);
      results.push_back(c10::List<Tensor>(all));
    } else
      return std::nullopt;
  }
  return results;
}

// Give the operator to the stream and leave its results on the stack; false where the host must wait instead.
static bool defer(const c10::OperatorHandle& op, Stack* stack, size_t base, int device, Queue& queue) {
  const auto& schema = op.schema();
  for (auto tag : {at::Tag::data_dependent_output, at::Tag::dynamic_output_shape, at::Tag::inplace_view,
                   at::Tag::nondeterministic_seeded})
    if (op.hasTag(tag)) return false;
  std::vector<c10::IValue> results;
  for (const auto& result : schema.returns()) {
    if (!result.alias_info()) continue;
    if (!result.alias_info()->isWrite()) return false;  // a view
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const auto* info = schema.arguments()[i].alias_info();
      if (info && info->beforeSets() == result.alias_info()->beforeSets()) results.push_back((*stack)[base + i]);
    }
  }
  const bool writes = !results.empty() || schema.returns().empty();
  if (!results.empty() && results.size() != schema.returns().size()) return false;
  Stack arguments(stack->begin() + base, stack->end());
  if (!change_arguments(arguments, 0, c10::kCPU, to_compute_later)) return false;
  std::vector<Tensor> fresh;
  const std::string& name = schema.operator_name().name;
  if (writes && name.back() != '_') {  // an `out` may get another size
    auto sizes = sizes_of_results(op, Stack(stack->begin() + base, stack->end()));
    if (!sizes || sizes->size() != results.size()) return false;
    for (size_t i = 0; i < results.size(); i++)
      if (!results[i].isTensor() || results[i].toTensor().sizes() != at::IntArrayRef((*sizes)[i])) return false;
  } else if (!writes) {
    auto made = fresh_results(op, Stack(stack->begin() + base, stack->end()), device);
    if (!made) return false;
    results = *made;
    for (const auto& value : results)
      if (value.isTensor())
        fresh.push_back(value.toTensor());
      else
        for (const Tensor& t : value.toTensorVector()) fresh.push_back(t);
  }
  auto work = std::make_shared<Deferred>(Deferred{op, std::move(arguments), std::move(fresh)});
  queue.put_kernel([work] { work->compute(); });
  stack->erase(stack->begin() + base, stack->end());
  stack->insert(stack->end(), results.begin(), results.end());
  return true;
}

// Random numbers that fill a tensor are drawn now, so that their order is the program's, and arrive later.
static bool defer_random(const c10::OperatorHandle& op, Stack* stack, size_t base, Queue& queue) {
  static const std::set<std::string> filling{"aten::normal_",    "aten::uniform_",     "aten::random_",
                                             "aten::bernoulli_", "aten::exponential_", "aten::cauchy_",
                                             "aten::geometric_", "aten::log_normal_"};
  if (!filling.count(op.schema().operator_name().name)) return false;
  const Tensor self = (*stack)[base].toTensor();
  const Tensor to = cpu_alias(self), drawn = at::empty_like(to);
  Stack arguments(stack->begin() + base, stack->end());
  arguments[0] = drawn;
  for (size_t i = 1; i < arguments.size(); i++) {
    if (arguments[i].isTensor()) return false;
    if (arguments[i].isGenerator() && arguments[i].toGenerator().defined()) {
      auto* generator = arguments[i].toGenerator().unsafeGetGeneratorImpl();
      arguments[i] = static_cast<Generator*>(generator)->cpu;
    }
  }
  {
    c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(arguments);
  }
  queue.put_kernel([to, drawn]() mutable {
    at::NoGradGuard no_grad;
    at::AutoDispatchBelowADInplaceOrView guard;
    to.copy_(drawn);
  });
  stack->erase(stack->begin() + base, stack->end());
  stack->push_back(self);
  return true;
}

// The boxed fallback: runs an operation of the neuron device with the CPU's kernel, on the same memory.
//
// Its arguments become CPU tensors over the neuron tensors' memory (alias.h), its results neuron tensors over the
// memory that the kernel allocated (host_allocations.h). Nothing is copied, so views, in-place operations and out=
// arguments mean what they mean on the CPU.
#include "fallback.h"

#include "generator.h"
#include "operation.h"

#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <optional>

namespace neuron {
namespace {

// An error with and without strict mode.
[[noreturn]] void refuse_layout(const std::string& operation, at::TensorList tensors, c10::Layout layout) {
  if (strict::is_on(strict::kSparse)) {
    strict::refuse(strict::kSparse, operation, tensors, "the device has only dense tensors. Use Tensor.to_dense()");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, operation, strict::with_tensors(tensors), ": the neuron device has no sparse tensors (layout ", layout,
      "). Use dense tensors (Tensor.to_dense(), Embedding(sparse=False)), or keep the sparse step on the CPU. ",
      strict::called_at(), ".");
  std::abort();
}

constexpr auto kInsteadOfQuantized =
    "Use integer tensors with a scale beside them, or keep the quantized step on the CPU.";
constexpr auto kInsteadOfNested =
    "Use padded tensors or nested ones with layout=torch.jagged; for torch.nn.TransformerEncoder pass "
    "mask_check=True or enable_nested_tensor=False.";

class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), schema_(op.schema()), record_(record_of(op)), stack_(stack) {}

  void run() {
    TORCH_CHECK_NOT_IMPLEMENTED(
        op_.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
            op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
        record_.name,
        " is not implemented for the emulated neuron device: it runs operations with the CPU's kernels, and PyTorch "
        "has none for this one. Move the tensors to a device that has it, or write the step with other "
        "operations.");
    find_core();
    observe_call();
    arguments_to_host();
    {
      const AllocateOnCore scope(core_);
      std::optional<profiler::Range> range;
      if (C10_LIKELY(!record_.is_view)) {
        range.emplace(record_.name, profiler::Activity::kKernel, core_);
      }
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    }
    for (const auto& [device, host] : aliases_) {
      follow_resize(device, host);
    }
    results_to_device();
  }

 private:
  struct Alias {
    at::Tensor device;
    at::Tensor host;
  };

  at::ArrayRef<c10::IValue> arguments() const {
    return torch::jit::last(*stack_, schema_.arguments().size());
  }

  // -- before the call ----------------------------------------------------------------------------------------------

  template <typename Function>
  void for_each_tensor(at::ArrayRef<c10::IValue> values, Function function) const {
    for (size_t i = 0; i < values.size(); i++) {
      const auto& value = values[i];
      if (value.isTensor()) {
        function(value.toTensor(), i);
      } else if (value.isList() && holds_tensors(value)) {
        for (const auto& element : value.toListRef()) {
          if (element.isTensor()) {
            function(element.toTensor(), i);
          }
        }
      }
    }
  }

  static bool holds_tensors(const c10::IValue& list) {
    return list.isTensorList() || list.isOptionalTensorList();
  }

  // The core of the first neuron tensor, else of the device argument, else the current one. PyTorch's usual error where
  // the tensors are on different devices.
  void find_core() {
    std::optional<c10::Device> found;
    for_each_tensor(arguments(), [&](const at::Tensor& tensor, size_t index) {
      if (!tensor.defined() || may_be_on_host(tensor, index)) {
        return;
      }
      if (!found) {
        found = tensor.device();
      } else if (tensor.device() != *found) {
        const auto neuron_first = found->type() == kDeviceType;
        raise_mixed_devices(
            neuron_first ? *found : tensor.device(), neuron_first ? tensor.device() : *found,
            schema_.arguments()[index].name(), record_.name);
      }
    });
    if (!found || found->type() != kDeviceType) {
      found = device_argument();
    }
    core_ = found ? core_of(*found) : current_core();
  }

  // The core that an operation without neuron tensors is to make its result on.
  std::optional<c10::Device> device_argument() const {
    for (const auto& value : arguments()) {
      if (value.isDevice() && value.toDevice().type() == kDeviceType) {
        return value.toDevice();
      }
    }
    for (const auto& value : arguments()) {
      if (value.isGenerator()) {
        const auto device = value.toGenerator().device();
        TORCH_CHECK(
            device.type() != kDeviceType, record_.name, " got a generator of ", device, " for a tensor on the CPU. Pass "
            "a CPU generator, or make the tensor on the neuron device.");
      }
    }
    return std::nullopt;
  }

  // As on other accelerators: numbers that are read, and what record_ says, but neither the tensor that is indexed nor
  // the values that an index_put writes.
  bool may_be_on_host(const at::Tensor& tensor, size_t index) const {
    const auto& argument = schema_.arguments()[index];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (!tensor.is_cpu() || is_written) {
      return false;
    }
    if (record_.takes_host_tensors) {
      return index > 0 && (tensor.dim() == 0 || argument.name() != "values");
    }
    return tensor.dim() == 0;
  }

  void observe_call() {
    if (record_.is_view) {
      return;
    }
    Signature signature(record_);
    for (const auto& value : arguments()) {
      signature.add(value);
    }
    if (C10_UNLIKELY(strict::is_on())) {
      strict::check_call(record_, all_tensors(arguments()), signature);
    }
    count_call(record_, signature);
  }

  std::vector<at::Tensor> all_tensors(at::ArrayRef<c10::IValue> values) const {
    std::vector<at::Tensor> tensors;
    for_each_tensor(values, [&](const at::Tensor& tensor, size_t /*index*/) { tensors.push_back(tensor); });
    return tensors;
  }

  void arguments_to_host() {
    const auto count = schema_.arguments().size();
    const auto begin = stack_->size() - count;
    for (size_t i = 0; i < count; i++) {
      auto& value = (*stack_)[begin + i];
      if (value.isTensor()) {
        if (is_neuron(value.toTensor())) {
          value = to_host(value.toTensor());
        }
      } else if (value.isTensorList()) {
        value = list_to_host(value.toTensorVector());
      } else if (value.isOptionalTensorList()) {
        value = list_to_host(value.toOptionalTensorList());
      } else if (value.isDevice()) {
        if (value.toDevice().type() == kDeviceType) {
          value = c10::Device(c10::kCPU);
        }
      } else if (static_cast<int>(i) == record_.generator_argument) {
        value = generator_to_host(value);
      }
    }
  }

  at::Tensor to_host(const at::Tensor& tensor) {
    for (const auto& alias : aliases_) {
      if (alias.device.is_same(tensor)) {
        return alias.host;
      }
    }
    auto host = host_alias(tensor);
    aliases_.push_back({tensor, host});
    return host;
  }

  c10::List<at::Tensor> list_to_host(const std::vector<at::Tensor>& tensors) {
    c10::List<at::Tensor> hosts;
    hosts.reserve(tensors.size());
    for (const auto& tensor : tensors) {
      hosts.push_back(is_neuron(tensor) ? to_host(tensor) : tensor);
    }
    return hosts;
  }

  c10::List<std::optional<at::Tensor>> list_to_host(const c10::List<std::optional<at::Tensor>>& tensors) {
    c10::List<std::optional<at::Tensor>> hosts;
    hosts.reserve(tensors.size());
    for (const std::optional<at::Tensor>& tensor : tensors) {
      hosts.push_back(tensor && is_neuron(*tensor) ? to_host(*tensor) : tensor);
    }
    return hosts;
  }

  at::Generator generator_to_host(const c10::IValue& value) const {
    if (value.isNone()) {
      return host_generator(default_generator(core_));
    }
    auto generator = value.toGenerator();
    return generator.device().type() == kDeviceType ? host_generator(generator) : generator;
  }

  // -- after the call -----------------------------------------------------------------------------------------------

  void results_to_device() {
    const auto count = schema_.returns().size();
    const auto begin = stack_->size() - count;
    for (size_t i = 0; i < count; i++) {
      auto& value = (*stack_)[begin + i];
      if (value.isTensor()) {
        value = to_device(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> devices;
        for (const auto& tensor : value.toTensorVector()) {
          devices.push_back(to_device(tensor));
        }
        value = std::move(devices);
      }
    }
    if (C10_UNLIKELY(strict::is_on())) {
      strict::check_results(record_, all_tensors(torch::jit::last(*stack_, count)));
    }
  }

  at::Tensor to_device(const at::Tensor& host) const {
    if (!host.defined() || !host.is_cpu()) {
      return host;
    }
    for (const auto& alias : aliases_) {
      if (alias.host.is_same(host)) {
        return alias.device;
      }
    }
    refuse_foreign_result(host);
    for (const auto& alias : aliases_) {
      if (host.storage().is_alias_of(alias.host.storage())) {
        return device_tensor(alias.device.storage(), host);
      }
    }
    return device_alias(host, core_);
  }

  void refuse_foreign_result(const at::Tensor& host) const {
    TORCH_CHECK_NOT_IMPLEMENTED(
        host.layout() != c10::kMkldnn, record_.name, " makes a tensor of layout ", host.layout(),
        ", which the neuron device does not have. Use dense tensors, or do this step on the CPU.");
    if (C10_UNLIKELY(host.layout() != c10::kStrided)) {
      refuse_layout(record_.name, {host}, host.layout());
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        !host.is_quantized() && !host.is_nested(), record_.name, " makes a ",
        host.is_nested() ? "nested" : "quantized", " tensor, which the neuron device does not have. ",
        host.is_nested() ? kInsteadOfNested : kInsteadOfQuantized);
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  OpRecord& record_;
  torch::jit::Stack* stack_;
  c10::SmallVector<Alias, 6> aliases_;
  c10::DeviceIndex core_ = 0;
};

} // namespace

void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  HostCall(op, stack).run();
}

namespace {

bool is_composed_without_backend(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

} // namespace

void register_composed_operations() {
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    // Only PyTorch's own: what a library composes for every backend (its CompositeExplicitAutograd) it means to run here.
    const auto space = name.getNamespace();
    if (!space || *space != "aten") {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (op && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && is_composed_without_backend(*op) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      library->impl(
          c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&host_fallback>(),
          torch::_RegisterOrVerify::REGISTER);
    }
  }
}

namespace {

[[noreturn]] void refuse(const c10::OperatorHandle& op, const char* kind, const char* instead) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "The neuron device has no ", kind, " tensors (", op.schema().name(), "). ", instead);
  std::abort();
}

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  refuse(op, "quantized", kInsteadOfQuantized);
}

template <c10::BoxedKernel::BoxedKernelFunction* Kernel>
void register_refusal(c10::DispatchKey key) {
  auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<Kernel>());
}

} // namespace

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::vector<at::Tensor> tensors;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    }
  }
  refuse_layout(op.schema().name(), tensors, c10::kSparse);
}

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  refuse(op, "nested", kInsteadOfNested);
}

void register_refusals() {
  register_refusal<&refuse_sparse>(c10::DispatchKey::SparsePrivateUse1);
  register_refusal<&refuse_sparse>(c10::DispatchKey::SparseCsrPrivateUse1);
  register_refusal<&refuse_quantized>(c10::DispatchKey::QuantizedPrivateUse1);
  register_refusal<&refuse_nested>(c10::DispatchKey::NestedTensorPrivateUse1);
}

} // namespace neuron

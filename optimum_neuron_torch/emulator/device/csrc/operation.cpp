// What every kernel of the device does around its work on host memory.
#include "operation.h"

#include <c10/util/Exception.h>

namespace neuron {
namespace {

// The name of the n-th tensor argument, for kernels whose tensors are the first of those in the schema.
std::string tensor_argument_name(const std::string& operation, size_t n) {
  const auto dot = operation.find('.');
  const auto overload = dot == std::string::npos ? "" : operation.substr(dot + 1);
  const auto op = c10::Dispatcher::singleton().findSchema({operation.substr(0, dot), overload});
  if (op) {
    for (const auto& argument : op->schema().arguments()) {
      const auto type = argument.type()->str();
      if ((type == "Tensor" || type == "Tensor?") && n-- == 0) {
        return argument.name();
      }
    }
  }
  return "?";
}

c10::DeviceIndex first_core(at::TensorList tensors) {
  for (const auto& tensor : tensors) {
    if (is_neuron(tensor)) {
      return tensor.device().index();
    }
  }
  return current_core();
}

} // namespace

void raise_mixed_devices(
    c10::Device expected,
    c10::Device found,
    const std::string& argument,
    const std::string& operation) {
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ", expected, " and ",
      found, "! (when checking argument for argument ", argument, " in method ", operation, ")");
  std::abort();
}

void check_same_core(const std::string& operation, at::TensorList tensors) {
  const at::Tensor* first = nullptr;
  for (size_t i = 0; i < tensors.size(); i++) {
    if (!tensors[i].defined()) {
      continue;
    }
    if (first == nullptr) {
      first = &tensors[i];
    } else if (tensors[i].device() != first->device()) {
      raise_mixed_devices(first->device(), tensors[i].device(), tensor_argument_name(operation, i), operation);
    }
  }
}

Operation::Operation(OpRecord& record, at::TensorList tensors, c10::ArrayRef<c10::IValue> constants)
    : record_(record), core_(first_core(tensors)) {
  check_same_core(record_.name, tensors);
  Signature signature(record_);
  for (const auto& tensor : tensors) {
    signature.add(tensor);
  }
  for (const auto& constant : constants) {
    signature.add(constant);
  }
  if (C10_UNLIKELY(strict::is_on())) {
    strict::check_call(record_, tensors, signature);
  }
  count_call(record_, signature);
  scope_.emplace(core_);
  range_.emplace(record_.name, profiler::Activity::kKernel, core_);
}

at::Tensor Operation::result(const at::Tensor& host) const {
  if (!host.defined()) {
    return host;
  }
  auto made = device_alias(host, core_);
  if (C10_UNLIKELY(strict::is_on())) {
    strict::check_results(record_, made);
  }
  return made;
}

} // namespace neuron

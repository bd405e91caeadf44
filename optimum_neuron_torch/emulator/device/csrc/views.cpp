// Views that PyTorch writes per backend; all others are composed of these. They compile nothing: no signatures.
#include "kernels.h"

#include "strict.h"

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace neuron::kernels {

Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> storage_offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, storage_offset);
}

Tensor view(const Tensor& self, IntArrayRef size) {
  return at::native::view(self, size);
}

Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

Tensor view_as_real(const Tensor& self) {
  return at::native::view_as_real(self);
}

Tensor view_as_complex(const Tensor& self) {
  if (C10_UNLIKELY(strict::is_on())) {
    strict::check_new_tensor(
        "aten::view_as_complex", c10::toComplexType(self.scalar_type()), self.sizes(), self.device());
  }
  return at::native::view_as_complex(self);
}

// Registered for strict mode alone: it is where forward-mode differentiation begins. PyTorch's kernel, which is the one
// of every device, never reaches the backend's key; it is found under the CPU's.
void make_dual(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(strict::is_on())) {
    const auto arguments = torch::jit::last(*stack, 3);
    strict::check_dual(arguments[0].toTensor(), arguments[1].toTensor());
  }
  const auto host_keys = keys.remove_backend(c10::BackendComponent::PrivateUse1Bit) |
      c10::DispatchKeySet(c10::BackendComponent::CPUBit);
  op.redispatchBoxed(host_keys, stack);
}

} // namespace neuron::kernels

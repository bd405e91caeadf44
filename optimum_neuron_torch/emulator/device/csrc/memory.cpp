// Kernels that make tensors or change which memory they own. They compile nothing on the device: no signatures.
#include "kernels.h"

#include "alias.h"
#include "allocator.h"
#include "cores.h"
#include "strict.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/DimVector.h>

namespace neuron::kernels {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::ScalarType given_or_default(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

c10::Device checked_device(
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(c10::kStrided) == c10::kStrided, "The neuron device has only dense tensors, no layout ",
      layout.value_or(c10::kStrided), ".");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned, not tensors of the neuron device.");
  return core_device(core_of(device.value_or(c10::Device(kDeviceType))));
}

// torch.use_deterministic_algorithms(True) makes values of new memory known, so that who reads them sees NaN.
Tensor filled_if_deterministic(Tensor made) {
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
    auto host = host_alias(made);
    at::native::fill_empty_deterministic_(host);
  }
  return made;
}

} // namespace

Tensor empty_memory_format(
    IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  const auto where = checked_device(layout, device, pin_memory);
  const auto type = given_or_default(dtype);
  if (C10_UNLIKELY(strict::is_on())) {
    strict::check_new_tensor("aten::empty", type, size, where, memory_format);
  }
  const c10::DeviceGuard guard(where);
  return filled_if_deterministic(at::detail::empty_generic(size, device_allocator(), kKeys, type, memory_format));
}

Tensor empty_strided(
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  const auto where = checked_device(layout, device, pin_memory);
  const auto type = given_or_default(dtype);
  if (C10_UNLIKELY(strict::is_on())) {
    strict::check_new_tensor("aten::empty_strided", type, size, where);
  }
  const c10::DeviceGuard guard(where);
  return filled_if_deterministic(at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, type));
}

// Gradients that are zero everywhere: they have a shape and a device, but no memory.
Tensor efficient_zero_tensor(
    IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  const auto where = checked_device(layout, device, pin_memory);
  at::native::ZeroTensorAllocator no_memory(where); // local, as in PyTorch: nothing allocates from it again
  return at::detail::empty_generic(
      size, &no_memory, kKeys.add(c10::DispatchKey::ZeroTensor), given_or_default(dtype), std::nullopt);
}

// PyTorch's CPU kernels for these work through the storage's own allocator, which is ours.

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  if (C10_UNLIKELY(strict::is_on())) {
    strict::check_new_tensor("aten::resize_", self.scalar_type(), size, self.device(), memory_format);
  }
  const c10::DeviceGuard guard(self.device());
  const c10::DimVector sizes(self.sizes()), strides(self.strides());
  try {
    return at::native::resize_(self, size, memory_format);
  } catch (const c10::OutOfMemoryError&) {
    // PyTorch changes the geometry first, and would leave it without the memory.
    self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    throw;
  }
}

Tensor& set_source_storage(Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source_storage_offset(self, std::move(source), 0, elements, {});
}

Tensor& set_source_storage_offset(
    Tensor& self,
    at::Storage source,
    int64_t storage_offset,
    IntArrayRef size,
    IntArrayRef stride) {
  const c10::DeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), storage_offset, size, stride);
}

Tensor& set_source_tensor(Tensor& self, const Tensor& source) {
  return set_source_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_(Tensor& self) {
  at::Storage nothing(
      at::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()), device_allocator(), /*resizable=*/true);
  return set_source_storage_offset(self, std::move(nothing), 0, {0}, {});
}

void record_stream(Tensor& self, at::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// Asked before `a.data = b`. PyTorch's own answer knows no out-of-tree backend and points them to this operator. With it
// Module.to() keeps its Parameter objects, so that tied weights stay tied and optimizers keep what they update.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto is_dense = [](const Tensor& tensor) {
    return tensor.layout() == c10::kStrided && (tensor.is_cpu() || is_neuron(tensor));
  };
  return self.key_set() == from.key_set() || (is_dense(self) && is_dense(from));
}

} // namespace neuron::kernels

// Two views of the same memory: a CPU tensor over a neuron tensor's storage, and the other way round, without copies.
#pragma once

#include "cores.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace neuron {

inline bool is_neuron(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

// A CPU tensor over the memory of `tensor`, with its sizes, strides, dtype, and conjugate and negative bits.
at::Tensor host_alias(const at::Tensor& tensor);

// As host_alias, but the result is kept with `tensor` for as long as its storage and geometry stay: for callers that
// ask again and again, e.g. a compiled graph for its weights.
at::Tensor kept_host_alias(const at::Tensor& tensor);

// A neuron tensor over the memory of the CPU tensor `host`. The memory counts as allocated on `core`.
at::Tensor device_alias(const at::Tensor& host, c10::DeviceIndex core);

// A neuron tensor over `storage` (of the neuron device) with the geometry of `like`.
at::Tensor device_tensor(c10::Storage storage, const at::Tensor& like);

// A neuron storage over the memory of the CPU storage `host`.
c10::Storage device_storage(const c10::Storage& host, c10::DeviceIndex core);

// After an operation that may have resized `host`, the alias of `device`: makes `device` follow it.
void follow_resize(const at::Tensor& device, const at::Tensor& host);

} // namespace neuron

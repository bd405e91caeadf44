// The boxed fallback: runs an operation of the neuron device with the CPU's kernel, on the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace neuron {

void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// PyTorch composes some operations of others unless a backend has them: all structured ones (an allocation and the
// out= variant), and a few like native_layer_norm. Registers the fallback by name where the CPU has a kernel: one call
// instead of several, the CPU's numbers, and the name that users know.
void register_composed_operations();

// Registers refusals of all operations on tensors that the device does not have: sparse, quantized and nested ones. Like
// the function above, left to the first use of the device: a fallback touches the tables of all operations, which would
// slow down `import torch`.
void register_refusals();

// For operations that make such a tensor.
void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace neuron

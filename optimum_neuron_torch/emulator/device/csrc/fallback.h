// The boxed fallback: runs an operation of the neuron device with the CPU's kernel, on the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace neuron {

void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Registers the fallback by name for the operations that PyTorch composes of an allocation and their out= variant unless
// a backend has them: one call instead of two, under the name that users know.
void register_structured_operations();

// For the dispatch keys of sparse tensors, which the device does not have.
void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace neuron

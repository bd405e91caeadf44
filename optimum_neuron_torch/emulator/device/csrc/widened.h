// Operations that accelerators have in half precision and the CPU lacks.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace neuron {

// The boxed fallback, by way of float32 where tensors are float16 or bfloat16.
void widened_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same for operations that the CPU lacks in float16 alone.
void widened_half_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace neuron

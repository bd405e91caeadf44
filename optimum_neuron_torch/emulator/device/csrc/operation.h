// What every kernel of the device does around its work on host memory.
#pragma once

#include "alias.h"
#include "counters.h"
#include "host_allocations.h"
#include "profiler.h"
#include "strict.h"

#include <optional>

namespace neuron {

// The checks, the counting and the scope of an operation whose kernel is registered by itself. The boxed fallback has
// its own sequence of the same steps.
class Operation {
 public:
  // `tensors` are the arguments in the order of the schema, `constants` everything else that decides what is compiled.
  Operation(OpRecord& record, at::TensorList tensors, c10::ArrayRef<c10::IValue> constants);

  c10::DeviceIndex core() const {
    return core_;
  }

  // The neuron tensor over a result that the CPU's kernel made.
  at::Tensor result(const at::Tensor& host) const;

 private:
  OpRecord& record_;
  c10::DeviceIndex core_;
  std::optional<AllocateOnCore> scope_;
  std::optional<profiler::Range> range_;
};

// Raises PyTorch's usual error unless all defined `tensors` are on one core.
void check_same_core(const std::string& operation, at::TensorList tensors);

[[noreturn]] void raise_mixed_devices(
    c10::Device expected,
    c10::Device found,
    const std::string& argument,
    const std::string& operation);

} // namespace neuron

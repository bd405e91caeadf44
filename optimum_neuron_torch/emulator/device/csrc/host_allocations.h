// Lets the CPU's kernels allocate their results in the memory of the emulated device.
//
// The CPU's allocator is replaced by one that asks the original for everything, except on a thread that is inside an
// operation of the neuron device: there the memory comes from the device's own allocator, so that it is cached, counted
// and limited, and the result can become a neuron tensor without a copy.
#pragma once

#include "cores.h"

namespace neuron {

// Called once, when the device is first used: a program that never uses it keeps PyTorch's own CPU allocator.
void install_host_allocator();

class AllocateOnCore {
 public:
  explicit AllocateOnCore(c10::DeviceIndex core) noexcept;
  ~AllocateOnCore();
  AllocateOnCore(const AllocateOnCore&) = delete;
  AllocateOnCore& operator=(const AllocateOnCore&) = delete;

 private:
  c10::DeviceIndex previous_;
};

// What AllocateOnCore does, for callers that cannot use a scope. -1 means the CPU's own memory.
c10::DeviceIndex exchange_allocating_core(c10::DeviceIndex core) noexcept;

} // namespace neuron

// The logical cores of the emulated chip: how many there are, which one a thread works on, and the state after a fork.
#pragma once

#include <c10/core/Device.h>

namespace neuron {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// Bound of the tables that are kept per core; a Trn2 chip has 8 physical cores.
constexpr int kMaxCores = 64;

inline c10::Device core_device(c10::DeviceIndex core) {
  return c10::Device(kDeviceType, core);
}

void set_core_count(c10::DeviceIndex count);
c10::DeviceIndex core_count() noexcept;

c10::DeviceIndex current_core() noexcept;
void set_current_core(c10::DeviceIndex core);
void set_current_core_unchecked(c10::DeviceIndex core) noexcept;
// Returns the previous one.
c10::DeviceIndex exchange_current_core(c10::DeviceIndex core);

// The core that `device` names; a device without an index is the current core.
c10::DeviceIndex core_of(c10::Device device);
// `core` as an index of PyTorch's type, after the check that there is such a core.
c10::DeviceIndex checked_core(int64_t core);

// The device is in use from its first allocation on. A child forked after that must not touch it, as on hardware.
void mark_in_use();
bool is_in_use() noexcept;
bool is_in_bad_fork() noexcept;
void check_not_in_bad_fork();

} // namespace neuron

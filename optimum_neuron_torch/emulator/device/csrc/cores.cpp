// The logical cores of the emulated chip: how many there are, which one a thread works on, and the state after a fork.
#include "cores.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <atomic>

namespace neuron {
namespace {

std::atomic<c10::DeviceIndex> total_cores{0};
thread_local c10::DeviceIndex this_thread_core = 0;

std::atomic<bool> in_use{false};
std::atomic<bool> in_bad_fork{false};

void after_fork_in_child() {
  in_bad_fork = in_use.load();
}

} // namespace

void set_core_count(c10::DeviceIndex count) {
  TORCH_CHECK(
      count >= 0 && count <= kMaxCores, "The emulator has between 0 and ", kMaxCores, " logical cores, not ",
      static_cast<int>(count), ".");
  total_cores = count;
}

c10::DeviceIndex core_count() noexcept {
  return total_cores.load(std::memory_order_relaxed);
}

c10::DeviceIndex current_core() noexcept {
  return this_thread_core;
}

c10::DeviceIndex checked_core(int64_t core) {
  const int count = core_count();
  TORCH_CHECK(
      core >= 0 && core < count, "neuron:", core, " does not exist: this machine has ", count,
      " logical NeuronCores, neuron:0 to neuron:", count - 1,
      " (NEURON_RT_VISIBLE_CORES and NEURON_LOGICAL_NC_CONFIG decide how many are visible).");
  return static_cast<c10::DeviceIndex>(core);
}

void set_current_core(c10::DeviceIndex core) {
  this_thread_core = checked_core(core);
}

void set_current_core_unchecked(c10::DeviceIndex core) noexcept {
  this_thread_core = core;
}

c10::DeviceIndex exchange_current_core(c10::DeviceIndex core) {
  const auto previous = this_thread_core;
  if (core != previous) {
    set_current_core(core);
  }
  return previous;
}

c10::DeviceIndex core_of(c10::Device device) {
  return device.has_index() ? checked_core(device.index()) : current_core();
}

void mark_in_use() {
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, &after_fork_in_child);
    return true;
  }();
  (void)registered;
  in_use.store(true, std::memory_order_relaxed);
}

bool is_in_use() noexcept {
  return in_use.load(std::memory_order_relaxed);
}

bool is_in_bad_fork() noexcept {
  return in_bad_fork.load(std::memory_order_relaxed);
}

void check_not_in_bad_fork() {
  TORCH_CHECK(
      !is_in_bad_fork(),
      "Cannot use the neuron device in a forked process: its parent had already used it. "
      "Start the process with the 'spawn' method, e.g. torch.multiprocessing.set_start_method('spawn'), "
      "or fork before the device is first used.");
}

} // namespace neuron

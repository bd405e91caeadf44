// Lets the CPU's kernels allocate their results in the memory of the emulated device.
#include "host_allocations.h"

#include "allocator.h"

#include <c10/core/CPUAllocator.h>

#include <mutex>

namespace neuron {
namespace {

constexpr c10::DeviceIndex kHost = -1;
thread_local c10::DeviceIndex allocating_core = kHost;

c10::Allocator* original_allocator = nullptr;

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (C10_LIKELY(allocating_core == kHost) || nbytes == 0) {
      return original_allocator->allocate(nbytes);
    }
    return raw_host_pointer(allocate_block(allocating_core, nbytes));
  }

  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return original_allocator->is_simple_data_ptr(pointer);
  }

  // For raw_allocate() and raw_deallocate(), which oneDNN's primitives use: one deleter for memory of either kind. It
  // is not the one of ordinary CPU tensors, which keep PyTorch's own.
  c10::DeleterFnPtr raw_deleter() const override {
    return &HostAllocator::free_raw;
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    default_copy_data(destination, source, count);
  }

 private:
  static void free_raw(void* data);
};

void HostAllocator::free_raw(void* data) {
  if (!free_raw_host_pointer(data)) {
    original_allocator->raw_deleter()(data);
  }
}

} // namespace

void install_host_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Above the priority of PyTorch's own, so that nothing that loads later puts the original back.
    original_allocator = c10::GetCPUAllocator();
    c10::SetAllocator(c10::kCPU, new HostAllocator(), /*priority=*/1);
  });
}

AllocateOnCore::AllocateOnCore(c10::DeviceIndex core) noexcept : previous_(exchange_allocating_core(core)) {}

AllocateOnCore::~AllocateOnCore() {
  allocating_core = previous_;
}

c10::DeviceIndex exchange_allocating_core(c10::DeviceIndex core) noexcept {
  const auto previous = allocating_core;
  allocating_core = core;
  return previous;
}

} // namespace neuron

// Lets the CPU's kernels allocate their results in the memory of the emulated device.
#include "host_allocations.h"

#include "allocator.h"

#include <c10/core/CPUAllocator.h>

#include <mutex>

namespace neuron {
namespace {

constexpr c10::DeviceIndex kHost = -1;
thread_local c10::DeviceIndex allocating_core = kHost;

class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* original) : original_(original) {}

  c10::DataPtr allocate(size_t nbytes) override {
    if (C10_LIKELY(allocating_core == kHost) || nbytes == 0) {
      return original_->allocate(nbytes);
    }
    return host_pointer(allocate_block(allocating_core, nbytes));
  }

  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return original_->is_simple_data_ptr(pointer);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return original_->raw_deleter();
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    default_copy_data(destination, source, count);
  }

 private:
  c10::Allocator* original_;
};

} // namespace

void install_host_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Above the priority of PyTorch's own, so that nothing that loads later puts the original back.
    c10::SetAllocator(c10::kCPU, new HostAllocator(c10::GetCPUAllocator()), /*priority=*/1);
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

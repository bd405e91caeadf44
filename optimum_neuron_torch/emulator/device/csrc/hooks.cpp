// What PyTorch asks a backend through its hooks interface: devices, generators, pinned memory, storage resizing.
#include "hooks.h"

#include "allocator.h"
#include "cores.h"
#include "generator.h"
#include "pinned_memory.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>

namespace neuron {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return core_count() > 0;
  }

  bool hasPrimaryContext(c10::DeviceIndex /*core*/) const override {
    return is_in_use();
  }

  void init() const override {}

  c10::DeviceIndex deviceCount() const override {
    return core_count();
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return current_core();
  }

  void setCurrentDevice(c10::DeviceIndex core) const override {
    exchange_current_core(core);
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex core) const override {
    return exchange_current_core(core);
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex core) const override {
    return core < 0 ? current_core() : exchange_current_core(core);
  }

  at::Device getDeviceFromPtr(void* /*data*/) const override {
    return core_device(current_core());
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex core) const override {
    return default_generator(core < 0 ? current_core() : core);
  }

  at::Generator getNewGenerator(c10::DeviceIndex core) const override {
    return at::make_generator<GeneratorImpl>(core < 0 ? current_core() : core_of(core_device(core)));
  }

  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    const auto core = storage.device().index();
    auto pointer = nbytes == 0 ? c10::DataPtr(nullptr, storage.device()) : device_pointer(allocate_block(core, nbytes));
    const size_t kept = std::min(nbytes, storage.nbytes());
    if (kept > 0) {
      std::memcpy(pointer.get(), storage.data(), kept);
    }
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(pointer));
    impl->set_nbytes(nbytes);
  }
};

} // namespace

void register_hooks() {
  static auto* const hooks = new Hooks();
  at::RegisterPrivateUse1HooksInterface(hooks);
  at::setHostAllocator(kDeviceType, pinned_allocator());
  c10::SetAllocator(kDeviceType, device_allocator());
}

} // namespace neuron

// The device guard: how PyTorch switches cores, streams and events. Everything on the emulated device is done when the
// call returns, so streams keep only their identity and events only the time.
#include "cores.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>

namespace neuron {
namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point recorded;
  c10::DeviceIndex core;
};

constexpr c10::StreamId kDefaultStream = 0;
std::atomic<c10::StreamId> last_stream{kDefaultStream};
thread_local std::array<c10::StreamId, kMaxCores> current_stream{};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDeviceType;
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    return core_device(device.has_index() ? exchange_current_core(device.index()) : current_core());
  }

  c10::Device getDevice() const override {
    return core_device(current_core());
  }

  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      exchange_current_core(device.index());
    }
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      set_current_core_unchecked(device.index());
    }
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return core_count();
  }

  // -- streams ------------------------------------------------------------------------------------------------------

  c10::Stream getStream(c10::Device device) const override {
    const auto core = core_of(device);
    return stream_on(core, current_stream[core]);
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_on(core_of(device), kDefaultStream);
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return getNewStream(device, 0);
  }

  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return stream_on(core_of(device), ++last_stream);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto core = core_of(stream.device());
    const auto previous = current_stream[core];
    current_stream[core] = stream.id();
    return stream_on(core, previous);
  }

  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override {
    return nullptr;
  }

  bool queryStream(const c10::Stream& /*stream*/) const override {
    return true;
  }

  void synchronizeStream(const c10::Stream& /*stream*/) const override {}

  void synchronizeDevice(c10::DeviceIndex core) const override {
    checked_core(core);
  }

  // -- events -------------------------------------------------------------------------------------------------------

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex core, c10::EventFlag /*flag*/) const override {
    TORCH_CHECK(
        core == -1 || core == stream.device_index(), "An event of neuron:", static_cast<int>(core),
        " cannot be recorded on a stream of neuron:", static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) {
      *event = new Event();
    }
    *static_cast<Event*>(*event) = {Clock::now(), stream.device_index()};
  }

  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}

  bool queryEvent(void* /*event*/) const override {
    return true;
  }

  void synchronizeEvent(void* /*event*/) const override {}

  double elapsedTime(void* start, void* end, c10::DeviceIndex /*core*/) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before their elapsed time is asked.");
    const auto& from = *static_cast<Event*>(start);
    const auto& to = *static_cast<Event*>(end);
    TORCH_CHECK(
        from.core == to.core, "Both events must be recorded on the same core to compare their times, but they are of "
        "neuron:", static_cast<int>(from.core), " and neuron:", static_cast<int>(to.core), ".");
    return std::chrono::duration<double, std::milli>(to.recorded - from.recorded).count();
  }

  void destroyEvent(void* event, c10::DeviceIndex /*core*/) const noexcept override {
    delete static_cast<Event*>(event);
  }

  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override {
    return {};
  }

 private:
  static c10::Stream stream_on(c10::DeviceIndex core, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, core_device(core), id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

} // namespace
} // namespace neuron

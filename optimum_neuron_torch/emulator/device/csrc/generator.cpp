// Random number generators of the neuron device.
#include "generator.h"

#include <c10/util/Exception.h>

#include <array>
#include <mutex>
#include <utility>

namespace neuron {
namespace {

at::CPUGeneratorImpl& cpu_generator(const at::Generator& generator) {
  return *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

// The CPU's kernels draw under the lock of the generator they were given, so its state is read and set under it too.
std::unique_lock<std::mutex> locked(const at::Generator& generator) {
  return std::unique_lock<std::mutex>(generator.unsafeGetGeneratorImpl()->mutex_);
}

constexpr const char* kNoOffset =
    "A generator of the neuron device has no offset: get_state() and set_state() carry its whole state.";

} // namespace

GeneratorImpl::GeneratorImpl(c10::DeviceIndex core, uint64_t seed)
    : c10::GeneratorImpl(core_device(core), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      host_(at::detail::createCPUGenerator(seed)) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  const auto lock = locked(host_);
  host_.set_current_seed(seed);
}

void GeneratorImpl::set_offset(uint64_t /*offset*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, kNoOffset);
}

uint64_t GeneratorImpl::get_offset() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, kNoOffset);
}

uint64_t GeneratorImpl::current_seed() const {
  const auto lock = locked(host_);
  return host_.current_seed();
}

uint64_t GeneratorImpl::seed() {
  const auto lock = locked(host_);
  return host_.seed();
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  const auto lock = locked(host_);
  const auto expected = cpu_generator(host_).get_state()->numel();
  TORCH_CHECK(
      state.numel() == expected, "The state of a generator of the neuron device has ", expected, " bytes, but ",
      state.numel(), " were given. Pass what get_state() or torch.neuron.get_rng_state() returned.");
  cpu_generator(host_).set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  const auto lock = locked(host_);
  return cpu_generator(host_).get_state();
}

void GeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  const auto* other = dynamic_cast<const GeneratorImpl*>(state.get());
  TORCH_CHECK(other != nullptr, "Expected a generator of the neuron device, not of ", state->device(), ".");
  host_ = other->host_;
}

c10::intrusive_ptr<c10::GeneratorImpl> GeneratorImpl::graphsafe_get_state() const {
  auto sharing = c10::make_intrusive<GeneratorImpl>(device().index());
  sharing->host_ = host_;
  return sharing;
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index());
  copy->set_state(*get_state());
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex core) {
  static auto* const generators = [] {
    auto* made = new std::array<at::Generator, kMaxCores>();
    for (int i = 0; i < kMaxCores; i++) {
      (*made)[i] = at::make_generator<GeneratorImpl>(static_cast<c10::DeviceIndex>(i));
    }
    return made;
  }();
  return (*generators)[core_of(core_device(core))];
}

const at::Generator& host_generator(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == kDeviceType, "Expected a generator of the neuron device or of the CPU, not of ",
      generator.device(), ".");
  return static_cast<const GeneratorImpl*>(generator.unsafeGetGeneratorImpl())->host();
}

} // namespace neuron

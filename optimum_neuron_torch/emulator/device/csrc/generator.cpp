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

void exchange_states(at::CPUGeneratorImpl& a, at::CPUGeneratorImpl& b) {
  const std::scoped_lock lock(a.mutex_, b.mutex_);
  auto engine = a.engine();
  auto normal_float = a.next_float_normal_sample();
  auto normal_double = a.next_double_normal_sample();
  a.set_engine(b.engine());
  a.set_next_float_normal_sample(b.next_float_normal_sample());
  a.set_next_double_normal_sample(b.next_double_normal_sample());
  b.set_engine(engine);
  b.set_next_float_normal_sample(normal_float);
  b.set_next_double_normal_sample(normal_double);
}

} // namespace

GeneratorImpl::GeneratorImpl(c10::DeviceIndex core, uint64_t seed)
    : c10::GeneratorImpl(core_device(core), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      host_(at::detail::createCPUGenerator(seed)) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  host_.set_current_seed(seed);
}

void GeneratorImpl::set_offset(uint64_t offset) {
  host_.set_offset(offset);
}

uint64_t GeneratorImpl::get_offset() const {
  return host_.get_offset();
}

uint64_t GeneratorImpl::current_seed() const {
  return host_.current_seed();
}

uint64_t GeneratorImpl::seed() {
  return host_.seed();
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  cpu_generator(host_).set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  return cpu_generator(host_).get_state();
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

DrawFromCore::DrawFromCore(c10::DeviceIndex core) : device_(cpu_generator(host_generator(default_generator(core)))) {
  exchange_states(device_, cpu_generator(at::detail::getDefaultCPUGenerator()));
}

DrawFromCore::~DrawFromCore() {
  exchange_states(device_, cpu_generator(at::detail::getDefaultCPUGenerator()));
}

} // namespace neuron

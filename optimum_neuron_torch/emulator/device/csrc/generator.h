// Random number generators of the neuron device. Each wraps one of the CPU's: with the same seed, the device draws the
// numbers that the CPU would.
#pragma once

#include "cores.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace neuron {

struct GeneratorImpl final : c10::GeneratorImpl {
  explicit GeneratorImpl(c10::DeviceIndex core, uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // Both generators then draw from one sequence.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  const at::Generator& host() const {
    return host_;
  }

 private:
  GeneratorImpl* clone_impl() const override;

  at::Generator host_;
};

// The generator that `core` uses where none is given.
const at::Generator& default_generator(c10::DeviceIndex core);

// The CPU generator that draws the numbers of `generator`, which must be of the neuron device.
const at::Generator& host_generator(const at::Generator& generator);

} // namespace neuron

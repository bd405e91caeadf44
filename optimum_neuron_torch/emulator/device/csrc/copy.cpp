// Copies between host and device, between cores, and within one.
#include "kernels.h"

#include "operation.h"

#include <ATen/ops/_local_scalar_dense.h>

#include <array>

namespace neuron::kernels {
namespace {

Tensor on_host(const Tensor& tensor) {
  return is_neuron(tensor) ? host_alias(tensor) : tensor;
}

// Whether the copy only moves bytes. A change of dtype or layout is computed on the device, i.e. compiled.
bool moves_bytes_only(const Tensor& source, const Tensor& destination) {
  return source.device() != destination.device() && source.dtype() == destination.dtype() &&
      source.sizes() == destination.sizes() && source.strides() == destination.strides() &&
      source.is_non_overlapping_and_dense() && source.is_conj() == destination.is_conj() &&
      source.is_neg() == destination.is_neg();
}

CopyDirection direction_of(const Tensor& source, const Tensor& destination) {
  if (!is_neuron(source)) {
    return CopyDirection::kHostToDevice;
  }
  return is_neuron(destination) ? CopyDirection::kDeviceToDevice : CopyDirection::kDeviceToHost;
}

// As profilers of other devices name them, in the order of CopyDirection.
const std::string& name_of_copy(const Tensor& source, const Tensor& destination) {
  static const std::array<std::string, 3> names{"Memcpy HtoD", "Memcpy DtoH", "Memcpy DtoD"};
  return names[static_cast<size_t>(direction_of(source, destination))];
}

void observe_copy(const Tensor& source, const Tensor& destination) {
  static auto& record = record_named("aten::copy_");
  if (moves_bytes_only(source, destination)) {
    if (C10_UNLIKELY(strict::is_on())) {
      strict::check_cores(record.name, {source, destination});
    }
    count_copy(direction_of(source, destination), source.sizes());
    return;
  }
  Signature signature(record);
  signature.add(destination);
  signature.add(source);
  if (C10_UNLIKELY(strict::is_on())) {
    strict::check_call(record, {destination, source}, signature);
  }
  count_call(record, signature);
}

} // namespace

Tensor copy_from(const Tensor& self, const Tensor& destination, bool non_blocking) {
  static auto& record = record_named("aten::copy_");
  observe_copy(self, destination);
  const profiler::Range range(
      name_of_copy(self, destination), profiler::Activity::kCopy,
      (is_neuron(destination) ? destination : self).device().index(), static_cast<int64_t>(self.nbytes()));
  on_host(destination).copy_(on_host(self), non_blocking);
  if (C10_UNLIKELY(strict::is_on()) && is_neuron(destination)) {
    strict::check_results(record, destination);
  }
  return destination;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  count_copy(CopyDirection::kDeviceToHost, self.sizes());
  return at::_local_scalar_dense(host_alias(self));
}

} // namespace neuron::kernels

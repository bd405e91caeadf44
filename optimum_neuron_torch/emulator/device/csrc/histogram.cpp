// torch.histc of integers, which accelerators have and the CPU lacks: mixture-of-experts models count the tokens of
// each expert with it. Floating point goes to the CPU's kernel.
#include "kernels.h"

#include "fallback.h"
#include "operation.h"

#include <ATen/Dispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/histc_ops.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace neuron::kernels {
namespace {

// Bins as CUDA's kernel has them: integer arithmetic, the last bin includes the maximum, values outside are left out.
template <typename T>
void count_into_bins(const Tensor& values, Tensor& counts, int64_t minimum, int64_t maximum) {
  const auto* input = values.const_data_ptr<T>();
  auto* output = counts.mutable_data_ptr<T>();
  const int64_t bins = counts.numel();
  for (int64_t i = 0; i < values.numel(); i++) {
    const auto value = static_cast<int64_t>(input[i]);
    if (value >= minimum && value <= maximum) {
      const auto bin = (value - minimum) * bins / (maximum - minimum);
      output[std::min(bin, bins - 1)]++;
    }
  }
}

// An empty range means that of the values, and one wider where they are all equal.
template <typename T>
std::pair<int64_t, int64_t> range_of(const Tensor& values, int64_t minimum, int64_t maximum) {
  if (minimum == maximum && values.numel() > 0) {
    const auto* begin = values.const_data_ptr<T>();
    const auto [smallest, largest] = std::minmax_element(begin, begin + values.numel());
    minimum = *smallest;
    maximum = *largest;
  }
  if (minimum == maximum) {
    minimum--;
    maximum++;
  }
  return {minimum, maximum};
}

} // namespace

Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    return at::native::call_fallback_fn<&host_fallback, at::_ops::histc>::call(self, bins, min, max);
  }
  static auto& record = record_named("aten::histc");
  TORCH_CHECK(bins > 0, "histc(): bins must be > 0, but got ", bins);
  TORCH_CHECK(min.toLong() <= max.toLong(), "histc(): max must be larger than min");
  const Operation operation(record, self, {bins, min, max});
  const auto values = host_alias(self).contiguous();
  auto counts = at::zeros({bins}, values.options());
  AT_DISPATCH_INTEGRAL_TYPES(values.scalar_type(), "histc", [&] {
    const auto [minimum, maximum] = range_of<scalar_t>(values, min.toLong(), max.toLong());
    count_into_bins<scalar_t>(values, counts, minimum, maximum);
  });
  return operation.result(counts);
}

Tensor& histc_out(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max, Tensor& result) {
  check_same_core("aten::histc", {self, result});
  TORCH_CHECK(
      result.scalar_type() == self.scalar_type(), "histc(): out has dtype ", result.scalar_type(), ", the input ",
      self.scalar_type(), "; they must be the same.");
  const auto counts = histc(self, bins, min, max);
  result.resize_(counts.sizes());
  result.copy_(counts);
  return result;
}

} // namespace neuron::kernels
